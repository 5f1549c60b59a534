"""`cadenza models show`: a model before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cadenza.cli import model_report
from cadenza.cli.main import main
from cadenza.engine import inspection
from tests.engine.models.tiny import OTHERS, TINY, Tiny


def shown(capsys: pytest.CaptureFixture[str], model: str, status: int = 0) -> dict[str, str]:
    """What is written, line by line."""
    with pytest.raises(SystemExit) as left:
        main(["models", "show", model])
    assert left.value.code == status
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {name: value.strip() for name, value in lines}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "resolve_device", lambda _: torch.device("cpu"))


def test_a_model_of_ours_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = Tiny("Qwen3", {"head_dim": 16}).save(tmp_path)  # a head that no C++ kernel has

    found = shown(capsys, str(tmp_path))

    count = sum(parameter.numel() for parameter in model.parameters())
    assert found["family"] == "Qwen3 (Qwen3ForCausalLM)"
    assert found["layers"] == "3, computed by one operation after another"
    assert found["parameters"] == f"{count:,}"
    assert found["weights"] == f"{4 * count / 1024:.1f} KiB as float32 on cpu"
    # keys and values of 3 layers, 2 heads of 16, in fp32
    assert found["KV cache"] == "768 bytes a token"
    assert found["context"] == "256 tokens, of 192.0 KiB"
    assert found["memory"].endswith(": it fits")


def test_a_tied_embedding_is_in_memory_twice(tmp_path: Path):
    model = TINY["Qwen2"].save(tmp_path)

    found = inspection.inspect_model(tmp_path)

    count = sum(parameter.numel() for parameter in model.parameters())
    assert found.num_parameters == count
    assert found.weight_bytes == 4 * (count + 101 * 48)


def test_a_model_that_transformers_runs_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    OTHERS["OLMo2"].save(tmp_path)

    assert "by transformers" in shown(capsys, str(tmp_path))["layers"]


def test_the_demo_model_is_shown(capsys: pytest.CaptureFixture[str]):
    found = shown(capsys, "demo")

    assert found["family"] == "Llama (LlamaForCausalLM)"
    assert found["parameters"] == "134,515,008"
    assert found["KV cache"] == "45.0 KiB a token"


def test_what_does_not_fit_is_said_and_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    TINY["Qwen3"].save(tmp_path)
    monkeypatch.setattr(inspection, "available_bytes", lambda _: 1 << 30)

    found = shown(capsys, str(tmp_path), status=1)

    assert "1.0 GiB available: it does not fit" in found["memory"]


def test_what_is_not_there_is_a_wrong_use(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(["models", "show", "/nowhere"])

    assert left.value.code == 2
    assert "there is no such file or folder" in capsys.readouterr().err


def test_memory_is_what_linux_tells(tmp_path: Path):
    cpu, told = torch.device("cpu"), tmp_path / "meminfo"
    told.write_text("MemTotal:  100 kB\nMemAvailable:  7 kB\n")
    assert inspection.available_bytes(cpu, told) == 7 << 10

    told.write_text("nonsense")
    assert inspection.available_bytes(cpu, told) is None
    assert inspection.available_bytes(cpu, tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 42, "4096.0 GiB")],
)
def test_sizes_are_told_in_a_unit_that_fits(size: int, text: str):
    assert model_report._size(size) == text
