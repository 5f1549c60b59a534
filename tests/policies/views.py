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

_PLAIN: dict[str, Any] = {
    "arrival_s": 0.0,
    "waits_since_s": 0.0,
    "last_run_s": 0.0,
    "priority": 0,
    "tenant": 0,
    "deadline_s": np.inf,
    "ttft_target_s": np.inf,
    "tpot_target_s": np.inf,
    "prompt_tokens": 10,
    "computed_tokens": 0,
    "cached_tokens": 0,
    "host_tokens": 0,
    "generated_tokens": 0,
    "max_tokens": 100,
    "predicted_tokens": 0,
    "next_block_key": 0,
    "blocks_held": 0,
    "blocks_alone": 0,
    "admission": -1,
    "preemptions": 0,
    "resumed": False,
    "overtakes": 0,
}


def whole(**values: list[Any]) -> RequestColumns:
    """These columns, and all others as of requests that have just arrived one after another."""
    num = len(next(iter(values.values())))
    plain: dict[str, list[Any]] = {name: [value] * num for name, value in _PLAIN.items()}
    plain |= {"arrival": list(range(num)), "request": list(range(num))} | values
    if "num_tokens" not in plain:
        lengths = zip(plain["prompt_tokens"], plain["generated_tokens"], strict=True)
        plain["num_tokens"] = [sum(both) for both in lengths]
    return columns(**plain)


def order_of(scores: np.ndarray, waiting: RequestColumns) -> list[int]:
    """Indices as they would be admitted; those that are kept out are not among them."""
    order = np.lexsort((waiting.arrival, scores))
    return [index for index in order.tolist() if scores[index] < np.inf]
