"""Text to token ids and back, for one model. Never imports transformers (3.7 s, and torch).

Control tokens cannot be forged through chat messages: a literal such as `<|im_end|>` in a message
becomes the ordinary tokens of those characters, while the template's own stay real. The prompt of
a raw completion is parsed with control tokens, as vLLM does: its author writes the whole format.

Safe to share between threads: nothing here is changed after construction, but for texts that are
looked up once. Truncation and padding of a `tokenizers.Tokenizer` must never be set, since that
would change it under a running encode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from cadenza.checkpoints.errors import CheckpointError
from cadenza.checkpoints.folder import read_json
from cadenza.checkpoints.gguf import read_gguf
from cadenza.service.chat_template import USUAL, ChatOptions, ChatTemplate
from cadenza.service.detokenizer import Detokenizer
from cadenza.service.errors import InvalidRequest
from cadenza.service.gguf_tokenizer import build_tokenizer
from cadenza.service.token_bytes import TokenBytes
from cadenza.service.token_texts import TokenTexts

_CONFIG = "tokenizer_config.json"

# Lone surrogates stand around a control token's literal while a template is rendered. No valid
# text holds one (requests with surrogates are refused), so that no message can bring its own.
_OPEN, _CLOSE = "\udc80", "\udc81"

# Read by `tokenizers` at every call: a batch is then encoded on the thread that asks for it, so
# that a prompt never takes more cores than its caller has threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """A model's vocabulary, with its chat template where it has one."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None = None,
        prefix: Sequence[int] = (),
    ) -> None:
        """Take over `backend`. `prefix` (usually BOS, or nothing) opens raw completions."""
        self.backend = backend
        self.template = template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bytes = TokenBytes(backend)
        self._texts = {
            skip: TokenTexts(backend, skip_special_tokens=skip) for skip in (False, True)
        }
        self.prefix = list(prefix)
        literals = _control_literals(backend, template)
        self._literal = re.compile("|".join(map(re.escape, literals)) or "(?!)")
        self._marked = re.compile(f"{_OPEN}({self._literal.pattern}){_CLOSE}|[{_OPEN}{_CLOSE}]")
        self._plain = _without_controls(backend, set(literals))

    @property
    def max_chars_per_token(self) -> int:
        """No token stands for more characters than this; a bound for refusing before encoding."""
        return self.bytes.longest

    @property
    def usual_texts(self) -> TokenTexts:
        """What tokens stand for where a request does not say how it wants control tokens."""
        return self._texts[True]

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """A decoder of what one choice adds to `prompt`."""
        return Detokenizer(
            self.backend,
            prompt,
            skip_special_tokens=skip_special_tokens,
            texts=self._texts[skip_special_tokens],
        )

    def encode_text(self, text: str, *, opened: bool = True) -> list[int]:
        """The ids of a raw prompt, with what opens it (BOS) where the model wants that.

        Control tokens in it are real; a leading BOS is not doubled.
        """
        return self._opened(_encode(self.backend, text), opened)

    def encode_word(self, word: str) -> list[list[int]]:
        """The ids of a word wherever it may stand: as it is, and with and without a space before.

        Control tokens in it are real.
        """
        bare = word.lstrip(" ")
        spellings = dict.fromkeys((word, bare, f" {bare}"))
        return [_encode(self.backend, spelling) for spelling in spellings if spelling]

    def num_opening(self, ids: Sequence[int]) -> int:
        """How many of the ids open the text (BOS), if they do."""
        opening = len(self.prefix)
        return opening if list(ids[:opening]) == self.prefix else 0

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_chars: int,
        options: ChatOptions = USUAL,
        opened: bool = False,
    ) -> list[int]:
        """The ids of a chat, up to where the assistant begins to speak or goes on.

        What opens a text (BOS) is the template's to write; `opened` adds it where that does not.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
        """
        chat = self._render(ChatTemplate.render, messages, max_chars, options)
        return self._opened(self._encode_marked(chat), opened)

    def encode_next_messages(
        self, messages: Sequence[Mapping[str, Any]], *, max_chars: int, options: ChatOptions = USUAL
    ) -> list[int]:
        """The ids that come after what an assistant has said, with what ends its turn.

        Raises:
            InvalidRequest: as `encode_messages`, or the template does not show what was said.
        """
        return self._encode_marked(
            self._render(ChatTemplate.render_next, messages, max_chars, options)
        )

    def _render(
        self,
        render: Callable[..., str],
        messages: Sequence[Mapping[str, Any]],
        max_chars: int,
        options: ChatOptions,
    ) -> str:
        if self.template is None:
            raise InvalidRequest("This model has no chat template; use completions.", "messages")
        marked = [self._mark(message) for message in messages]
        guarded = replace(options, variables=self._mark(options.variables))
        return render(self.template, marked, max_chars=max_chars, options=guarded)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens as they are written. The GIL is released meanwhile."""
        [text] = self.backend.decode_batch([list(ids)], skip_special_tokens=False)
        return str(text)

    def names(self, ids: Iterable[int]) -> list[str]:
        """Each token as the vocabulary writes it, which need not be text."""
        return [self.backend.id_to_token(token) or "" for token in ids]

    def _opened(self, ids: list[int], opened: bool) -> list[int]:
        if opened and self.prefix and not self.num_opening(ids):
            return self.prefix + ids
        return ids

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._literal.sub(f"{_OPEN}\\g<0>{_CLOSE}", value)
        if isinstance(value, Mapping):
            return {self._mark(key): self._mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item) for item in value]
        return value

    def _encode_marked(self, chat: str) -> list[int]:
        # Splitting gives text, literal, text, literal, ..., text. A mark that the template tore
        # from its literal gives None, and still parts the text, so that no halves can join.
        pieces: list[str | None] = self._marked.split(chat)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if piece:
                encoder = self._plain if index % 2 else self.backend
                ids += _encode(encoder, piece)
        return ids


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """The ids of `text` alone, with the GIL released meanwhile.

    `Tokenizer.encode` holds it from beginning to end, which for a long prompt is seconds; of the
    library's calls only those for batches let go.
    """
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file or of a model folder with a `tokenizer.json`.

    Raises:
        CheckpointError: a file is missing or not well formed, or its tokenizer is of a kind that
            we cannot build.
    """
    path = Path(path)
    try:
        return _from_folder(path) if path.is_dir() else _from_gguf(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: the tokenizer cannot be read: {error}") from error


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_gguf(path).metadata
    backend = build_tokenizer(metadata)
    ids = _special_ids(metadata)
    texts = {name: text for name, i in ids.items() if (text := backend.id_to_token(i))}
    source = metadata.get("tokenizer.chat_template")
    # llama.cpp's rule: these vocabularies open with BOS unless the file says otherwise
    by_default = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get(
        "tokenizer.ggml.pre"
    ) in ("llama-bpe", "llama3")
    opens = metadata.get("tokenizer.ggml.add_bos_token", by_default) and "bos_token" in ids
    return Tokenizer(
        backend,
        ChatTemplate(str(source), texts) if source else None,
        [ids["bos_token"]] if opens else (),
    )


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The special tokens that the file has; an id of no token stands for none, as in llama.cpp."""
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    stored = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {
        name: token
        for name, token in stored.items()
        if isinstance(token, int) and 0 <= token < len(metadata["tokenizer.ggml.tokens"])
    }


def _from_folder(folder: Path) -> Tokenizer:
    backend = _read_backend(folder / "tokenizer.json")
    backend.no_truncation()
    backend.no_padding()
    has_config = (folder / _CONFIG).is_file()
    config = read_json(folder, _CONFIG) if has_config else {}
    source = _template_source(folder, config)
    tokens = _token_texts(config)
    prefix = backend.encode("", add_special_tokens=True).ids
    return Tokenizer(backend, ChatTemplate(source, tokens) if source else None, prefix)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    text = path.read_text("utf-8")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower kind
        raise ValueError(str(error)) from error


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    stored = folder / "chat_template.jinja"
    if stored.exists():
        return stored.read_text("utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = (entry for entry in source if isinstance(entry, Mapping))
        usual = (entry.get("template") for entry in named if entry.get("name") == "default")
        source = next(usual, None)
    return source if isinstance(source, str) else None


def _token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str):
            texts[name] = text
    return texts


def _control_literals(backend: tokenizers.Tokenizer, template: ChatTemplate | None) -> list[str]:
    """Texts that steer the model: special tokens, and added ones that the template writes."""
    source = template.source if template else ""
    added: Iterable[tokenizers.AddedToken] = backend.get_added_tokens_decoder().values()
    literals = {token.content for token in added if token.special or token.content in source}
    return sorted(literals, key=len, reverse=True)


def _without_controls(backend: tokenizers.Tokenizer, literals: set[str]) -> tokenizers.Tokenizer:
    """A twin over the same model that takes every control token's literal for ordinary text."""
    twin = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(backend, part) is not None:
            setattr(twin, part, getattr(backend, part))
    added = backend.get_added_tokens_decoder()
    kept = [added[index] for index in sorted(added) if added[index].content not in literals]
    twin.add_tokens(
        [token for token in kept if backend.model.token_to_id(token.content) is not None]
    )
    return twin
