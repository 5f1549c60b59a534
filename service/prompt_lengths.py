"""How long prompts are in tokens, before they are encoded."""

from __future__ import annotations

import math

from cadenza.service.prompt import Prompt

_TOKENS_PER_CHARACTER = 0.25  # of English text, until prompts have been seen
_DECAY = 0.99  # of what was learned, at each further prompt


class PromptLengths:
    """Estimates by characters, learned from prompts that were encoded."""

    def __init__(self) -> None:
        self._tokens, self._chars = _TOKENS_PER_CHARACTER, 1.0

    def of(self, prompt: Prompt) -> int:
        """Tokens of a prompt, at least 1; exact where the client sent them."""
        if prompt.token_ids is not None:
            return prompt.num_former + len(prompt.token_ids)
        said = math.ceil(prompt.num_chars * self._tokens / self._chars)
        return prompt.num_former + max(1, said)

    def learn(self, prompt: Prompt, tokens: int) -> None:
        """Take in that `prompt` became so many tokens, those of a chat's template included."""
        if prompt.token_ids is None:
            self._tokens = _DECAY * self._tokens + max(0, tokens - prompt.num_former)
            self._chars = _DECAY * self._chars + prompt.num_chars
