"""Detokenising and stop strings, however the text is cut."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from cadenza.service import token_texts
from cadenza.service.detokenizer import Detokenizer
from cadenza.service.stop_strings import StopStrings
from cadenza.service.token_texts import TokenTexts

from .byte_tokenizer import make_tokenizer

TOKENIZER = make_tokenizer()
BACKEND = TOKENIZER.backend
BYTES = st.integers(0, 255)  # every byte is a token


def decode(ids, prompt=()):
    stream = Detokenizer(BACKEND, list(prompt))
    return [*(stream.push(token) for token in ids), stream.flush()]


@settings(max_examples=300)
@given(st.text(max_size=40), st.text(max_size=10))
@example("\x80", "said before \ufffd")  # a prompt's own U+FFFD is not half a character
@example("\ufffd\x80\ufffd", "")
def test_pieces_join_to_the_text_after_any_prompt(text, prompt):
    ids = TOKENIZER.encode_text(text)
    controls = {BACKEND.token_to_id(name) for name in ("<|end|>", "<|im_start|>", "<|im_end|>")}
    ids = [token for token in ids if token not in controls]
    pieces = decode(ids, TOKENIZER.encode_text(prompt))

    assert "".join(pieces) == BACKEND.decode(ids)


@settings(max_examples=300)
@given(st.lists(BYTES, max_size=60))
@example(TOKENIZER.encode_text("\ufffd") * 3)
def test_any_bytes_become_their_text_in_bounded_time(ids):
    pieces = decode(ids)
    assert "".join(pieces) == BACKEND.decode(ids)
    silent = 0
    for piece in pieces[:-1]:
        silent = 0 if piece else silent + 1
        assert silent <= 4
    "".join(pieces).encode()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), st.data())
def test_valid_text_after_invalid_bytes_is_whole_again(text, data):
    lone = TOKENIZER.encode_text("č")[0]
    ids = [lone] * data.draw(st.integers(1, 4)) + TOKENIZER.encode_text("a" + text)

    assert "".join(decode(ids)).endswith("a" + text)


def byte_fallback():
    """A tokenizer as Llama's: words with their spaces, and bytes for all else."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581a", "b"]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    spaces = decoders.Replace("\u2581", " ")
    strip = decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    return backend


FALLBACK = byte_fallback()
WORDS = st.lists(st.sampled_from(["\u9f98", "\U0001f600", "\u2581a", "b", "é"]), max_size=12)


def ids_of(words):
    known = [FALLBACK.token_to_id(word) for word in words]
    return [
        number
        for word, one in zip(words, known, strict=True)
        for number in ([byte + 1 for byte in word.encode()] if one is None else [one])
    ]


@settings(max_examples=300)
@given(WORDS, WORDS, st.integers(0, 3))
@example(["\u9f98"] * 4, ["\u9f98"] * 9, 0)  # eight tokens of the prompt begin within one
def test_bytes_in_a_row_are_characters_whatever_the_prompt_ends_with(prompt, words, cut):
    stream = Detokenizer(FALLBACK, ids_of(["b"] * 4 + prompt)[: -cut or None])
    text = "".join([*(stream.push(token) for token in ids_of(words)), stream.flush()])

    assert text == "".join(words).replace("\u2581", " ")


@pytest.mark.parametrize("prompt", ["\ufffd", "what was asked \ufffd", "č", "asked č"])
def test_no_word_of_the_prompt_is_said_again(prompt):
    ids = TOKENIZER.encode_text(prompt)
    for cut in (0, 1):  # 1: the prompt ends in the middle of a character
        pieces = decode(TOKENIZER.encode_text("é and on"), ids[: len(ids) - cut])

        assert "".join(pieces) == "é and on"


def test_leading_spaces_survive_a_decoder_that_strips_them():
    vocabulary = {"<unk>": 0, "\u2581a": 1, "\u2581b": 2}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    stream = Detokenizer(backend, [1])

    assert "".join([stream.push(2), stream.push(1), stream.flush()]) == " b a"


def test_leading_spaces_survive_tokens_without_text():
    backend = tokenizers.Tokenizer(models.WordLevel({"\u2581a": 0}, unk_token="\u2581a"))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    stream = Detokenizer(backend, [0])

    pieces = [stream.push(token) for token in (0, *[1] * 12, 0, 1, 0)]

    assert "".join(pieces) == " a a a"


def test_a_token_has_a_text_alone_where_no_context_can_change_it():
    end = BACKEND.token_to_id("<|end|>")
    texts = {skip: TokenTexts(BACKEND, skip_special_tokens=skip) for skip in (False, True)}

    assert texts[True][TOKENIZER.encode_text("a")[0]] == "a"
    assert texts[True][TOKENIZER.encode_text("č")[0]] is None  # half a character
    assert (texts[True][end], texts[False][end]) == ("", "<|end|>")


def test_tokens_of_decoders_that_look_at_what_is_around_have_no_text_alone():
    backend = tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    for decoder in (None, decoders.Metaspace(), decoders.WordPiece(), decoders.Strip(" ", 1, 0)):
        if decoder is not None:
            backend.decoder = decoder

        assert TokenTexts(backend, skip_special_tokens=True)[0] is None


def test_tokens_are_encoded_once_and_only_those_that_have_a_text_alone():
    texts = TokenTexts(BACKEND, skip_special_tokens=True)
    asked: list[int] = []

    def encode(token: int, text: str) -> bytes:
        asked.append(token)
        return text.encode()

    [letter], half = TOKENIZER.encode_text("a"), TOKENIZER.encode_text("č")[0]
    end = BACKEND.token_to_id("<|end|>")
    for _ in range(2):
        encoded = texts.encoded(encode)
        assert encoded.find(letter) == b"a"
        assert encoded.find(half) is None
        assert encoded.find(end) == b""
        assert encoded.find(10**6) is None  # beyond the vocabulary, as models have them

    assert asked == [letter, end]


def match(stops, pieces):
    matcher = StopStrings(stops)
    said = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        said += text
        if stop is not None:
            return said, stop
    return said + matcher.flush(), None


AB = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


@settings(max_examples=300)
@given(AB, STOPS, st.lists(st.integers(0, 12)))
def test_the_answer_does_not_depend_on_the_cuts(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]

    assert match(stops, pieces) == match(stops, list(text)) == match(stops, [text])


@given(AB, STOPS)
def test_nothing_that_is_said_holds_a_stop_string(text, stops):
    said, stop = match(stops, list(text))

    assert not any(s in said for s in stops)
    assert stop is not None or said == text
    assert text.startswith(said + (stop or ""))


@pytest.mark.parametrize(("text", "held"), [("aST", "ST"), ("aS", "S"), ("ab", ""), ("STx", "")])
def test_only_a_possible_beginning_is_held(text, held):
    matcher = StopStrings(["STOP", "zz"])

    assert matcher.push(text) == (text.removesuffix(held), None)
    assert matcher.flush() == held


def test_a_vocabulary_is_looked_up_beforehand_and_nothing_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
):
    texts = TokenTexts(BACKEND, skip_special_tokens=True)
    expected = {token: TokenTexts(BACKEND, skip_special_tokens=True)[token] for token in range(99)}
    asked: list[int] = []

    def encode(token: int, text: str) -> bytes:
        asked.append(token)
        return text.encode()

    monkeypatch.setattr(token_texts, "_AT_ONCE", 7)
    asyncio.run(texts.look_up([encode]))
    asked.clear()

    assert len(texts) == texts.vocab_size
    assert {token: texts[token] for token in expected} == expected
    found = [texts.encoded(encode).find(token) for token in expected]
    assert found == [text if text is None else text.encode() for text in expected.values()]
    assert not asked


def test_of_decoders_that_look_at_what_is_around_nothing_is_looked_up():
    backend = tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    texts = TokenTexts(backend, skip_special_tokens=True)

    asyncio.run(texts.look_up([lambda token, text: text.encode()]))

    assert not texts
