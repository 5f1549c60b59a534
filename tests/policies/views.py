"""Views made by hand, as a policy gets them."""

from typing import Any

import numpy as np

from cadenza.policies import RequestColumns, StepView

STEP = StepView(
    step_id=0,
    now_s=0.0,
    free_blocks=100,
    total_blocks=100,
    block_size=10,
    free_seats=8,
    token_budget=64,
    free_host_blocks=0,
    preemptions=0,
)


def columns(**values: list[Any]) -> RequestColumns:
    """These columns; one choice each, and nobody parked, unless they say otherwise."""
    arrays = {name: np.array(column) for name, column in values.items()}
    num = len(next(iter(arrays.values())))
    arrays.setdefault("choices", np.ones(num, dtype=np.int64))
    arrays.setdefault("parked", np.zeros(num, dtype=bool))
    return RequestColumns(arrays, np.arange(num))


def requests(
    prompt: list[int],
    generated: list[int] | None = None,
    max_tokens: list[int] | None = None,
    blocks_held: list[int] | None = None,
    choices: list[int] | None = None,
) -> RequestColumns:
    """What reservations look at; waiting requests hold no blocks."""
    size = len(prompt)
    generated = generated or [0] * size
    values = {
        "prompt_tokens": prompt,
        "num_tokens": [sum(both) for both in zip(prompt, generated, strict=True)],
        "generated_tokens": generated,
        "max_tokens": max_tokens or [1] * size,
        "blocks_held": blocks_held or [0] * size,
        "choices": choices or [1] * size,
    }
    return columns(**{name: np.array(column, dtype=np.int64) for name, column in values.items()})


NOBODY = requests([])
