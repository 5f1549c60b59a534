"""Tokenizers from GGUF metadata and from a folder, and what chat messages cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from cadenza.checkpoints.errors import CheckpointError
from cadenza.checkpoints.locate import locate
from cadenza.service.chat_template import ChatOptions, ChatTemplate
from cadenza.service.errors import InvalidRequest
from cadenza.service.gguf_tokenizer import UnsupportedTokenizer, build_tokenizer
from cadenza.service.tokenizer import Tokenizer, load_tokenizer

from .byte_tokenizer import make_tokenizer

# Ids from transformers 5.24's AutoTokenizer with gguf_file, on the demo model's file.
KNOWN = {
    "Hello world 1234567": [19556, 905, 216, 33, 34, 35, 36, 37, 38, 39],
    "don't we'll": [12420, 982, 392, 3060],
    "\n": [198],
    "Příliš": [64, 144, 243, 6160, 1418, 20848],
    "你好,世界": [18645, 250, 48392, 138, 28, 7906, 240, 178, 239, 230],
    "emoji 😀 é": [391, 33777, 40303, 218, 26411],
    "  spaces   \n\n\t tab": [216, 5600, 333, 14436, 10147],
    "a<|im_end|>b": [81, 2, 82],
}

VARIED = [
    "  spaces   \n\n\t tab",
    "你好,世界 こんにちは",
    "emoji 😀👨‍👩‍👧‍👦 é",
    "Příliš žluťoučký kůň",
    "x" * 200,
    " " * 100,
    "\r\n\r\n a\n 12",
    "<|im_end|> and <|im_start|>",
    "\x00\x7f",
]


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return load_tokenizer(locate("demo").path)


def test_known_texts_get_known_ids(demo):
    assert {text: demo.encode_text(text) for text in KNOWN} == KNOWN


@pytest.mark.parametrize("text", [*KNOWN, *VARIED])
def test_decoding_gives_the_text_back(demo, text):
    ids = demo.encode_text(text)

    assert demo.backend.decode(ids, skip_special_tokens=False) == text
    assert b"".join(demo.bytes[i] for i in ids) == text.encode()
    assert len(text) <= len(ids) * demo.max_chars_per_token


def test_digits_are_split_before_spaces_are_taken(demo):
    # As in the model's own tokenizer.json and llama.cpp: the run before a digit is one piece.
    # transformers' GGUF tokenizer forgets the digits and splits "\n" from " ".
    assert demo.encode_text("there\n 12") == [*demo.encode_text("there"), 3805, 33, 34]


def test_the_demo_template_is_rendered(demo):
    ids = demo.encode_messages([{"role": "user", "content": "hi"}], max_chars=10_000)
    text = demo.backend.decode(ids, skip_special_tokens=False)

    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "content", ["<|im_end|>", "a<|im_end|>b", "<|im_start|><|im_end|>\n", "<|im_<|im_end|>end|>"]
)
def test_messages_cannot_forge_control_tokens(demo, content):
    plain = demo.encode_messages([{"role": "user", "content": "x"}], max_chars=10_000)
    ids = demo.encode_messages([{"role": "user", "content": content}], max_chars=10_000)

    def controls(encoded: list[int]) -> list[int]:
        return [token for token in encoded if token < 17]

    assert controls(ids) == controls(plain)
    assert f"user\n{content}<|im_end|>" in demo.backend.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("content", ["and then?", "<|im_end|>", "", " \n"])
def test_what_comes_next_in_a_chat_is_what_the_whole_chat_has_there(demo, content):
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]
    after = [{"role": "user", "content": content}]
    whole = demo.encode_messages([*before, *after], max_chars=10_000)
    begun = demo.encode_messages(before[:1], max_chars=10_000) + demo.encode_text("Hello!")

    assert whole == begun + demo.encode_next_messages(after, max_chars=10_000)


def test_what_comes_next_may_leave_its_last_message_open(demo):
    after = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well"}]
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    ids = demo.encode_next_messages(after, max_chars=10_000, options=options)

    assert demo.decode(ids) == (
        "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nWell"
    )


@pytest.mark.parametrize(
    "source",
    ["{{ messages[-1]['content'] }}", "{{ messages | length }}"],
    ids=["the last message alone", "no message"],
)
def test_a_template_that_hides_what_was_said_lets_nothing_come_next(source):
    with pytest.raises(InvalidRequest, match="does not show what the assistant said") as error:
        make_tokenizer(source).encode_next_messages(
            [{"role": "user", "content": "x"}], max_chars=100
        )
    assert error.value.field == "messages"


def test_without_a_template_no_message_comes_next():
    with pytest.raises(InvalidRequest, match="no chat template"):
        make_tokenizer(None).encode_next_messages([{"role": "user", "content": "x"}], max_chars=100)


def test_a_template_that_tears_content_apart_cannot_forge_either():
    source = (
        "{% for m in messages %}{{ m['content'].split('end')[0] }}"
        "{{ m['content'].split('end')[-1] }}{% endfor %}<|end|>"
    )
    tokenizer = make_tokenizer(source)
    ids = tokenizer.encode_messages([{"role": "user", "content": "<|end|>"}], max_chars=100)

    assert ids.count(tokenizer.backend.token_to_id("<|end|>")) == 1
    assert tokenizer.backend.decode(ids, skip_special_tokens=False) == "<||><|end|>"


def test_added_tokens_that_the_template_writes_are_guarded_too():
    backend = make_tokenizer().backend
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("<other>", special=False)])
    tokenizer = Tokenizer(backend, ChatTemplate("{{ messages[0]['content'] }}<think>"))
    ids = tokenizer.encode_messages([{"content": "<think><other>"}], max_chars=100)

    assert ids.count(backend.token_to_id("<think>")) == 1
    assert ids.count(backend.token_to_id("<other>")) == 1


def test_a_template_sees_what_transformers_gives_it():
    source = (
        "{{ bos_token }}{{ {'a': '<é>'} | tojson }}{{ strftime_now('%Y') | length }}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}g{% endgeneration %}{{ tools is none }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})

    assert template.render([], max_chars=100) == '<s>{"a": "<é>"}401gTrue'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5]['role'] }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000) %}x{% endfor %}",
        "{% for i in range(9999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}",
    ],
)
def test_what_a_template_cannot_do_is_a_bad_request(source):
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}], max_chars=1000)

    assert caught.value.field == "messages"


def test_a_broken_template_is_refused_at_once():
    with pytest.raises(ValueError, match="does not compile"):
        ChatTemplate("{% if %}")


def test_a_model_without_a_template_has_no_chat():
    with pytest.raises(InvalidRequest, match="no chat template"):
        make_tokenizer(None).encode_messages([], max_chars=10)


BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1],
}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'"),
        ({"tokenizer.ggml.model": "llama"}, "has no usable tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.model": ["gpt2"]}, "the tokenizer model .'gpt2'. is not supported"),
        *(
            ({**BYTE_LEVEL, f"tokenizer.ggml.{name}": value}, reason)
            for name, value, reason in [
                ("tokens", 3, "no usable tokenizer.ggml.tokens"),
                ("tokens", [["a"]], "no usable tokenizer.ggml.tokens"),
                ("token_type", ["a", "b", "ab"], "no usable tokenizer.ggml.token_type"),
                ("merges", True, "no usable tokenizer.ggml.merges"),
                ("merges", ["a c"], "the merge 'a c' is not one of tokens"),
                ("merges", ["b a"], "the merge 'b a' is not one of tokens"),
                ("merges", ["ab"], "the merge 'ab ' is not one of tokens"),
            ]
        ),
        (
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": ["a", "b"],
                "tokenizer.ggml.scores": [0.0],
                "tokenizer.ggml.token_type": [1, 1],
            },
            "not as many",
        ),
        ({}, "None"),
        ({"tokenizer.ggml.model": "gpt2"}, "has no usable tokenizer.ggml.tokens"),
        (
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "martian",
                "tokenizer.ggml.tokens": ["a"],
                "tokenizer.ggml.merges": [],
                "tokenizer.ggml.token_type": [1],
            },
            "'martian'",
        ),
    ],
)
def test_unsupported_metadata_is_refused_by_name(metadata, reason):
    with pytest.raises(UnsupportedTokenizer, match=reason):
        build_tokenizer(metadata)


@pytest.mark.parametrize("pre", ["default", "smollm", "llama-bpe", "qwen2"])
def test_every_pre_tokeniser_keeps_the_text(pre):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = build_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [*alphabet, "<end>", "12", "123"],
            "tokenizer.ggml.merges": ["1 2", "12 3"],
            "tokenizer.ggml.token_type": [1] * 256 + [3, 1, 1],
        }
    )
    text = "I'LL go  1234 \n\n 你好<end>"
    ids = tokenizer.encode(text).ids

    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert (tokenizer.token_to_id("123") in ids) == (pre in ("default", "llama-bpe"))


@pytest.fixture
def folder(tmp_path):
    backend = make_tokenizer().backend
    bos = backend.token_to_id("<|end|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", bos)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_folder_is_read_and_bos_comes_once(folder):
    config = {"chat_template": "{{ bos_token }}hi", "bos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    bos = tokenizer.backend.token_to_id("<|end|>")

    assert tokenizer.encode_text("a").count(bos) == 1
    assert tokenizer.encode_text("<|end|>a") == tokenizer.encode_text("a")
    assert tokenizer.encode_messages([], max_chars=100).count(bos) == 1


def test_a_template_file_comes_before_the_config(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    (folder / "chat_template.jinja").write_text("file")

    template = load_tokenizer(folder).template
    assert template is not None
    assert template.source == "file"


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[]"])
def test_a_folder_that_cannot_be_read_is_a_checkpoint_error(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["1", "null", "[1]", "[" * 100_000, '{"'])
def test_a_configuration_that_is_no_object_is_a_checkpoint_error(folder, content):
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: not "):
        load_tokenizer(folder)


@pytest.mark.parametrize("entry", [None, "x", {}, {"name": "default"}, {"name": ["default"]}])
def test_templates_of_no_name_are_none(folder, entry):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [entry]}))

    assert load_tokenizer(folder).template is None


@pytest.mark.parametrize("token", [-1, 3, 2**32 - 1, "a", [0]])
def test_a_special_token_of_no_id_is_none(monkeypatch, token):
    ids = {"tokenizer.ggml.bos_token_id": token, "tokenizer.ggml.add_bos_token": True}
    file = SimpleNamespace(metadata={**BYTE_LEVEL, **ids})
    monkeypatch.setattr("cadenza.service.tokenizer.read_gguf", lambda _: file)

    assert load_tokenizer("model.gguf").encode_text("ab") == [2]


def test_byte_fallback_and_metaspace_tokens_have_their_bytes():
    vocabulary = {"<unk>": 0, "<0xC4>": 1, "\u2581hi": 2}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    tokenizer = Tokenizer(backend)

    assert [tokenizer.bytes[i] for i in (1, 2, 99)] == [b"\xc4", b" hi", b""]


def test_the_front_never_imports_torch_or_transformers():
    source = (
        "import sys, cadenza.service.http, cadenza.service.generator,"
        "cadenza.service.engine_process, cadenza.service.tokenizer;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", source], check=False).returncode == 0
