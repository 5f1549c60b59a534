"""Options from flags, variables and a file; `cadenza config`, and `cadenza serve --dry-run`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from cadenza.cli import serve
from cadenza.cli.config import SECRETS, resolve, schema
from cadenza.cli.errors import UsageError
from cadenza.cli.main import main
from cadenza.cli.options import ServeOptions
from cadenza.cli.profile import configure
from cadenza.service import engine_process


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("CADENZA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cadenza.yaml"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr()
    assert left.value.code == 0, said.err
    return said.out


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr()
    assert left.value.code == 2
    assert said.out == ""
    assert said.err.startswith("cadenza: ")
    assert said.err.count("\n") == 1
    return said.err


def test_flags_win_over_variables_and_those_over_the_file(file: Path):
    file.write_text("port: 1\ngrpc-port: 1\nmax_num_seqs: 1\nblock-size: 1\n")
    variables = {"CADENZA_PORT": "2", "CADENZA_GRPC_PORT": "2", "CADENZA_MAX_NUM_SEQS": ""}

    resolved = resolve(ServeOptions(port=3), file, variables)

    options, sources = resolved.options, resolved.sources
    assert (options.port, sources["port"]) == (3, "--port")
    assert (options.grpc_port, sources["grpc_port"]) == (2, "CADENZA_GRPC_PORT")
    assert (options.max_num_seqs, sources["max_num_seqs"]) == (1, f"max_num_seqs in {file}")
    assert (options.block_size, sources["block_size"]) == (1, f"block_size in {file}")
    assert (options.host, sources["host"]) == ("127.0.0.1", "default")
    assert sources.keys() == ServeOptions.model_fields.keys()


def test_a_flag_at_its_default_wins_as_well(file: Path):
    file.write_text("port: 1\nenable_prefix_caching: false\n")

    options = resolve(ServeOptions(port=8000, enable_prefix_caching=True), file, {}).options

    assert (options.port, options.enable_prefix_caching) == (8000, True)


def test_every_option_can_be_a_variable_or_stand_in_a_file(file: Path):
    values: dict[str, Any] = {
        "model": "m",
        "host": "::1",
        "port": 1,
        "grpc_port": 2,
        "grpc_connection_age": 3.5,
        "grpc_connection_age_grace": 4.5,
        "allow_unauthenticated": True,
        "admin_api_key": "key",
        "served_model_name": ["a", "b"],
        "device": "cpu",
        "dtype": "float32",
        "quantization": "int8",
        "deterministic": True,
        "enforce_eager": True,
        "max_model_len": 3,
        "weight_cache": 1.5,
        "threads": 4,
        "engine_cores": "0-3",
        "block_size": 8,
        "num_gpu_blocks_override": 5,
        "kv_cache_memory_bytes": 6,
        "gpu_memory_utilization": 0.75,
        "swap_space": 0.25,
        "max_num_seqs": 7,
        "max_num_batched_tokens": 8,
        "enable_prefix_caching": False,
        "watermark": 0.5,
        "max_num_queued_reqs": 9,
        "shutdown_timeout": 1.5,
        "max_engine_restarts": 12,
        "resume_grace": 2.5,
        "resume_max_streams": 10,
        "resume_buffer_kib": 64,
        "otlp_traces_endpoint": "http://h:1",
        "record": "run.jsonl",
        "metrics_compat": "none",
        "metrics_tenant": ["t"],
        "log_level": "debug",
        "scheduling_policy": "slo",
        "policy": ["order=edf:slack_s=1", "gate=queue-limit"],
        "policy_file": "p.toml",
        "plugins_dir": "plugins",
    }
    assert values.keys() == ServeOptions.model_fields.keys(), "this test shall know them all"
    variables = {
        f"CADENZA_{name.upper()}": " ".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
    }
    file.write_text(json.dumps({k: v for k, v in values.items() if k not in SECRETS}))

    assert resolve(ServeOptions(), None, variables).options.model_dump(mode="json") == values
    told = resolve(ServeOptions(), file, {}).options.model_dump(mode="json")
    assert told == values | dict.fromkeys(SECRETS)


def test_every_name_of_an_option_is_known_everywhere(capsys, file: Path):
    file.write_text("num-blocks: 7\nkv_offloading_size: 0.25\n")
    variables = {"CADENZA_NUM_BLOCKS": "8", "CADENZA_KV_OFFLOADING_SIZE": "0.5"}

    for options, blocks, gibibytes in (
        (resolve(ServeOptions(), file, {}).options, 7, 0.25),
        (resolve(ServeOptions(), None, variables).options, 8, 0.5),
    ):
        assert (options.num_gpu_blocks_override, options.swap_space) == (blocks, gibibytes)
    flags = ("--num-blocks", "9", "--kv-offloading-size", "2", "--json")
    told = json.loads(output_of(capsys, "config", "show", *flags))
    assert (told["num_gpu_blocks_override"]["value"], told["swap_space"]["value"]) == (9, 2.0)


def test_two_names_of_one_option_are_told(file: Path):
    file.write_text("num-blocks: 7\nnum_gpu_blocks_override: 7\n")
    with pytest.raises(UsageError, match="has num_gpu_blocks_override twice"):
        resolve(ServeOptions(), file, {})
    variables = {"CADENZA_NUM_BLOCKS": "8", "CADENZA_NUM_GPU_BLOCKS_OVERRIDE": "8"}
    with pytest.raises(UsageError, match="are the same option"):
        resolve(ServeOptions(), None, variables)


def test_one_value_may_stand_for_several(file: Path):
    file.write_text("served-model-name: alone\nmax_model_len:\n")

    options = resolve(ServeOptions(), file, {}).options

    assert options.served_model_name == ("alone",)
    assert options.max_model_len is None


def test_the_environment_may_name_the_file(file: Path, tmp_path: Path):
    file.write_text("port: 1\n")
    other = tmp_path / "other.yaml"
    other.write_text("port: 2\n")
    variables = {"CADENZA_CONFIG": str(file)}

    assert resolve(ServeOptions(), None, variables).options.port == 1
    assert resolve(ServeOptions(), other, variables).options.port == 2


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n"])
def test_a_file_may_be_empty(file: Path, content: str):
    file.write_text(content)
    assert resolve(ServeOptions(), file, {}).options == ServeOptions()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prt: 1", "has prt, which is no option; did you mean port?"),
        ("zzz: 1", "has zzz, which is no option"),
        ("config: other.yaml", "has config, which is no option"),
        ("1: 1", "has 1, which is no option"),
        ("port: 1\nport: 2", "port comes twice, line 2"),
        ("grpc-port: 1\ngrpc_port: 2", "has grpc_port twice"),
        ("port: many", 'Invalid value "many" for port in '),
        ("port: 70000", "Must be from 0 to 65535."),
        ("port: [1]", "for port in"),
        ("port: true", "for port in"),
        ("dtype: int1", "Must be 'auto', 'float32' or 'bfloat16'."),
        ("block_size: 3", "Must be a power of two"),
        ("enable_prefix_caching: 7", "for enable_prefix_caching in"),
        ("metrics_tenant: ['']", "1 to 128"),
        ("served_model_name: [1]", "for served_model_name in"),
        ("watermark: .nan", "at least 0 and less than 1."),
        ("admin_api_key: s3cret", "has admin_api_key, which belongs into CADENZA_ADMIN_API_KEY"),
        ("[1]", "must hold options, such as `port: 8000`"),
        ("just words", "must hold options"),
        ("port: 'x", "cannot be read: "),
        ("a: &a [x]\nb: [*a]", "aliases are not taken, line 2"),
        ("port: !!python/object/apply:os.system ['true']", "cannot be read: "),
        ("port: 2001-99-99", "cannot be read: this is no timestamp, line 1"),
        ("host: h\nport: !!int abc", "this is no int, line 2"),
        ("port: !!int ''", "this is no int, line 1"),
        ("port: !!float x", "this is no float, line 1"),
        ("port: !!bool perhaps", "this is no bool, line 1"),
        ("port: !!timestamp x", "this is no timestamp, line 1"),
        ("policy: [a, !!timestamp x]", "this is no timestamp, line 1"),
        (f"port: {'9' * 5000}", "this is no int, line 1"),
        ("admin_api_key: !!int s3cret", "this is no int, line 1"),
        ("port: !!map x", "cannot be read: "),
        ("port: !!set x", "cannot be read: "),
        ("!!map x", "cannot be read: "),
        ("? [a, b]\n: 1", "a key must be one word, line 1"),
        ("port:\n  ? {a: b}\n  : 1", "a key must be one word, line 2"),
        ('model: "\\UFFFFFFFF"', "cannot be read: it is no YAML"),
        (f"%YAML 1.{'1' * 5000}\n---\nport: 1", "cannot be read: "),
        ("port: " + "[" * 3000, "nested too deeply"),
        ("port: " + "{a: " * 3000, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_told(file: Path, content: str, message: str):
    file.write_text(content)
    with pytest.raises(UsageError) as told:
        resolve(ServeOptions(), file, {})
    assert message in str(told.value)
    assert str(file) in str(told.value)
    assert "s3cret" not in str(told.value)


def test_a_file_that_cannot_be_read(file: Path, tmp_path: Path):
    for path, message in (
        (file, "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "larger than"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve(ServeOptions(), path, {})
    file.write_bytes(b"port: \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        resolve(ServeOptions(), file, {})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CADENZA_PORT", "many", 'Invalid value "many" for CADENZA_PORT.'),
        ("CADENZA_PORT", "-1", "Must be from 0 to 65535."),
        ("CADENZA_PORT", "tcp://10.0.0.1:8000", "Kubernetes sets such variables"),
        ("CADENZA_ENABLE_PREFIX_CACHING", "perhaps", "for CADENZA_ENABLE_PREFIX_CACHING."),
        ("CADENZA_ADMIN_API_KEY", "two words", "for CADENZA_ADMIN_API_KEY. Must be printable"),
        ("CADENZA_SWAP_SPACE", "inf", "Must be from 0 to 65536 GiB."),
        ("CADENZA_MODEL", "x" * 999, None),
    ],
)
def test_a_wrong_variable_is_told(variable: str, value: str, message: str | None):
    if message is None:
        assert resolve(ServeOptions(), None, {variable: value}).options.model == value
        return
    with pytest.raises(UsageError) as told:
        resolve(ServeOptions(), None, {variable: value})
    assert message in str(told.value)
    assert "two words" not in str(told.value)


@pytest.mark.parametrize("value", ["9" * 5000, "-" + "9" * 5000, "1e5000", "0x10", "\ud800"])
def test_every_option_that_takes_a_number_tells_what_is_none(file: Path, value: str):
    for name, field in ServeOptions.model_fields.items():
        if not {int, float} & {field.annotation, *get_args(field.annotation)}:
            continue
        variable = f"CADENZA_{name.upper()}"
        with pytest.raises(UsageError, match=f"for {variable}. Must be "):
            resolve(ServeOptions(), None, {variable: value})
        file.write_text(json.dumps({name: value}))
        with pytest.raises(UsageError, match=f"for {name} in {file}. Must be "):
            resolve(ServeOptions(), file, {})


def test_variables_that_are_nearly_right_are_told():
    variables = {"CADENZA_MAX_NUM_SEQ": "1", "CADENZA_SERVICE_HOST": "x", "CADENZA_PLUGINS": ""}

    assert resolve(ServeOptions(), None, variables).warnings == [
        "CADENZA_MAX_NUM_SEQ is not read; did you mean CADENZA_MAX_NUM_SEQS?"
    ]


def test_show_tells_every_value_and_where_it_is_from(capsys, file: Path, monkeypatch):
    file.write_text("served_model_name: [a, b]\n")
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", "s3cret")
    flags = ("m", "--config", str(file), "--no-enable-prefix-caching")

    lines = output_of(capsys, "config", "show", *flags).splitlines()
    told = json.loads(output_of(capsys, "config", "show", *flags, "--json"))

    assert lines[0].split() == ["OPTION", "VALUE", "FROM"]
    assert len(lines) == 1 + len(ServeOptions.model_fields)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
    assert rows["model"] == "m --model"
    assert rows["served_model_name"] == f"a b served_model_name in {file}"
    assert rows["enable_prefix_caching"] == "false --enable-prefix-caching"
    assert rows["admin_api_key"] == "(secret) CADENZA_ADMIN_API_KEY"
    assert rows["max_model_len"] == "- default"
    assert told["served_model_name"] == {
        "value": ["a", "b"],
        "from": f"served_model_name in {file}",
    }
    assert told.keys() == ServeOptions.model_fields.keys()
    assert "s3cret" not in json.dumps(told)


@pytest.mark.parametrize(
    "url",
    [
        "https://me:s3cret@collector/v1/traces",
        "https://s3cret@collector/v1/traces",
        "HTTPS://me:s3cret@collector",
        "//me:s3cret@collector",
        "https://me:12/s3cret@collector",
        "https://me:s3/cret s3cret",
        "https://collector:s3cret/",
    ],
)
@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_traces_go_to_no_address_with_a_secret(capsys, monkeypatch, file: Path, source: str, url):
    match source:
        case "flag":
            flags: tuple[str, ...] = ("--otlp-traces-endpoint", url)
        case "variable":
            flags = ()
            monkeypatch.setenv("CADENZA_OTLP_TRACES_ENDPOINT", url)
        case _:
            flags = ("--config", str(file))
            file.write_text(json.dumps({"otlp_traces_endpoint": url}))
    for command in (("config", "show"), ("serve", "--dry-run")):
        said = refusal_of(capsys, *command, *flags)
        assert "OTEL_EXPORTER_OTLP_HEADERS" in said or "@" not in url
        assert "Must " in said
        assert "s3cret" not in said
        assert "Kubernetes" not in said


def test_the_schema_is_that_of_the_file(capsys):
    told = json.loads(output_of(capsys, "config", "schema"))

    assert told == schema()
    others = {"num_blocks", "kv_offloading_size"}
    assert told["properties"].keys() == ServeOptions.model_fields.keys() - SECRETS | others
    assert told["additionalProperties"] is False
    port = told["properties"]["port"]
    assert (port["minimum"], port["maximum"], port["default"]) == (0, 65535, 8000)
    assert port["description"] == "HTTP port; 0 takes any free one."
    assert told["properties"]["dtype"]["enum"] == ["auto", "float32", "bfloat16"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("config", "show", "--port", "x"), 'Invalid value "x" for --port.'),
        (("config", "show", "--bogus"), "--bogus"),
        (("config", "show", "a", "--model", "b"), "the model is given twice"),
        (("serve", "a", "--model", "b"), "the model is given twice"),
        (("serve", "--config", "/no/such.yaml"), "/no/such.yaml cannot be read"),
        (("serve", "--admin-api-key", "two words"), "Invalid value for --admin-api-key."),
    ],
)
def test_a_wrong_use_is_told(capsys, arguments: tuple[str, ...], message: str):
    assert message in refusal_of(capsys, *arguments)


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((serve, "Front"), (engine_process, "start_engine")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it was started"))


PORTS = ("--port", "0", "--grpc-port", "0")


@pytest.mark.usefixtures("nothing_starts")
def test_a_dry_run_checks_everything_and_starts_nothing(capsys, monkeypatch):
    monkeypatch.setenv("CADENZA_MAX_NUM_SEQS", "8")

    lines = output_of(capsys, "serve", "--dry-run", *PORTS).splitlines()

    assert [line.split() for line in lines[1:-1]] == [
        ["port", "0", "--port"],
        ["grpc_port", "0", "--grpc-port"],
        ["max_num_seqs", "8", "CADENZA_MAX_NUM_SEQS"],
    ]
    assert lines[-1].endswith("would be served as SmolLM2-135M-Instruct")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("no-such-model",), "no-such-model"),
        (("--policy", "order=lifo"), "lifo"),
        (("--host", "0.0.0.0"), "--allow-unauthenticated"),
    ],
)
def test_a_dry_run_finds_what_is_wrong(capsys, flags: tuple[str, ...], message: str):
    assert message in refusal_of(capsys, "serve", "--dry-run", *PORTS, *flags)


@pytest.mark.usefixtures("nothing_starts")
def test_a_dry_run_finds_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for protocol, flag in (("HTTP", "--port"), ("gRPC", "--grpc-port")):
            other = ({*PORTS[::2]} - {flag}).pop()
            said = refusal_of(capsys, "serve", "--dry-run", other, "0", flag, str(port))
            where = f"127.0.0.1:{port}"
            assert said == f"cadenza: {protocol} cannot listen on {where}: the port is in use\n"


@pytest.mark.usefixtures("nothing_starts")
def test_a_dry_run_finds_one_port_for_both(capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    said = refusal_of(capsys, "serve", "--dry-run", "--port", port, "--grpc-port", port)

    assert said == f"cadenza: gRPC cannot listen on 127.0.0.1:{port}: the port is in use\n"
    output_of(capsys, "serve", "--dry-run", "--port", port, "--grpc-port", "0")


def test_looking_at_the_configuration_needs_neither_torch_nor_a_server():
    code = (
        "import sys, cadenza.cli.main as m\n"
        "try: m.main(['config', 'show'])\n"
        "finally: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert "cadenza.cli.config" in imported, done.stderr
    assert not imported & {"torch", "transformers", "grpc", "starlette", "uvloop", "numpy"}


def test_the_example_of_the_page_is_a_file(file: Path):
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    file.write_text(page.split("```yaml\n")[1].split("```")[0])

    resolved = resolve(ServeOptions(), file, {})

    assert resolved.options.port == 9000
    assert len(resolved.options.policy) == 2
    assert configure(resolved.options, {}).profile.names["order_admissions"] == "priority"
