"""How many log-probabilities one call may ask for, whatever protocol it came by."""

from __future__ import annotations

from collections.abc import Sequence

from cadenza.service.errors import InvalidRequest
from cadenza.service.prompt import Prompt
from cadenza.service.validation import CheckedRequest

MAX_LOGPROBS = 1 << 20  # some 130 MB of JSON


def refuse_costly(requests: Sequence[CheckedRequest], max_model_len: int) -> None:
    """Refuse a call that may ask for more than MAX_LOGPROBS, counted before a prompt is encoded.

    Raises:
        InvalidRequest: it may. Without max_tokens it may fill the model's context.
    """
    most = sum(_most(request, max_model_len) for request in requests)
    if most > MAX_LOGPROBS:
        raise InvalidRequest(
            f"logprobs for up to {most} tokens and alternatives are more than {MAX_LOGPROBS}: "
            "ask for fewer, or for a smaller max_tokens or n.",
            "prompt_logprobs" if requests[0].sampling.logprobs is None else "logprobs",
        )


def _most(request: CheckedRequest, max_model_len: int) -> int:
    prompt, text = request.prompt, request.text
    generated = max_model_len if request.max_tokens is None else request.max_tokens
    told = _at_each(request.sampling.logprobs) * (generated if text.generates else 0)
    scored = _at_each(text.prompt_logprobs)
    most = told * request.num_choices
    if echoed := _at_each(text.echoed_logprobs):
        most += echoed * request.num_choices * _longest(prompt, max_model_len)
    if scored:
        # Completions tell them in every choice
        times = request.num_choices if prompt.messages is None else 1
        most += scored * times * _longest(prompt, max_model_len)
    return most


def _at_each(best: int | None) -> int:
    """Log-probabilities that are told of one token."""
    return 0 if best is None else best + 1


def _longest(prompt: Prompt, max_model_len: int) -> int:
    """Tokens that a prompt has at most."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    if prompt.text is not None:
        return min(4 * len(prompt.text) + 1, max_model_len)  # a byte each
    return max_model_len
