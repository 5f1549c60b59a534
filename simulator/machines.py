"""Machines whose step times are known, those read from a file, and rooflines for the rest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.policies.errors import quoted, unknown
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.step_time import StepTime, step_time_of

FORMAT = "cadenza-machine"
ROOFLINE = "roofline:"
_VERSION = 1

# What an engine may be limited to, and the most of each
LIMITS = {
    "num_blocks": 1 << 26,
    "block_size": 1 << 16,
    "num_host_blocks": 1 << 26,
    "max_num_seqs": 1 << 16,
    "max_num_batched_tokens": 1 << 24,
    "max_model_len": 1 << 24,
}
_MS = 1e-3
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model on a device."""

    name: str
    source: str  # where its figures come from
    step_time: StepTime
    copy_token_s: float = 0.0  # keys and values of a token to the host, or back; 0: not known
    limits: Mapping[str, int] = field(default_factory=dict)  # of its engine, where they are known

    def __post_init__(self) -> None:
        """Raises SimulatorError for a limit or a time that cannot be."""
        check_limits(self.limits)
        if not 0 <= self.copy_token_s < 1:
            raise SimulatorError(f"copy_token_s must be from 0 to 1, and is {self.copy_token_s:g}")

    def encoded(self) -> dict[str, Any]:
        """As `load_machine` reads it."""
        return {"format": FORMAT, "version": _VERSION, **dataclasses.asdict(self)}


def check_limits(limits: Mapping[str, object]) -> None:
    """Make sure that an engine may have these.

    Raises:
        SimulatorError: there is no such limit, or one is no whole number or too large.
    """
    for name, value in limits.items():
        if name not in LIMITS:
            raise SimulatorError(unknown("limit", name, LIMITS))
        least = 0 if name == "num_host_blocks" else 1
        if type(value) is not int or not least <= value <= LIMITS[name]:
            raise SimulatorError(
                f"{name} must be a whole number from {least} to {LIMITS[name]}, "
                f"and is {quoted(value)}"
            )


def _milliseconds(knee: int, **values: float) -> StepTime:
    return StepTime(knee=knee, **{f"{name}_s": value * _MS for name, value in values.items()})


_KERNELS = "fit to kernel profiles of vLLM 0.19 published with LLMServingSim 2.0, Llama-3.1-8B bf16"
_SPLITWISE = "decodes: fit to the Splitwise measurements, Llama-2-70B; prefills: roofline"
# Bytes of a token's keys and values, over one way of the machine's PCIe in bytes a second
_COPY_8B = 128 * 1024

MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            name="rtx-4090-llama-3.1-8b",
            source=f"{_KERNELS}, within 3.9 %",
            step_time=_milliseconds(
                128,
                fixed=18.17,
                token=0.08954,
                decode=0.02864,
                context=1.39e-4,
                attention=2.96e-6,
                prefill_context=8.68e-4,
                mixed_context=2.07e-4,
                mixed=0.032,
            ),
            copy_token_s=_COPY_8B / 22e9,
            limits={"num_blocks": 2588, "block_size": 16},
        ),
        Machine(
            name="rtx-pro-6000-llama-3.1-8b",
            source=f"{_KERNELS}, within 3.6 %",
            step_time=_milliseconds(
                128,
                fixed=11.63,
                token=0.03517,
                decode=0.01535,
                context=8.90e-5,
                attention=1.44e-6,
                prefill_context=5.74e-4,
                mixed_context=7.98e-5,
            ),
            copy_token_s=_COPY_8B / 50e9,
        ),
        Machine(
            name="h100-tp8-llama-2-70b",
            source=_SPLITWISE,
            step_time=_milliseconds(166, fixed=29.9, token=0.0393, decode=0.199, context=1.79e-4),
        ),
        Machine(
            name="a100-tp8-llama-2-70b",
            source=_SPLITWISE,
            step_time=_milliseconds(73, fixed=44.1, token=0.1476, decode=0.190, context=3.35e-4),
        ),
    )
}


class _Device(NamedTuple):
    """Peak of 16-bit products, memory, the share of the peak that serving reaches, and PCIe."""

    flops: float  # a second
    bandwidth: float  # bytes a second
    utilisation: float
    copy_bandwidth: float  # bytes a second, one way


# As the simulator BLIS has calibrated them
DEVICES = {
    "h100": _Device(989e12, 3.35e12, 0.45, 50e9),
    "a100": _Device(312e12, 2.04e12, 0.38, 24e9),
    "l40s": _Device(362e12, 0.86e12, 0.32, 24e9),
}


class _Model(NamedTuple):
    params: float = 8.03e9
    layers: float = 32
    hidden: float = 4096
    kv_bytes: float = 131072  # of a token
    gpus: float = 1  # that share every product


def roofline(device: str, **model: float) -> Machine:
    """What the device's peaks allow: no launch, no interference, 16-bit weights.

        fixed_s = weights / bandwidth, up to a knee where as many products take as long
        token_s = 2 params / flops    attention_s = 4 layers hidden / flops
        context_s = kv_bytes / bandwidth

    Raises:
        SimulatorError: there is no such device, or no such property, or one is not above 0.
    """
    if device not in DEVICES:
        raise SimulatorError(unknown("device", device, DEVICES))
    for name, value in model.items():
        if name not in _Model._fields:
            raise SimulatorError(unknown("property", name, _Model._fields, "properties"))
        if not 0 < value < float("inf"):
            raise SimulatorError(f"{name} must be above 0, and is {value:g}")
    limits, size = DEVICES[device], _Model(**model)
    flops = limits.flops * limits.utilisation * size.gpus
    bandwidth = 0.8 * limits.bandwidth * size.gpus
    fixed_s, token_s = 2 * size.params / bandwidth, 2 * size.params / flops
    facts = ", ".join(f"{name}={value:g}" for name, value in size._asdict().items())
    return Machine(
        name=f"{ROOFLINE}{device}",
        source=f"roofline of {device}: {facts}; an estimate that no run was compared with",
        step_time=StepTime(
            fixed_s=fixed_s,
            knee=int(fixed_s / token_s),
            token_s=token_s,
            context_s=size.kv_bytes / bandwidth,
            attention_s=4 * size.layers * size.hidden / flops,
        ),
        copy_token_s=size.kv_bytes / size.gpus / limits.copy_bandwidth,
    )


def machine_of(name: str) -> Machine:
    """A known machine, a file of `cadenza calibrate`, or roofline:DEVICE,params=...,layers=...

    Raises:
        SimulatorError: it is none of these.
    """
    if name in MACHINES:
        return MACHINES[name]
    if name.startswith(ROOFLINE):
        device, _, pairs = name.removeprefix(ROOFLINE).partition(",")
        return roofline(device, **_numbers(pairs))
    if "." in name or "/" in name:
        path = Path(name)
        if path.exists() or path.suffix == ".json":
            return load_machine(path)
    raise SimulatorError(
        unknown("machine", name, MACHINES)
        + f"; or name a file of `cadenza calibrate`, or {ROOFLINE}{'|'.join(DEVICES)},params=..."
    )


def load_machine(path: Path) -> Machine:
    """From a file of `cadenza calibrate`.

    Raises:
        SimulatorError: it is none.
    """
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SimulatorError(f"{path} is no JSON of `cadenza calibrate`") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SimulatorError(f"{path} describes no machine: it lacks format {FORMAT!r}")
    if content.get("version") != _VERSION:
        raise SimulatorError(
            f"{path} has version {quoted(content.get('version'))}, and this is {_VERSION}"
        )
    return _decoded(path, content)


def _decoded(path: Path, content: Mapping[str, Any]) -> Machine:
    coefficients = content.get("step_time")
    if not isinstance(coefficients, dict):
        raise SimulatorError(f"{path} has no step_time")
    copy_s, limits = content.get("copy_token_s", 0.0), content.get("limits", {})
    if not isinstance(copy_s, (int, float)) or not isinstance(limits, dict):
        raise SimulatorError(f"{path}: copy_token_s must be a number, and limits a table")
    try:
        return Machine(
            name=str(content.get("name", path.stem)),
            source=str(content.get("source", path)),
            step_time=step_time_of(coefficients),
            copy_token_s=copy_s,
            limits=limits,
        )
    except SimulatorError as error:
        raise SimulatorError(f"{path}: {error}") from error


def _numbers(pairs: str) -> dict[str, float]:
    values = {}
    for pair in filter(None, pairs.split(",")):
        name, _, text = pair.partition("=")
        try:
            values[name] = float(text)
        except ValueError as error:
            raise SimulatorError(f"{quoted(pair)} is not of the form NAME=NUMBER") from error
    return values
