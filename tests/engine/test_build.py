"""A whole engine over a tiny model: what it says of itself, and the same tokens under pressure."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from cadenza.engine import startup
from cadenza.engine.build import build_engine, settings_of
from cadenza.engine.channel import Channel
from cadenza.wire.arrays import pack_ids, read_requests, view_ids
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import (
    Counters,
    EngineConfig,
    Finished,
    PolicyConfig,
    Ready,
    Sampling,
    Shutdown,
    Step,
    Submit,
    ToFront,
)
from tests.engine.conftest import random_tokens, save_tiny
from tests.engine.models.tiny import OTHERS, TINY

# 2 layers of keys and values of 2 heads of 10 in fp32, 4 tokens
BLOCK_BYTES = 2 * 2 * 2 * 10 * 4 * 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return str(folder)


def engine_config(model: str, **changes: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "model": model,
            "dtype": "float32",
            "block_size": 4,
            "num_blocks": 400,
            "max_model_len": 48,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "swap_bytes": 0,
            "watermark": 0.0,
            **changes,
        }
    )


@pytest.mark.parametrize(("products", "told"), [("onednn", 1), ("native avx2", 0)])
def test_an_engine_without_compiled_kernels_says_so_once(
    tiny: str, monkeypatch: pytest.MonkeyPatch, products: str, told: int
):
    monkeypatch.setattr(startup, "backend", lambda dtype: products)
    ours, theirs = socket.socketpair()
    with ours, theirs, capture_logs() as logs:
        build_engine(Channel(theirs), engine_config(tiny, num_blocks=40))

    warnings = [line for line in logs if "no C++ kernels" in line["event"]]
    assert [line["products"] for line in warnings] == [products] * told


def test_graphs_without_room_beside_the_cache_are_told_in_a_sentence(
    tiny: str, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(startup.ModelRunner, "capture", full)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="do not fit into memory beside"):
        build_engine(Channel(theirs), engine_config(tiny, num_blocks=40))


@pytest.mark.parametrize(("name", "told"), [("OLMo2", 1), ("Qwen3", 0)])
def test_a_model_that_transformers_runs_is_said_to_be(name: str, told: int, tmp_path: Path):
    (TINY | OTHERS)[name].save(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs, capture_logs() as logs:
        build_engine(Channel(theirs), engine_config(str(tmp_path), num_blocks=40))

    assert sum("run by transformers" in line["event"] for line in logs) == told


class Served(dict[int, list[int]]):
    """Tokens by request; and the counters of the last step."""

    ready: Ready
    counters: Counters


def serve(config: EngineConfig, *submits: Submit) -> Served:
    """Build an engine, serve all of these at once, and shut it down."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    loop = build_engine(Channel(theirs), config)
    # all there before the first step, so that every run is alike
    ours.sendall(b"".join(encode(submit) for submit in submits))
    thread = threading.Thread(target=loop.run)
    thread.start()
    served = Served()
    left = {request for submit in submits for request in rows_of(submit)}
    reader: FrameReader[ToFront] = FrameReader(ToFront)
    while left:
        for message in reader.feed(ours.recv(1 << 16)):
            if isinstance(message, Ready):
                served.ready = message
            if isinstance(message, Step):
                left -= note(served, message)
    ours.sendall(encode(Shutdown()))
    thread.join(10)
    ours.close()
    theirs.close()
    return served


def rows_of(submit: Submit) -> range:
    return range(submit.request, submit.request + submit.n)


def note(served: Served, step: Step) -> set[int]:
    """Take a step's tokens; returns the requests that ended."""
    served.counters = step.counters
    requests = read_requests(step.requests)
    for request, token in zip(requests, view_ids(step.tokens).tolist(), strict=True):
        served.setdefault(request, []).append(token)
    ended = zip(requests, step.finished, strict=True)
    assert Finished.FAILED not in step.finished
    return {request for request, finished in ended if finished != Finished.NOT}


def traffic() -> list[Submit]:
    """Every kind of settings, with and without penalties; one prompt with three choices."""
    settings = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, repetition_penalty=1.5),
        Sampling(seed=3),
        Sampling(seed=4, frequency_penalty=0.8, presence_penalty=0.5),
        Sampling(seed=5, top_p=0.9, repetition_penalty=0.7),
    ]
    submits = [
        Submit(
            request=number,
            prompt=pack_ids(random_tokens(9 + number, seed=number, vocab_size=101)),
            max_tokens=28,
            ignore_eos=True,
            sampling=settings[number % 5],
            may_recompute=number % 2 == 0,
            may_swap=number % 2 == 1,
        )
        for number in range(10)
    ]
    forked = Submit(
        request=100,
        n=3,
        prompt=pack_ids(random_tokens(10, seed=77, vocab_size=101)),
        max_tokens=28,
        ignore_eos=True,
        sampling=Sampling(seed=9, frequency_penalty=0.3),
    )
    return [*submits[:3], forked, *submits[3:]]


@pytest.fixture(scope="module")
def at_leisure(tiny: str) -> Served:
    return serve(engine_config(tiny, max_num_seqs=16), *traffic())


def test_a_pool_that_is_too_small_changes_no_token(tiny: str, at_leisure: Served) -> None:
    """Rows are swapped and forked, and yet get what they get with room for all."""
    config = engine_config(tiny, num_blocks=18, swap_bytes=40 * BLOCK_BYTES)

    crowded = serve(config, *traffic())

    assert at_leisure.counters.preemptions == 0
    assert crowded.counters.swaps > 0
    assert dict(crowded) == dict(at_leisure)
    assert len(set(map(tuple, crowded.values()))) == 13


def test_ready_tells_the_figures_in_force(tiny: str) -> None:
    request = Submit(request=1, prompt=pack_ids([5]), max_tokens=1)
    config = engine_config(tiny, swap_bytes=7 * BLOCK_BYTES + 1)

    served = serve(config, request)

    assert (served.ready.num_blocks, served.ready.num_host_blocks) == (400, 7)
    assert served.ready.vocab_size == 101
    assert served.counters.total_host_blocks == 7


def test_an_engine_without_swap_space_recomputes(tiny: str, at_leisure: Served) -> None:
    crowded = serve(engine_config(tiny, num_blocks=18), *traffic())

    assert crowded.counters.swaps == 0 < crowded.counters.preemptions
    assert dict(crowded) == dict(at_leisure)


def test_a_negative_limit_is_named(tiny: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="max_preemptions -1 is negative"):
        build_engine(Channel(theirs), engine_config(tiny, max_preemptions=-1))


def test_settings_of_a_row_name_its_choice() -> None:
    """Counted from the submit's own, as a service may send choices one by one."""
    hot, cold = Sampling(temperature=2.0), Sampling(temperature=0.1)
    several = Submit(request=10, n=3, choice=2, prompt=b"", max_tokens=1, sampling=hot)
    single = Submit(request=13, choice=1, prompt=b"", max_tokens=1, sampling=cold)
    submits = {10: several, 11: several, 12: several, 13: single}

    found = [settings_of(submits, request) for request in submits]

    assert found == [(hot, 2), (hot, 3), (hot, 4), (cold, 1)]


def test_policies_may_begin_with_a_watermark_of_their_own(tiny: str) -> None:
    ours, theirs = socket.socketpair()
    config = engine_config(tiny, watermark=0.25, policies=PolicyConfig(watermark=0.5))
    with ours, theirs:
        loop = build_engine(Channel(theirs), config)

    assert loop._scheduler._stores.watermark == 200
