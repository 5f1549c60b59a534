"""`cadenza serve` from its flags to what the front and the engine are told. Nothing is started."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
import structlog

from cadenza.checkpoints.locate import locate
from cadenza.cli import serve
from cadenza.cli.main import main
from cadenza.cli.options import ServeOptions
from cadenza.service import engine_process
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.metrics import NO_TENANT, OTHER_TENANTS
from cadenza.service.rpc.connections import ConnectionAge
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import EngineConfig, PolicyConfig, Ready, Start, ToEngine

READY = Ready(
    max_model_len=2048,
    vocab_size=100,
    eos_token_ids=(0,),
    num_blocks=512,
    num_host_blocks=256,
    block_size=16,
    max_num_seqs=64,
    max_num_batched_tokens=256,
    device="cpu",
    dtype="bfloat16",
    load_s=2.345,
)


class FrontStub:
    """In place of the front: keeps its configuration, and ends as it is told to."""

    configs: list[FrontConfig]
    is_ready = True
    ends: str | OSError | None = None

    def __init__(self, config: FrontConfig, *_: object, on_ready: Callable[..., None], **__: Any):
        self.configs.append(config)
        self._on_ready = on_ready

    async def run(self) -> str | None:
        if self.is_ready:
            self._on_ready(READY, Addresses("127.0.0.1", 8123, 50123))
        if isinstance(self.ends, OSError):
            raise self.ends
        return self.ends


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[FrontStub]:
    """The stub that this test's `cadenza serve` runs."""

    class Stub(FrontStub):
        configs: list[FrontConfig] = []  # noqa: RUF012 - one class a test

    monkeypatch.setattr(serve, "Front", Stub)
    never_started = SimpleNamespace(end=lambda: None)
    monkeypatch.setattr(engine_process, "start_engine", lambda: never_started)
    monkeypatch.setattr(serve, "load_tokenizer", lambda path: None)
    monkeypatch.setattr(serve, "configure_logging", lambda level: None)
    monkeypatch.setattr(serve, "freeze_heap", lambda: sys.stdout.write("frozen\n"))
    at_warnings = structlog.make_filtering_bound_logger(logging.WARNING)  # as it is by default
    monkeypatch.setattr(serve, "_log", structlog.wrap_logger(None, wrapper_class=at_warnings))
    return Stub


def status_of(*arguments: str) -> int:
    """The exit status of the whole command."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def config_of(stub: type[FrontStub], *flags: str) -> FrontConfig:
    assert status_of("serve", "demo", *flags) == 0
    return stub.configs[-1]


FRONT_FLAGS: list[tuple[list[str], str, Any]] = [
    (["--host", "::1"], "host", "::1"),
    (["--host", "localhost"], "host", "localhost"),
    (["--host", "0.0.0.0", "--allow-unauthenticated"], "host", "0.0.0.0"),
    (["--port", "1234"], "port", 1234),
    (["--grpc-port", "0"], "grpc_port", 0),
    (["--served-model-name", "a", "--served-model-name", "b"], "model_names", ("a", "b")),
    (["--shutdown-timeout", "1.5"], "shutdown_timeout_s", 1.5),
    ([], "grpc_connection_age", ConnectionAge()),
    (
        ["--grpc-connection-age", "1.5", "--grpc-connection-age-grace", "0"],
        "grpc_connection_age",
        ConnectionAge(max_s=1.5, grace_s=0.0),
    ),
    (["--otlp-traces-endpoint", "http://h:1/v1"], "traces_endpoint", "http://h:1/v1"),
    (["--metrics-compat", "none"], "metrics_as_vllm", False),
    (["--metrics-compat", "vllm"], "metrics_as_vllm", True),
    (["--metrics-tenant", "a", "--metrics-tenant", "b"], "metrics_tenants", ("a", "b")),
]

ENGINE_FLAGS: list[tuple[list[str], str, Any]] = [
    (["--device", "cpu"], "device", "cpu"),
    (["--dtype", "float32"], "dtype", "float32"),
    (["--quantization", "int8"], "quantization", "int8"),
    (["--quantization", "fp8"], "quantization", "fp8"),
    ([], "quantization", "none"),
    (["--max-model-len", "512"], "max_model_len", 512),
    ([], "weight_cache_bytes", 4 << 30),
    (["--weight-cache", "0.25"], "weight_cache_bytes", 1 << 28),
    (["--weight-cache", "0"], "weight_cache_bytes", 0),
    (["--threads", "1"], "threads", 1),
    ([], "cores", None),
    (["--engine-cores", "3"], "cores", (3,)),
    (["--engine-cores", "8,0-2,1"], "cores", (0, 1, 2, 8)),
    (["--block-size", "32"], "block_size", 32),
    (["--num-gpu-blocks-override", "9"], "num_blocks", 9),
    (["--num-blocks", "9"], "num_blocks", 9),
    (["--kv-cache-memory-bytes", "4096"], "kv_cache_bytes", 4096),
    (["--gpu-memory-utilization", "0.5"], "gpu_memory_utilization", 0.5),
    (["--deterministic"], "deterministic", True),
    (["--enforce-eager"], "enforce_eager", True),
    (["--swap-space", "0.25"], "swap_bytes", 1 << 28),
    (["--swap-space", "4"], "swap_bytes", 4 << 30),
    (["--swap-space", "0"], "swap_bytes", 0),
    (["--max-num-seqs", "3"], "max_num_seqs", 3),
    (["--max-num-batched-tokens", "77"], "max_num_batched_tokens", 77),
    (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
    (["--watermark", "0.25"], "watermark", 0.25),
    (["--log-level", "error"], "log_level", "error"),
    (
        ["--policy", "reserve_blocks=none"],
        "policies",
        PolicyConfig(chosen={"reserve_blocks": ("none",)}),
    ),
    (
        ["--policy", "reserve=none", "--policy", "order=fcfs"],
        "policies",
        PolicyConfig(chosen={"reserve_blocks": ("none",), "order_admissions": ("fcfs",)}),
    ),
    (["--scheduling-policy", "vllm-like", "--watermark", "0.5"], "watermark", 0.5),
]


@pytest.mark.parametrize(("flags", "field", "value"), FRONT_FLAGS)
def test_a_flag_reaches_the_front(stub, flags: list[str], field: str, value: Any):
    assert getattr(config_of(stub, *flags), field) == value


@pytest.mark.parametrize(
    ("flags", "watermark", "may_set"),
    [([], None, True), (["--watermark", "0.5"], None, False)],
)
@pytest.mark.parametrize("preset", ["vllm-like", "priority"])
def test_presets_set_the_watermark_unless_a_flag_does(
    stub, flags: list[str], watermark: float | None, may_set: bool, preset: str
):
    config = config_of(stub, "--scheduling-policy", preset, *flags)

    wanted = 0.0 if may_set and preset == "vllm-like" else watermark
    assert config.engine.policies.watermark == wanted
    assert config.may_set_watermark is may_set


@pytest.mark.parametrize(("flags", "field", "value"), ENGINE_FLAGS)
def test_a_flag_reaches_the_engine(stub, flags: list[str], field: str, value: Any):
    assert getattr(config_of(stub, *flags).engine, field) == value


@pytest.mark.parametrize(
    ("variable", "flags", "key"),
    [
        ("k3y", [], "k3y"),
        ("k3y", ["--admin-api-key", "fl4g"], "fl4g"),
        ("", [], None),
        ("", ["--admin-api-key", "fl4g"], "fl4g"),
    ],
)
def test_the_key_may_be_a_variable_and_an_empty_one_is_none(
    stub, monkeypatch, variable: str, flags: list[str], key: str | None
):
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", variable)
    assert config_of(stub, *flags).admin_key == key


def test_a_flag_reaches_the_limits(stub):
    assert config_of(stub, "--max-num-queued-reqs", "5").limits.max_queued == 5
    assert config_of(stub, "--max-engine-restarts", "0").max_engine_restarts == 0


def test_flags_reach_the_limits_of_streams(stub):
    flags = ("--resume-grace=1.5", "--resume-max-streams=3", "--resume-buffer-kib=64")
    limits = config_of(stub, *flags).limits

    assert limits.resumption == ResumptionLimits(grace_s=1.5, max_streams=3, max_bytes=64 << 10)
    assert config_of(stub).limits == Limits()


def test_without_flags_front_and_engine_keep_their_own_defaults(stub):
    config = config_of(stub)
    plain = EngineConfig(
        model=str(locate("demo").path), log_level="warning", log_json=config.engine.log_json
    )

    assert config.engine == plain
    assert (config.host, config.port, config.grpc_port) == ("127.0.0.1", 8000, 50051)
    defaults = {field.name: field for field in dataclasses.fields(FrontConfig)}
    assert config.shutdown_timeout_s == defaults["shutdown_timeout_s"].default


@pytest.mark.parametrize(("level", "seen"), [("error", "info"), ("debug", "debug")])
def test_calls_of_hooks_are_seen_in_both_processes(stub, monkeypatch, level: str, seen: str):
    levels: list[str] = []
    monkeypatch.setattr(serve, "configure_logging", levels.append)
    monkeypatch.setenv("CADENZA_TRACE_PLUGINS", "1")

    assert config_of(stub, "--log-level", level).engine.log_level == seen
    assert levels == [level, seen]


def test_the_model_is_served_under_its_own_name_unless_another_is_given(stub):
    assert config_of(stub).model_names == ("SmolLM2-135M-Instruct",)


def test_the_model_may_be_left_out(stub):
    assert status_of("serve") == 0
    assert stub.configs[-1].engine.model == str(locate("demo").path)


HUGE = "9" * 23  # of no message's size
WRONG_USES: list[tuple[list[str], str]] = [
    (["serve", "demo", "--bogus"], "--bogus"),
    (["serve", "demo", "more"], "more"),
    (["serve", "demo", "--port", "many"], "many"),
    (["serve", "demo", "--dtype", "int1"], "int1"),
    (["serve", "demo", "--quantization", "int1"], "int1"),
    (["serve", "demo", "--policy", "reserve_blocks"], "DECISION=POLICY"),
    (["serve", "demo", "--policy", "=none"], "DECISION=POLICY"),
    (["serve", "demo", "--policy", "reserve_blocks="], "DECISION=POLICY"),
    (["serve", "demo", "--policy", "order=fcfs:"], "DECISION=POLICY:key=value"),
    (["serve", "demo", "--policy", "order=fcfs:a=1"], "takes no options"),
    (["serve", "demo", "--scheduling-policy", "prioriti"], "did you mean 'priority'?"),
    (["serve", "demo", "--policy-file", "/no/such.toml"], "/no/such.toml cannot be read"),
    (["serve", "demo", "--plugins-dir", "/no/such"], "/no/such is no folder"),
    (["serve", "demo", "--policy", "no_hook=fcfs"], "no_hook"),
    (["serve", "demo", "--policy", "order_admissions=lifo"], "lifo"),
    (["serve", "demo", "--policy", "order_admissions=newest"], "newest"),
    (["serve", "demo", "--host", "0.0.0.0"], "--allow-unauthenticated"),
    (["serve", "demo", "--host", "::"], "--allow-unauthenticated"),
    (["serve", "demo", "--host", "example.org"], "--allow-unauthenticated"),
    (["serve", "/no/such.gguf"], "/no/such.gguf"),
    (["serve", "no-such-folder"], "no-such-folder"),
    (["bogus"], "bogus"),
    (["serve", "demo", "--served-model-name", ""], "--served-model-name"),
    (["serve", "demo", "--otlp-traces-endpoint", "h:4317"], "Must be an address such as http"),
    (
        ["serve", "demo", "--otlp-traces-endpoint", "http://:4318"],
        "Must be an address such as http",
    ),
    (["serve", "demo", "--otlp-traces-endpoint", "http://h:x"], "Must be an address such as http"),
    (["serve", "demo", "--metrics-tenant", "a b"], "without spaces"),
    (["serve", "demo", "--metrics-tenant", "a", "--metrics-tenant", NO_TENANT], "Must not be"),
    (["serve", "demo", "--metrics-tenant", OTHER_TENANTS], "Must not be"),
    (["serve", "demo", "--metrics-tenant", "x" * 129], "1 to 128"),
    (["serve", "demo", *("--metrics-tenant=a",) * 65], "at most 64"),
]


@pytest.mark.parametrize(("arguments", "word"), WRONG_USES)
def test_a_wrong_use_is_one_line_and_status_2(
    stub, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
):
    assert status_of(*arguments) == 2

    said = capsys.readouterr()
    assert said.err.startswith("cadenza: ")
    assert said.err.count("\n") == 1
    assert word in said.err
    assert not stub.configs, "it went on all the same"


TO_INT64 = "from 1 to 9223372036854775807."
RANGES: list[tuple[str, list[str], str]] = [
    ("--port", ["-1", "65536", HUGE], "from 0 to 65535."),
    ("--grpc-port", ["-1", "65536", HUGE], "from 0 to 65535."),
    ("--max-model-len", ["0", "-1", HUGE], TO_INT64),
    ("--weight-cache", ["-1", "65537", "1e300", "nan", "inf"], "from 0 to 65536 GiB."),
    ("--threads", ["0", "-1", "1025", HUGE], "from 1 to 1024."),
    ("--block-size", ["0", "-1", "3", "131072", HUGE], "a power of two from 1 to 65536."),
    ("--num-blocks", ["0", "-1", HUGE], TO_INT64),
    ("--num-gpu-blocks-override", ["0", "-1", HUGE], TO_INT64),
    ("--kv-cache-memory-bytes", ["0", "-1", str(1 << 63), HUGE], TO_INT64),
    ("--gpu-memory-utilization", ["-1", "0", "1.01", "nan", "inf"], "from 0.01 to 1."),
    ("--swap-space", ["-1", "65537", "1e300", "nan", "inf"], "from 0 to 65536 GiB."),
    ("--max-num-seqs", ["0", "-1", "65537", HUGE], "from 1 to 65536."),
    ("--max-num-batched-tokens", ["0", "-1", HUGE], TO_INT64),
    ("--watermark", ["-0.1", "1", "nan", "inf"], "at least 0 and less than 1."),
    ("--max-num-queued-reqs", ["0", "-1", HUGE], TO_INT64),
    ("--shutdown-timeout", ["-1", "1e300", "nan", "inf"], "from 0 to 31536000 seconds."),
    (
        "--grpc-connection-age",
        ["-1", "1e300", "nan", "inf"],
        "from 0 to 31536000 seconds.",
    ),
    (
        "--grpc-connection-age-grace",
        ["-1", "1e300", "nan", "inf"],
        "from 0 to 31536000 seconds.",
    ),
    ("--resume-grace", ["-1", "1e300", "nan", "inf"], "from 0 to 31536000 seconds."),
    ("--resume-max-streams", ["-1", "65537", HUGE], "from 0 to 65536."),
    ("--max-engine-restarts", ["-1", "65537", HUGE], "from 0 to 65536."),
    ("--resume-buffer-kib", ["0", "15", "1048577", HUGE], "from 16 to 1048576 KiB."),
]


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [(flag, value, said) for flag, values, said in RANGES for value in values],
)
def test_a_number_out_of_range_is_told_the_range(
    stub, capsys: pytest.CaptureFixture[str], flag: str, value: str, said: str
):
    assert status_of("serve", "demo", f"{flag}={value}") == 2

    error = capsys.readouterr().err
    assert error.startswith("cadenza: Invalid value ")
    name = flag.replace("--num-blocks", "--num-gpu-blocks-override")
    assert error.endswith(f" for {name}. Must be {said}\n")
    assert not stub.configs, "it went on all the same"


@pytest.mark.parametrize("value", ["", "a", "1-", "-1", "3-1", "0,,1", "0;1", "99999", "0-1-2"])
def test_cores_that_are_none_are_told_an_example(
    stub, capsys: pytest.CaptureFixture[str], value: str
):
    assert status_of("serve", "demo", f"--engine-cores={value}") == 2

    assert capsys.readouterr().err.endswith(
        "for --engine-cores. Must be numbers of cores and ranges of them, such as 0-3,8.\n"
    )
    assert not stub.configs, "it went on all the same"


def test_every_flag_that_takes_a_number_has_a_range():
    numbers = {
        "--" + name.replace("_", "-")
        for name, field in ServeOptions.model_fields.items()
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    }

    assert {flag for flag, _, _ in RANGES} == numbers | {"--num-blocks"}


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv-cache-memory-bytes", str((1 << 63) - 1), "--max-model-len", str((1 << 63) - 1)],
        ["--swap-space", "65536", "--max-num-seqs", "65536", "--block-size", "65536"],
    ],
)
def test_what_is_in_range_fits_into_a_message(stub, flags: list[str]):
    engine = config_of(stub, *flags).engine

    (start,) = FrameReader(ToEngine).feed(encode(Start(engine)))
    assert start.config == engine


def test_a_file_that_is_no_model_is_a_wrong_use(
    stub, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "model.bin"
    file.write_bytes(b"")

    assert status_of("serve", str(file)) == 2
    assert "model.bin" in capsys.readouterr().err


def test_leaving_after_a_signal_is_success(stub, capsys: pytest.CaptureFixture[str]):
    assert status_of("serve", "demo") == 0

    said = capsys.readouterr()
    assert said.out.startswith("Loading SmolLM2-135M-Instruct\n")
    assert "is ready" in said.out
    assert not said.err


def test_the_heap_is_frozen_before_it_is_ready(stub, capsys: pytest.CaptureFixture[str]):
    status_of("serve", "demo")
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("frozen") < next(at for at, line in enumerate(lines) if "8123" in line)


def test_an_engine_lost_while_serving_is_status_1(stub, capsys: pytest.CaptureFixture[str]):
    stub.ends = "The engine process is gone."

    assert status_of("serve", "demo") == 1
    assert capsys.readouterr().err == "cadenza: The engine process is gone.\n"


def test_an_engine_lost_while_loading_is_status_2(stub, capsys: pytest.CaptureFixture[str]):
    stub.is_ready, stub.ends = False, "block_size is 3, not a power of two."

    assert status_of("serve", "demo") == 2
    assert capsys.readouterr().err == "cadenza: block_size is 3, not a power of two.\n"


def test_a_port_that_cannot_be_bound_is_status_2(stub, capsys: pytest.CaptureFixture[str]):
    stub.is_ready, stub.ends = False, OSError("HTTP cannot listen on 127.0.0.1:1: no")

    assert status_of("serve", "demo") == 2
    assert capsys.readouterr().err == "cadenza: HTTP cannot listen on 127.0.0.1:1: no\n"


def test_the_banner_tells_figures_addresses_and_what_to_try():
    lines = serve.banner("tiny", READY, Addresses("127.0.0.1", 8123, 50123)).splitlines()

    assert lines == [
        "tiny is ready after 2.3 s: bfloat16 on cpu, 512 blocks of 16 tokens, 64 seats, "
        "256 tokens a step.",
        "HTTP http://127.0.0.1:8123/v1    gRPC 127.0.0.1:50123",
        "Try:",
        "  curl -N http://127.0.0.1:8123/v1/chat/completions "
        "-H 'content-type: application/json' \\",
        '    -d \'{"model": "tiny", "stream": true, "messages": [{"role": "user", '
        '"content": "What is the capital of France?"}]}\'',
        "Stop with Ctrl-C.",
    ]


def test_the_banner_tells_how_the_model_is_quantised():
    ready = msgspec.structs.replace(READY, quantization="int8")

    text = serve.banner("tiny", ready, Addresses("127.0.0.1", 8123, 50123))

    assert "bfloat16 with int8 products on cpu" in text


def test_the_banner_brackets_an_ipv6_address():
    text = serve.banner("tiny", READY, Addresses("::1", 8123, 50123))

    assert "http://[::1]:8123/v1" in text
    assert "gRPC [::1]:50123" in text


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("demo",), 0),
        (("/no/such.gguf",), 2),
        (("demo", "--policy", "order=lifo"), 2),
        (("--config", "/no/such.yaml"), 2),
    ],
)
def test_the_engine_that_was_started_before_all_else_is_ended(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int
):
    ended = []
    engine = SimpleNamespace(end=lambda: ended.append(True))
    monkeypatch.setattr(engine_process, "start_engine", lambda: engine)

    assert status_of("serve", *arguments) == status
    assert ended == [True]


def test_a_recording_that_cannot_be_is_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as left:
        main(["serve", "demo", "--dry-run", "--record", "/nowhere/run.jsonl"])

    assert left.value.code == 2
    assert "/nowhere/run.jsonl cannot be written: No such file" in capsys.readouterr().err
