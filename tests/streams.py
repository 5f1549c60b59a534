"""Streams of server-sent events held against the answers that are not streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

Options = Mapping[str, Sequence[Any]]
"""Field -> the values that it may have."""


SHARES = 8  # the whole product takes many minutes


def every(options: Options) -> Iterator[dict[str, Any]]:
    """The product of all options."""
    for values in product(*options.values()):
        yield dict(zip(options, values, strict=True))


def share(options: Options, nth: int) -> Iterator[dict[str, Any]]:
    """One of SHARES parts of the product, which differ from one `nth` to the next."""
    return islice(every(options), nth % SHARES, None, SHARES)


def pairs(options: Options) -> list[dict[str, Any]]:
    """Few combinations in which every two values of different options meet."""
    missing = {
        (left, x, right, y)
        for left, right in combinations(options, 2)
        for x, y in product(range(len(options[left])), range(len(options[right])))
    }
    chosen = []
    indices = list(product(*(range(len(values)) for values in options.values())))
    while missing:
        best = max(indices, key=lambda places: len(missing & _met(options, places)))
        missing -= _met(options, best)
        chosen.append({name: options[name][i] for name, i in zip(options, best, strict=True)})
    return chosen


def _met(options: Options, places: Sequence[int]) -> set[tuple[str, int, str, int]]:
    taken = list(zip(options, places, strict=True))
    return {(left, x, right, y) for (left, x), (right, y) in combinations(taken, 2)}


def body_of(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A call's path and body, from options by completions' names; None leaves a field out.

    `path`, `prompt`, `usage` (None, "once" or "always") and `settings` (several fields) are not
    fields of their own.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    fields |= fields.pop("settings", {})
    path, prompt = fields.pop("path"), fields.pop("prompt")
    usage = fields.pop("usage", None)
    if usage is not None:
        always = {"continuous_usage_stats": True} if usage == "always" else {}
        fields["stream_options"] = {"include_usage": True, **always}
    if path == COMPLETIONS:
        return path, {"prompt": prompt, **fields}
    if "logprobs" in fields:
        fields["top_logprobs"], fields["logprobs"] = fields["logprobs"], True
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": prompt}]
    return path, {"messages": said, "continue_final_message": True, **fields}


def assert_alike(path: str, body: Mapping[str, Any], events: list[Any], whole: Any) -> None:
    """The stream is well formed, and joins to what `whole` says. Of caches either may find more."""
    assert events.pop() == "[DONE]"
    assert "[DONE]" not in events
    usage = _take_usage(events, body.get("stream_options"))
    heads = {(event["id"], event["object"], event["created"], event["model"]) for event in events}
    assert len(heads) == 1
    told: dict[int, dict[str, Any]] = {}
    for event in events:
        [part] = event["choices"]
        _add(path, told.setdefault(part["index"], {}), part)
    assert [told[index] for index in sorted(told)] == [
        _plain(path, choice) for choice in whole["choices"]
    ]
    if usage is not None:
        expected = dict(whole["usage"])
        for each in (usage, expected):
            del each["prompt_tokens_details"]
        assert usage == expected


def _take_usage(events: list[Any], options: Any) -> dict[str, Any] | None:
    """Look at the usage where it must be, and only there."""
    if options is None:
        assert all("usage" not in event for event in events)
        return None
    last = events.pop()
    assert last["choices"] == []
    if "continuous_usage_stats" in options:
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        assert counts[-1] == last["usage"]["completion_tokens"]
    else:
        assert all(event["usage"] is None for event in events)
    return dict(last["usage"])


def _add(path: str, told: dict[str, Any], part: Mapping[str, Any]) -> None:
    """One more chunk of a choice."""
    is_first = not told
    assert told.setdefault("finish_reason", None) is None, "something follows a choice's end"
    text = part["delta"].get("content", "") if path == CHAT else part["text"]
    if path == CHAT:
        assert ("role" in part["delta"]) == is_first
    is_empty = not (text or part["logprobs"] or part["finish_reason"] or is_first)
    assert not is_empty, "a chunk that says nothing"
    assert not (part["finish_reason"] and text), "the last chunk has text"
    told["text"] = told.get("text", "") + text
    told["finish_reason"], told["stop_reason"] = part["finish_reason"], part.get("stop_reason")
    told.setdefault("logprobs", None)
    if part["logprobs"]:
        told["logprobs"] = told["logprobs"] or {}
        for name, values in part["logprobs"].items():
            if values is not None:
                told["logprobs"].setdefault(name, []).extend(values)


def _plain(path: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A whole choice in the same form."""
    logprobs = choice["logprobs"] and {
        name: values for name, values in choice["logprobs"].items() if values is not None
    }
    return {
        "finish_reason": choice["finish_reason"],
        "text": choice["message"]["content"] if path == CHAT else choice["text"],
        "stop_reason": choice["stop_reason"],
        "logprobs": logprobs,
    }
