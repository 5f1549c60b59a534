"""`cadenza simulate`: what is written, and what is refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli import simulate
from cadenza.cli.main import main

LOAD = "synthetic:requests=60,rate=30,prompt=60,output=20,tenants=3,prefixes=2,prefix=64"
SMALL = ("--num-blocks", "96", "--max-num-seqs", "8", "--max-num-batched-tokens", "256")


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["simulate", *arguments])
    return int(left.value.code or 0)


def figures_of(path: Path, *arguments: str) -> dict[str, Any]:
    assert status_of(LOAD, *SMALL, "--json", str(path), *arguments) == 0
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_profiles_are_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = figures_of(
        tmp_path / "told.json",
        *("--profile", "fcfs", "--profile", "fair-share", "--policy", "order=hrrn"),
    )

    assert [each["profile"] for each in told["profiles"]] == ["fcfs", "fair-share", "order=hrrn"]
    assert [(each["base"], each["other"]) for each in told["comparisons"]] == [
        ("fcfs", "fair-share"),
        ("fcfs", "order=hrrn"),
    ]
    assert all(each["whole"] == 60 for each in told["profiles"])
    assert told["profiles"][0]["hit_rate"] > 0
    output = capsys.readouterr().out
    assert "fair-share against fcfs" in output
    assert "order=hrrn against fcfs" in output


def test_a_profile_may_be_a_file(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('[decisions]\norder = "shortest-prefill"\n')

    told = figures_of(tmp_path / "told.json", "--profile", str(tmp_path / "mine.toml"))

    assert [each["profile"] for each in told["profiles"]] == ["mine"]


def test_files_of_one_name_are_told_apart(tmp_path: Path):
    paths = []
    for folder, order in (("a", "hrrn"), ("b", "edf")):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "mine.toml")
        paths[-1].write_text(f'[decisions]\norder = "{order}"\n')

    profiles = [argument for path in paths for argument in ("--profile", str(path))]
    told = figures_of(tmp_path / "told.json", *profiles)

    assert [each["profile"] for each in told["profiles"]] == [*map(str, paths)]


def test_several_seeds_are_told_of_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    profiles = ("--profile", "fcfs", "--profile", "fair-share")
    told = figures_of(tmp_path / "told.json", *profiles, "--seed", "3", "--seeds", "4")
    third = figures_of(tmp_path / "third.json", *profiles, "--seed", "5")

    assert (told["seed"], told["seeds"]) == (3, 4)
    assert told["profiles"][0]["requests"] == 240
    assert told["profiles"][0]["ttft_s"]["max"] >= third["profiles"][0]["ttft_s"]["max"]
    output = capsys.readouterr().out
    assert "with each of 4 seeds" in output
    assert "95 % over 4 seeds" in output


def test_figures_may_be_those_of_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = figures_of(tmp_path / "whole.json")
    told = figures_of(tmp_path / "told.json", "--measure", "0.5:1.5")

    assert told["measured"] == [0.5, 1.5]
    assert whole["measured"] is None
    assert told["trace"] == whole["trace"]
    assert 0 < told["profiles"][0]["requests"] < 60
    assert told["profiles"][0]["span_s"] == pytest.approx(1, abs=0.1)
    assert "measured from 0.5 s to 1.5 s" in capsys.readouterr().out


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late: bool
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if late:
        monkeypatch.setattr(simulate, "report", interrupt)
    else:
        monkeypatch.setattr(simulate.Simulation, "run", interrupt)

    assert status_of(LOAD, *SMALL) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_preset_has_its_watermark_unless_a_flag_says_another(tmp_path: Path):
    vllm_like = ("--profile", "vllm-like")
    own = figures_of(tmp_path / "own.json", *vllm_like)
    other = figures_of(tmp_path / "other.json", *vllm_like, "--watermark", "0.5")

    assert own["profiles"][0]["watermark"] == 0
    assert other["profiles"][0]["watermark"] == 0.5
    assert own["profiles"][0]["ttft_s"]["mean"] < other["profiles"][0]["ttft_s"]["mean"]


def test_same_seed_same_bytes_whatever_the_hashes(tmp_path: Path):
    written = []
    for hash_seed in ("1", "2"):
        paths = [tmp_path / f"{hash_seed}.{kind}" for kind in ("json", "html")]
        command = [sys.executable, "-P", "-m", "cadenza.cli", "simulate", LOAD, *SMALL]
        chosen = ("--profile", "fair-share", "--profile", "prefix-aware", "--policy", "order=hrrn")
        done = subprocess.run(
            [*command, *chosen, "--seed", "7", "--json", str(paths[0]), "--html", str(paths[1])],
            check=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        written.append([done.stdout, *(path.read_bytes() for path in paths)])

    assert written[0] == written[1]
    assert all(written[0])


def test_a_trace_is_cut_then_stretched(tmp_path: Path):
    told = figures_of(
        tmp_path / "told.json", "--window", "0.5:1.5", "--stretch", "4", "--first", "20"
    )

    assert told["trace"]["requests"] == 20
    assert told["trace"]["span_s"] < 4
    assert told["trace"]["notes"][1:] == [
        "from 0.5 to 1.5 s",
        "the first 20",
        "time stretched 4 times",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.csv"], "missing.csv cannot be read: No such file"),
        (["synthetic:rates=1"], "did you mean 'rate'"),
        ([LOAD, "--profile", "fair"], "there is no preset 'fair'"),
        ([LOAD, "--policy", "order=fcfz"], "did you mean 'fcfs'"),
        ([LOAD, "--machine", "rtx-9090"], "there is no machine 'rtx-9090'"),
        ([LOAD, "--machine", "rtx-pro-6000-llama-3.1-8b"], "nobody knows how many KV blocks"),
        ([LOAD, "--window", "5"], "not of the form BEGIN:END"),
        ([LOAD, "--window", "9:5"], "not of the form BEGIN:END"),
        ([LOAD, "--window", "900:"], "no request of synthetic"),
        ([LOAD, "--stretch", "0"], "--stretch"),
        ([LOAD, "--stretch", "1e300"], "more than there is a clock for"),
        ([LOAD, "--max-num-batched-tokens", "8"], "max_num_batched_tokens 8 is under"),
        ([LOAD, "--num-blocks", "8", "--max-model-len", "999"], "max_model_len 999 does not fit"),
        ([LOAD, "--max-num-seqs", "1000000"], "max_num_seqs must be a whole number from 1 to"),
        ([LOAD, "--like", "ftp:x"], "ftp:x is no address such as http://127.0.0.1:8000"),
        ([LOAD, "--watermark", "1.5"], "watermark 1.5 is no share"),
        ([LOAD, *SMALL, "--json", "/nowhere/told.json"], "/nowhere/told.json cannot be written"),
        ([LOAD, *SMALL, "--json", "a", "--html", "a"], "a cannot be both"),
        ([LOAD, *SMALL, "--html", "/proc/told"], "/proc/told cannot be written"),
        ([LOAD, "--window", "-1:5"], "not of the form BEGIN:END, in seconds from 0 on"),
        ([LOAD, "--measure", "5"], "--measure 5 is not of the form BEGIN:END"),
        ([LOAD, "--measure", "900:"], "no request of synthetic"),
        (["/dev/null", "--seeds", "2"], "/dev/null is the same with any seed"),
        (["/dev/null"], "/dev/null is empty"),
        (["/tmp"], "/tmp cannot be read: Is a directory"),
        ([LOAD, "--like", "http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    status = status_of(*arguments)

    error = capsys.readouterr().err
    assert status == 2
    assert said in error
    assert "Traceback" not in error


METRICS = (
    'cadenza:cache_config_info{model_name="m",block_size="16",num_gpu_blocks="96"} 1.0\n'
    'cadenza:scheduler_limits_info{model_name="m",max_num_seqs="8",max_num_batched_tokens="256",'
    'max_model_len="512",num_host_blocks="7"} 1.0\n'
)


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Served(HTTPServer):
    """A service of which only the metrics answer."""

    metrics = METRICS

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.metrics.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_limits_are_those_of_a_running_service_unless_flags_say_others(
    tmp_path: Path, served: Served
):
    path = tmp_path / "told.json"
    assert status_of(LOAD, "--like", served.url, "--num-blocks", "80", "--json", str(path)) == 0

    limits = json.loads(path.read_text())["limits"]
    assert (limits["num_blocks"], limits["num_host_blocks"]) == (80, 7)
    assert (limits["max_num_seqs"], limits["max_num_batched_tokens"]) == (8, 256)
    assert (limits["block_size"], limits["max_model_len"]) == (16, 512)


def test_a_smaller_pool_has_room_for_shorter_requests(tmp_path: Path, served: Served):
    path = tmp_path / "told.json"
    assert status_of(LOAD, "--like", served.url, "--num-blocks", "20", "--json", str(path)) == 0

    assert json.loads(path.read_text())["limits"]["max_model_len"] == 320


def test_blocks_of_another_size_are_as_many_as_the_memory_holds(tmp_path: Path):
    path = tmp_path / "told.json"
    assert status_of(LOAD, "--block-size", "64", "--json", str(path)) == 0

    assert json.loads(path.read_text())["limits"]["num_blocks"] == 2588 * 16 // 64


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("", "it loads, or is not Cadenza"),
        (METRICS.replace('"8"', '"many"'), "is not Cadenza, or not this version"),
    ],
)
def test_a_service_without_limits_is_told(
    served: Served, capsys: pytest.CaptureFixture[str], metrics: str, said: str
):
    served.metrics = metrics

    assert status_of(LOAD, "--like", served.url) == 2
    assert said in capsys.readouterr().err


def test_the_page_is_written(tmp_path: Path):
    path = tmp_path / "told.html"

    assert status_of(LOAD, *SMALL, "--html", str(path)) == 0
    assert path.read_text().startswith("<!doctype html>")


def test_names_that_are_no_text_are_shown_as_far_as_they_can_be(tmp_path: Path):
    trace, path = tmp_path / os.fsdecode(b"\xff.csv"), tmp_path / "told.html"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:05,9,3\n")

    assert status_of(str(trace), *SMALL, "--html", str(path)) == 0
    assert "?.csv" in path.read_text()


@pytest.mark.parametrize("kind", ["swap", "recompute"])
def test_swaps_whose_price_nobody_knows_are_said_to_be_free(tmp_path: Path, kind: str):
    machine = ("--machine", "h100-tp8-llama-2-70b", "--num-host-blocks", "64")
    policies = ("--policy", f"preemption={kind}", "--policy", "reserve=none")
    path = tmp_path / "told.json"

    assert status_of(LOAD, "--num-blocks", "24", *machine, *policies, "--json", str(path)) == 0
    told = json.loads(path.read_text())
    assert told["profiles"][0]["preemptions"]["all"] > 0
    assert any("swaps are free" in each for each in told["remarks"]) == (kind == "swap")
