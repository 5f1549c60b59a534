"""The words of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Delta, Finished, PositionLogprobs
from cadenza.service.http.call import Call, parse_call
from cadenza.service.http.dialect import ChoiceState
from cadenza.service.http.logprobs import floor

MAX_PROMPTS = 64
_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_NEWER_NAME = "max_completion_tokens"  # of max_tokens, which chat clients use here too


class Completions:
    """Implements `Dialect`."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"
    scores_choices = True

    def parse(self, body: Mapping[str, Any]) -> Call:
        name = "max_tokens" if body.get("max_completion_tokens") is None else _NEWER_NAME
        max_tokens = body.get(name)
        common = {
            "max_tokens": _DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            "logprobs": _wanted_logprobs(body),
        }
        return parse_call(body, _prompts(body.get("prompt")), common, {"max_tokens": name})

    def opening(self, choice: ChoiceState) -> None:
        return None

    def delta(self, choice: ChoiceState, delta: Delta) -> dict[str, Any]:
        return _choice(choice, delta.text, delta.logprobs)

    def ending(self, choice: ChoiceState, finished: Finished) -> dict[str, Any]:
        ending = _choice(choice, "", ())
        ending["finish_reason"] = finished.reason.value
        ending["stop_reason"] = finished.stop_reason
        return ending

    def keep_logprobs(self, choice: ChoiceState, logprobs: Sequence[PositionLogprobs]) -> None:
        for name, values in _logprobs(choice, logprobs).items():
            choice.logprobs[name].extend(values)

    def whole(self, choice: ChoiceState) -> dict[str, Any]:
        assert choice.finished is not None
        whole = _choice(choice, "".join(choice.texts), ())
        if choice.logprobs:
            whole["logprobs"] = {name: told.whole() for name, told in choice.logprobs.items()}
        whole["finish_reason"] = choice.finished.reason.value
        whole["stop_reason"] = choice.finished.stop_reason
        if choice.prompt_logprobs is not None:
            whole["prompt_logprobs"] = choice.prompt_logprobs
        return whole


def _wanted_logprobs(body: Mapping[str, Any]) -> Any:
    """The number; false is none of them. Chat's `top_logprobs` has no meaning here."""
    if body.get("top_logprobs") not in (None, 0):
        raise InvalidRequest("Completions have no top_logprobs, only logprobs.", "top_logprobs")
    logprobs = body.get("logprobs")
    return None if logprobs is False else logprobs


def _prompts(prompt: Any) -> list[dict[str, Any]]:
    """A text, ids, or a list of either."""
    if prompt is None:
        raise InvalidRequest("prompt is missing.", "prompt")
    if isinstance(prompt, str):
        return [{"text": prompt}]
    if not isinstance(prompt, list):
        raise InvalidRequest(
            "prompt must be a text, a list of token ids, or lists of these.", "prompt"
        )
    if prompt and isinstance(prompt[0], str | list):
        if len(prompt) > MAX_PROMPTS:
            raise InvalidRequest(f"prompt must have at most {MAX_PROMPTS} elements.", "prompt")
        return [_one_prompt(element) for element in prompt]
    return [{"token_ids": prompt}]


def _one_prompt(element: Any) -> dict[str, Any]:
    if isinstance(element, str):
        return {"text": element}
    if isinstance(element, list):
        return {"token_ids": element}
    raise InvalidRequest("Every element of prompt must be a text or a list of token ids.", "prompt")


def _choice(choice: ChoiceState, text: str, logprobs: Sequence[PositionLogprobs]) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": text,
        "logprobs": _logprobs(choice, logprobs) if logprobs else None,
        "finish_reason": None,
        "stop_reason": None,
    }


def _logprobs(choice: ChoiceState, logprobs: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """Parallel lists. Offsets count the characters of the tokens before, over all chunks."""
    offsets = []
    for position in logprobs:
        offsets.append(choice.num_chars)
        choice.num_chars += len(position.sampled.text)
    return {
        "tokens": [position.sampled.text for position in logprobs],
        "token_logprobs": [floor(position.sampled.logprob) for position in logprobs],
        "top_logprobs": [_best(position) for position in logprobs],
        "text_offset": offsets,
    }


def _best(position: PositionLogprobs) -> dict[str, float | None] | None:
    if position.sampled.logprob is None:
        return None  # the first token of a prompt
    best = {token.text: floor(token.logprob) for token in reversed(position.top)}
    best.setdefault(position.sampled.text, floor(position.sampled.logprob))
    return best
