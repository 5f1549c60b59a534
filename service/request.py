"""A client's request in our own words: what HTTP and gRPC both become before validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What another request has left for one that goes on from it: its prompt and an output."""

    token_ids: Sequence[int]
    turn_ended: bool = False  # by the last of them, which is not part of the output's text


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Everything a client may ask for. Exactly one of `text`, `token_ids`, `messages` is set.

    With a `former` they are what comes after its tokens, and none of them may be set.

    None means that the client left the field to the default. Values are as the client sent them:
    `Generator.submit` checks them all, and names the field of the first that is wrong.
    """

    model: str | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None  # OpenAI chat messages
    former: Former | None = None  # not the client's word
    add_special_tokens: bool | None = None  # such as BOS; None: before a text, not before a chat
    add_generation_prompt: bool | None = None  # the assistant begins to speak after the messages
    continue_final_message: bool | None = None  # or goes on with the last of them
    chat_template_kwargs: Mapping[str, Any] | None = None  # further variables of the chat template
    truncate_prompt_tokens: int | None = None  # keep so many; -1: what leaves room for the answer
    truncation_side: str | None = None  # "left", where tokens are left out, or "right"
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[Any, float] | None = None  # token id, perhaps as a text -> added to it
    allowed_token_ids: Sequence[int] | None = None  # no others are drawn
    bad_words: Sequence[str] | None = None  # that never come
    seed: int | None = None
    n: int | None = None
    stop: Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool | None = None  # what ends a choice is part of its text
    skip_special_tokens: bool | None = None  # None: yes, they have no text
    echo: bool | None = None  # the text begins with the prompt, or with what the assistant said
    ignore_eos: bool | None = None
    logprobs: int | None = None  # None: none; k: the sampled token's and the k best
    prompt_logprobs: int | None = None  # the prompt's own: None: none; k: each token's and k best
    priority: int | None = None
    cache_salt: str | None = None
    tenant: str | None = None  # whom it counts for, as a gateway says
    ttft_target_s: float | None = None  # within which the client wants the first token
    tpot_target_s: float | None = None  # within which it wants each further one
    credit: int | None = None  # tokens that the reader takes for now; None: without limit
    deadline_s: float | None = (
        None  # when to give it up, by time.monotonic(); not the client's word
    )
