"""A request that may be launched: what the engine is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cadenza.service import tracing
from cadenza.service.choice import TextOptions
from cadenza.service.errors import InvalidRequest
from cadenza.service.generation import Generation
from cadenza.service.prompt import refuse_overlong
from cadenza.service.queue import Places
from cadenza.service.request_timer import RequestTimer
from cadenza.service.validation import CheckedRequest
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Sampling, Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked request with its prompt encoded and its places taken."""

    checked: CheckedRequest
    prompt: Sequence[int]
    sampling: Sampling
    options: TextOptions
    max_tokens: int
    places: Places
    timer: RequestTimer

    def submits(self, first: int, max_rows: int, cache_salt: str) -> list[Submit]:
        """One message for all choices, or several where they are more than the engine has seats.

        `first` is the number of the first choice, which the others follow.

        Raises:
            InvalidRequest: several, of a request whose choices share their credit.
        """
        checked = self.checked
        num_choices = checked.num_choices
        if checked.credit is not None and num_choices > max_rows:
            # Each message opens a credit of its own
            raise InvalidRequest(
                f"n is {num_choices}, but with credit or a stream_id at most {max_rows} choices "
                "run together.",
                "n",
            )
        whole = Submit(
            request=first,
            n=num_choices,
            prompt=pack_ids(self.prompt),
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop_token_ids=checked.stop_token_ids,
            ignore_eos=checked.ignore_eos,
            priority=checked.priority,
            cache_salt=cache_salt,
            tenant=checked.tenant,
            ttft_target_s=checked.ttft_target_s,
            tpot_target_s=checked.tpot_target_s,
            deadline_s=checked.deadline_s,
            credit=checked.credit,
        )
        return [
            msgspec.structs.replace(
                whole, request=first + start, choice=start, n=min(max_rows, num_choices - start)
            )
            for start in range(0, num_choices, max_rows)
        ]

    def traced(self, generation: Generation) -> tracing.Subject:
        """What its trace tells of the request besides times."""
        return tracing.Subject(
            id=generation.id,
            operation="text_completion" if self.checked.prompt.messages is None else "chat",
            model=generation.model,
            sampling=self.sampling,
            caller=tracing.caller(),
        )


def max_tokens(checked: CheckedRequest, prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens may be generated.

    Raises:
        InvalidRequest: the prompt alone, or with max_tokens, exceeds the context.
    """
    room = max_model_len - prompt_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("The prompt has no tokens.", checked.prompt.field)
    refuse_overlong(prompt_tokens, max_model_len, checked.prompt.field)
    if checked.max_tokens is None:
        if checked.min_tokens > room:
            raise InvalidRequest(
                f"min_tokens is {checked.min_tokens}, but a prompt of {prompt_tokens} tokens "
                f"leaves {room} of the model's context of {max_model_len} tokens.",
                "min_tokens",
            )
        return room
    if checked.max_tokens > room:
        raise InvalidRequest(
            f"max_tokens is {checked.max_tokens}, but a prompt of {prompt_tokens} tokens leaves "
            f"{room} of the model's context of {max_model_len} tokens.",
            "max_tokens",
        )
    return checked.max_tokens
