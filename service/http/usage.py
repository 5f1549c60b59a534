"""OpenAI's usage object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cadenza.service.generation import Generation


def usage(generations: Iterable[Generation], completion_tokens: int) -> dict[str, Any]:
    """The tokens of one call. A prompt counts once, however many choices it has."""
    generations = list(generations)
    prompt_tokens = sum(generation.prompt_tokens for generation in generations)
    cached_tokens = sum(generation.cached_tokens for generation in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
