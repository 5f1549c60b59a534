"""Output tokens a second and time to the first of them, beside vLLM's and llama.cpp's servers.

The same model, the same client (`vllm bench serve`, random prompts), two cores for server and
client together. Every server is started once and gets as much memory for its KV cache. They take
turns load by load, and while one is measured the others are stopped; a figure is the median of all
rounds. Prompts of a load differ from round to round, so that no prefix cache knows them, and are
the same for all servers. A request that fails, or comes short of tokens, leaves no figure.

The environment says where everything is: VLLM_VENV is a venv with vLLM, MODEL_DIR a model folder,
and LLAMA_SERVER, which may be missing, llama.cpp's server. It serves the demo model's GGUF file as
it is, whose weights have some four bits; that its answers have the length that was asked for has to
be believed, because it does not tell the client. vLLM is started with the settings that were found
best on two cores (`servers.py`); its own variables in the environment win, VLLM_ARGS adds flags.

Beside each figure stands its share of the machine's limit (`limits.py`). A table tells where our
own steps spend their time (`step_parts.py`). The exit status is 3 where the peer is missing, 1
where figures are, and 0 otherwise: targets are told, not enforced.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import torch

sys.path.append(str(Path(__file__).parent))
import limits
import servers
import step_parts
from machine import heading
from serving_load import Client, Incomplete, Load, Measured
from serving_rows import VARIANTS, Row, header, targets, verdict
from startup import http_token, start_to

from cadenza.checkpoints.locate import locate
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import EngineConfig

CORES = 2
STREAMS = (1, 8, 32)
LENGTHS = ((128, 64), (1024, 128))  # tokens in and out
ROUNDS = 3
WITHIN_S = 5.0  # from process start to the first token, of the demo model

MISSING_FIGURES, NO_PEER = 1, 3


class Turns:
    """Servers that are measured one after the other, again and again."""

    def __init__(self, client: Client, sides: Sequence[servers.Server]) -> None:
        self._client = client
        self._sides = sides
        self._measured: defaultdict[tuple[str, Load], list[Measured | None]] = defaultdict(list)
        for side in sides:
            side.stand_still()

    def take(self, load: Load, seed: int) -> None:
        """Measure a load on each."""
        for side in self._sides:
            side.go_on()
            try:
                side.ask(f"Round {seed}, once upon a time", 8)  # what stood still wakes up
                measured = self._client.measure(side, load, seed)
            except (Incomplete, httpx.HTTPError) as error:
                print(f"{side.name}, {load}: no figure: {error}", flush=True)
                measured = None
            finally:
                side.stand_still()
            if measured:
                tok_s, ttft_ms = measured
                print(f"{side.name:10}{load!s:>16}{tok_s:10.1f} tok/s{ttft_ms:10.0f} ms to first")
            sys.stdout.flush()
            self._measured[side.name, load].append(measured)

    def median(self, name: str, load: Load) -> Measured | None:
        """Of all rounds, or None if one of them has no figure."""
        rounds = self._measured[name, load]
        whole = [measured for measured in rounds if measured]
        if not whole or len(whole) < len(rounds):
            return None
        return Measured(*map(median, zip(*whole, strict=True)))


class Places(NamedTuple):
    """What the environment names."""

    vllm: Path | None
    model: Path | None
    llama: Path | None

    @classmethod
    def found(cls) -> Places:
        def named(variable: str, within: str = "") -> Path | None:
            path = Path(os.environ.get(variable, "nowhere"))
            return path if (path / within).exists() else None

        return cls(
            named("VLLM_VENV", "bin/vllm"), named("MODEL_DIR", "config.json"), named("LLAMA_SERVER")
        )


def measure(options: argparse.Namespace, venv: Path, model: Path, llama: Path | None) -> list[Row]:
    """All loads beside all peers."""
    size = limits.ModelSize.of(model)
    loads = [Load(streams, *lengths) for lengths in options.lengths for streams in options.streams]
    variants = [VARIANTS[name] for name in options.quantization]
    launches = [servers.ours(model, each.name, each.options) for each in variants]
    peers = [servers.vllm(venv, model)]
    if llama:
        longest = max(load.input + load.output for load in loads) + 64
        demo = locate("demo").path
        peers.append(servers.llama_cpp(llama, demo, max(options.streams), longest))
    pace = limits.measure(size)
    with ExitStack() as stack:
        sides = []
        for launch in (*launches, *peers):
            sides.append(stack.enter_context(servers.running(launch)))
            sides[-1].stand_still()
        turns = Turns(Client(venv, model), sides)
        turns.take(Load(8, 128, 16), 0)  # warms up
        for round_ in range(options.rounds):
            pace = pace.or_better(limits.measure(size))
            for index, load in enumerate(loads):
                turns.take(load, 1 + round_ * len(loads) + index)
    print(
        f"\nThe machine reads {pace.bytes / 1e9:.1f} GB/s and multiplies"
        f" {pace.operations / 1e9:,.0f}e9 operations a second in bf16,"
        f" {pace.int8_operations / 1e9:,.0f}e9 in int8."
    )
    return [
        Row(
            variant,
            peer.name,
            load,
            turns.median(variant.name, load),
            turns.median(peer.name, load),
            limits.limit(load, size, pace, int8=variant.quantization == "int8"),
        )
        for variant in variants
        for peer in peers
        for load in loads
    ]


def measure_parts(model: Path, streams: Sequence[int], name: str) -> list[step_parts.Stage]:
    """Of one of our variants."""
    config = EngineConfig(
        model=str(model),
        dtype="bfloat16",
        quantization=VARIANTS[name].quantization,
        max_model_len=servers.MAX_MODEL_LEN,
        kv_cache_bytes=servers.KV_GIB << 30,
        log_level="warning",
    )
    return step_parts.measure(config, [Load(each, *LENGTHS[0]) for each in streams])


def show_parts(model: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """Print the parts of a step of each variant, and return what a program reads of them."""
    told: list[dict[str, object]] = []
    for name in options.quantization:
        parts = measure_parts(model, options.streams, name)
        print(f"\n{name}")
        step_parts.show(parts)
        told += [{"quantization": name, **figures} for figures in step_parts.figures(parts)]
    return told


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--streams", type=int, nargs="+", default=STREAMS, help="as many at a time alone"
    )
    parser.add_argument(
        "--lengths", type=_lengths, nargs="+", default=LENGTHS, help="such as 128x64: in, out"
    )
    parser.add_argument(
        "--quantization",
        choices=VARIANTS,
        nargs="+",
        default=list(VARIANTS),
        help="what we are served as; all of them, beside the same peers",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--parts-only", action="store_true", help="where our steps spend their time; exits 0"
    )
    return parser.parse_args()


def _lengths(text: str) -> tuple[int, int]:
    input_, _, output = text.partition("x")
    return int(input_), int(output)


def main() -> int:
    options, places = parse(), Places.found()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with us
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    configure_logging("warning")
    print(heading())
    model = places.model or locate("demo").path
    if options.parts_only:
        show_parts(model, options)
        return 0
    start_s = median(start_to(http_token) for _ in range(options.rounds))
    print(f"Process start to first token, the demo model: {start_s:.1f} s,", end=" ")
    print(f"within {WITHIN_S:.0f}: {verdict(start_s <= WITHIN_S)}\n", flush=True)
    rows: list[Row] = []
    if places.vllm and places.model:
        if servers.find_tcmalloc() is None:
            print("vLLM runs without tcmalloc: Debian's libtcmalloc-minimal4 is not installed.")
        rows = measure(options, places.vllm, places.model, places.llama)
        print("\n".join((header(), *map(str, rows), *targets(rows), "")), flush=True)
    else:
        missing = "VLLM_VENV must name a venv with vLLM, and MODEL_DIR a model folder."
        print(f"No peer to compare with: {missing}", file=sys.stderr, flush=True)
    parts = show_parts(model, options)
    told = {
        "serving": [row.figures() for row in rows],
        "start_to_first_token_s": round(start_s, 2),
        "steps": parts,
    }
    print(json.dumps(told))
    if not rows:
        return NO_PEER
    return 0 if all(row.ratio for row in rows) else MISSING_FIGURES


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
