"""What a start works out of a quantised file, the next one reads, and it is the same to the bit."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gguf import GGMLQuantizationType
from structlog.testing import capture_logs

from cadenza.checkpoints import CheckpointError
from cadenza.engine.loading import open_checkpoint
from cadenza.engine.models import DecoderConfig, kept, weight_cache, weights
from cadenza.engine.models.families import BY_GGUF
from cadenza.engine.models.loader import Loader
from tests.engine.models.gguf_files import write_gguf
from tests.engine.models.tiny import THETA, Tiny

MUCH = 1 << 30
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
Q8_0, F32 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cadenza" / "weights"


def written(path: Path, seed: int = 0, kind: GGMLQuantizationType = Q8_0) -> Path:
    """A file of random weights in blocks of 32, which are others for another seed."""
    tiny = Tiny("Qwen3", {"head_dim": 16, "hidden_size": 64, "intermediate_size": 96})
    model = tiny.save(path.parent / f"{path.stem}-folder")
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(seed)
    write_gguf(path, model, BY_GGUF["qwen3"], kind, **{"rope.freq_base": THETA})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return written(tmp_path / "tiny.gguf")


def loaded(
    path: Path, dtype: torch.dtype = torch.float32, most_bytes: int = MUCH
) -> list[torch.Tensor]:
    """All weights, as models ask for them."""
    config, source = open_checkpoint(path)
    assert isinstance(config, DecoderConfig)
    with kept(source, dtype, most_bytes) as found:
        loader = Loader(config, found, dtype, torch.device("cpu"))
        layers = [loader.layer(index) for index in range(config.num_layers)]
        loader.check_all_are_read()
        embedding = loader.tensor(EMBEDDING, config.vocab_size, config.hidden_size)
        norm = loader.norm("model.norm")
    matrices = [part for layer in layers for part in (layer.qkv, layer.gate, layer.up, layer.down)]
    return [embedding, norm, *matrices, *(layer.attention_norm for layer in layers)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def forbid_dequantising(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it is dequantised again")

    patch.setattr(weights, "_dequantised", fail)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_start_reads_the_same_bits(
    checkpoint: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    unkept = loaded(checkpoint, dtype, most_bytes=0)

    first = loaded(checkpoint, dtype)
    forbid_dequantising(monkeypatch)
    second = loaded(checkpoint, dtype)

    assert_same(first, unkept)
    assert_same(second, unkept)


def test_what_values_follow_from_has_a_file_of_its_own(
    checkpoint: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = written(tmp_path / "other.gguf", seed=1)
    loaded(checkpoint)
    loaded(checkpoint, torch.bfloat16)
    found = loaded(other)
    monkeypatch.setattr(weight_cache, "version", lambda name: "another")
    loaded(checkpoint)

    assert len([*folder.iterdir()]) == 4
    assert_same(found, loaded(other, most_bytes=0))


@pytest.mark.parametrize("left", [0, 7, 30, -1, -20, -100])
def test_a_file_that_is_not_whole_is_written_anew(checkpoint: Path, folder: Path, left: int):
    expected = loaded(checkpoint)
    [file] = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:left])

    assert_same(loaded(checkpoint), expected)
    assert file.read_bytes() == whole


def test_an_index_that_leads_past_the_end_is_not_followed(checkpoint: Path, folder: Path):
    expected = loaded(checkpoint)
    [file] = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'["float32", [64], ', b'["float32", [6400000], '))

    assert_same(loaded(checkpoint), expected)
    assert file.read_bytes() == whole


def test_the_least_recently_used_makes_room(folder: Path, tmp_path: Path):
    files = [written(tmp_path / f"{seed}.gguf", seed) for seed in range(3)]
    size = 0
    for age, file in zip((30, 20), files, strict=False):
        before = {*folder.glob("*")}
        loaded(file)
        [new] = {*folder.glob("*")} - before
        size = new.stat().st_size
        os.utime(new, (1e9 - age, 1e9 - age))
    loaded(files[0])  # used again: the second is now the oldest
    second = min(folder.iterdir(), key=lambda path: path.stat().st_mtime)

    loaded(files[2], most_bytes=int(2.5 * size))

    assert not second.exists()
    assert len([*folder.iterdir()]) == 2


def test_nothing_is_kept_beyond_the_limit(checkpoint: Path, folder: Path):
    loaded(checkpoint, most_bytes=1000)

    assert not folder.exists()


def test_what_is_not_quantised_is_not_kept(folder: Path, tmp_path: Path):
    loaded(written(tmp_path / "plain.gguf", kind=F32))

    assert not folder.exists()


def test_nothing_is_kept_of_a_load_that_fails(checkpoint: Path, folder: Path):
    config, source = open_checkpoint(checkpoint)
    assert isinstance(config, DecoderConfig)

    def fails() -> None:
        with kept(source, torch.float32, MUCH) as found:
            found.get(NORM, (config.hidden_size,))
            found.get(EMBEDDING, (1, 1))

    with pytest.raises(CheckpointError, match="has the shape"):
        fails()

    assert not any(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_told_and_the_load_goes_on(
    checkpoint: Path, folder: Path
):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder belongs")

    with capture_logs() as logs:
        found = loaded(checkpoint)

    assert_same(found, loaded(checkpoint, most_bytes=0))
    [line] = logs
    assert line["event"] == "weights are not kept for the next start"
    assert "File exists" in line["reason"]


def test_a_disk_that_gets_full_leaves_nothing_behind(
    checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weight_cache.json, "dumps", fail)  # the last thing that is written
    with capture_logs() as logs:
        found = loaded(checkpoint)

    assert_same(found, loaded(checkpoint, most_bytes=0))
    assert ["No space left" in line["reason"] for line in logs] == [True]
    assert not any(folder.iterdir())


def test_a_user_without_a_home_is_served(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    with capture_logs() as logs:
        assert_same(loaded(checkpoint), loaded(checkpoint, most_bytes=0))

    assert ["home" in line["reason"] for line in logs] == [True]


def test_writers_of_the_same_process_id_do_not_share_a_file(folder: Path):
    path, weight = folder / "same.weights", torch.ones(1 << 16)
    first, second = weight_cache._Writer(path), weight_cache._Writer(path)
    first.open(weight.nbytes, MUCH)
    first.add("weight", weight)
    second.open(weight.nbytes, MUCH)
    first.finish()
    second.close()

    index = weight_cache._read_index(path)
    assert index is not None
    place = index.places["weight"]
    assert index.values[place.offset : place.end] == weight.numpy().tobytes()


def test_a_file_whose_time_cannot_be_set_is_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    expected = loaded(checkpoint)

    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", fail)
    forbid_dequantising(monkeypatch)

    assert_same(loaded(checkpoint), expected)


def test_nothing_is_deleted_for_what_the_disk_has_no_room_for(
    checkpoint: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded(checkpoint)
    [file] = folder.iterdir()
    other = written(tmp_path / "other.gguf", seed=1)
    monkeypatch.setattr(weight_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))

    with capture_logs() as logs:
        loaded(other, most_bytes=int(1.5 * file.stat().st_size))

    assert [*folder.iterdir()] == [file]
    assert ["less free than twice" in line["reason"] for line in logs] == [True]
