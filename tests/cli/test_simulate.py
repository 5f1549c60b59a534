"""`cadenza simulate`: what is written, and what is refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
        path = tmp_path / f"{hash_seed}.json"
        command = [sys.executable, "-P", "-m", "cadenza.cli", "simulate", LOAD, *SMALL]
        profiles = ("--profile", "fair-share", "--profile", "prefix-aware", "--seed", "7")
        subprocess.run(
            [*command, *profiles, "--json", str(path)],
            check=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        written.append(path.read_bytes())

    assert written[0] == written[1]


def test_torch_is_not_needed():
    code = "import cadenza.cli.simulate, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


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
        ([LOAD, "--max-num-batched-tokens", "8"], "max_num_batched_tokens 8 is under"),
        ([LOAD, "--num-blocks", "8", "--max-model-len", "999"], "max_model_len 999 does not fit"),
        ([LOAD, "--watermark", "1.5"], "watermark 1.5 is no share"),
        ([LOAD, *SMALL, "--json", "/nowhere/told.json"], "/nowhere/told.json cannot be written"),
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
