"""The GGUF reader, against the `gguf` library and against damage."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from cadenza.checkpoints import CheckpointError, locate, read_gguf

ARCHITECTURE = "general.architecture"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of every kind of metadata value, and three tensors."""
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("a.uint8", 200)
    writer.add_int8("a.int8", -100)
    writer.add_uint16("a.uint16", 60000)
    writer.add_int16("a.int16", -30000)
    writer.add_uint32("a.uint32", 4_000_000_000)
    writer.add_int32("a.int32", -2_000_000_000)
    writer.add_uint64("a.uint64", 2**63)
    writer.add_int64("a.int64", -(2**62))
    writer.add_float32("a.float32", 0.5)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Grüße, 世界")
    writer.add_array("a.strings", ["", "one", "zwei", "三"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.floats", [0.25, -1.5])
    writer.add_array("a.bools", [True, False, True])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.add_tensor("wide", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("half", np.arange(5, dtype=np.float16))
    writer.add_tensor("deep", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain(value: object) -> object:
    """Arrays as lists, so that they compare."""
    if isinstance(value, list):
        return [plain(element) for element in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_every_kind_of_value_is_read_as_written(small: Path):
    metadata = {key: plain(value) for key, value in read_gguf(small).metadata.items()}

    assert metadata == {
        ARCHITECTURE: "llama",
        "a.uint8": 200,
        "a.int8": -100,
        "a.uint16": 60000,
        "a.int16": -30000,
        "a.uint32": 4_000_000_000,
        "a.int32": -2_000_000_000,
        "a.uint64": 2**63,
        "a.int64": -(2**62),
        "a.float32": 0.5,
        "a.float64": 0.1,
        "a.bool": True,
        "a.string": "Grüße, 世界",
        "a.strings": ["", "one", "zwei", "三"],
        "a.integers": [1, -2, 3],
        "a.floats": [0.25, -1.5],
        "a.bools": [True, False, True],
        "a.nested": [[1, 2], [3]],
    }


def test_tensors_are_read_as_written(small: Path):
    file = read_gguf(small)

    assert {name: info.shape for name, info in file.tensors.items()} == {
        "wide": (3, 4),
        "half": (5,),
        "deep": (2, 3, 4),
    }
    assert file.data("wide").view(np.float32).tolist() == list(range(12))
    assert file.data("half").view(np.float16).tolist() == list(range(5))
    assert file.data("deep").view(np.float32).tolist() == list(range(24))
    with pytest.raises(ValueError, match="read-only"):
        file.data("wide")[0] = 1


def test_a_tensor_that_is_not_there_is_named(small: Path):
    with pytest.raises(CheckpointError, match=r"small\.gguf: the tensor 'nope' is missing"):
        read_gguf(small).data("nope")


@pytest.mark.extra  # the library takes seconds for the vocabulary alone
def test_the_demo_file_reads_as_the_gguf_library_reads_it():
    path = locate("demo").path
    ours, theirs = read_gguf(path), GGUFReader(path)

    expected = {
        name: field.contents()
        for name, field in theirs.fields.items()
        if not name.startswith("GGUF.")
    }
    assert {key: plain(value) for key, value in ours.metadata.items()} == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.ggml_type == tensor.tensor_type.value
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def header(num_tensors: int = 0, num_pairs: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(6))

BROKEN = {
    "empty": (b"", "the file is empty"),
    "another format": (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
    "a few bytes": (b"GG", "not a GGUF file"),
    "the magic alone": (b"GGUF", "ends too early"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "big-endian": (header(version=0x03000000), "version 50331648 is not supported"),
    "many tensors": (header(num_tensors=2**60), "claims 1152921504606846976 tensors"),
    "many pairs": (header(num_pairs=2**60), "claims 1152921504606846976 metadata pairs"),
    "a long key": (header(0, 1) + struct.pack("<Q", 2**63) + bytes(99), "ends too early"),
    "an unknown value": (header(0, 1) + pair("k", 99, bytes(9)), "unknown type 99"),
    "a twin key": (header(0, 2) + 2 * pair("k", 0, b"\x01") + bytes(9), "'k' appears twice"),
    "bad text": (
        header(0, 1) + pair("k", 8, struct.pack("<Q", 2) + b"\xff\xff"),
        "not valid UTF-8",
    ),
    "a long array": (
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 4, 2**61)) + bytes(99),
        "ends too early",
    ),
    "many strings": (
        header(0, 1) + pair("k", 9, struct.pack("<IQ", 8, 2**61)) + bytes(99),
        "an array claims",
    ),
    "a long string in an array": (
        header(0, 1) + pair("k", 9, struct.pack("<IQQ", 8, 1, 99)),
        "a string reaches past the end",
    ),
    "deep arrays": (header(0, 1) + pair("k", 9, NESTED) + bytes(99), "unknown type 9"),
    "strange alignment": (
        header(0, 1) + pair("general.alignment", 4, struct.pack("<I", 7)),
        "general.alignment is 7",
    ),
    "an unknown tensor type": (header(1) + tensor("t", (4,), kind=4), "unknown type 4"),
    "many dimensions": (header(1) + tensor("t", (1,) * 5), "claims 5 dimensions"),
    "a twin tensor": (header(2) + 2 * tensor("t", (1,)) + bytes(64), "'t' appears twice"),
    "a ragged row": (header(1) + tensor("t", (33,), kind=8), "not a multiple of 32"),
    "a huge tensor": (header(1) + tensor("t", (2**62, 2**62)), "past the end of the file"),
    "a far tensor": (header(1) + tensor("t", (1,), offset=2**40), "past the end of the file"),
    "a crooked tensor": (header(1) + tensor("t", (1,), offset=9) + bytes(99), "not aligned to 32"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_told_in_one_sentence(name: str, tmp_path: Path):
    path = tmp_path / "broken.gguf"
    content, problem = BROKEN[name]
    path.write_bytes(content)

    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)

    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert problem in message
    assert message.endswith((".", ")"))
    assert "\n" not in message


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"none\.gguf: cannot be read: No such file"):
        read_gguf(tmp_path / "none.gguf")


def test_every_truncation_is_a_checkpoint_error(small: Path, tmp_path: Path):
    content = small.read_bytes()
    for size in range(0, len(content) - 1, 5):
        (tmp_path / "cut.gguf").write_bytes(content[:size])
        # what the padding at the end leaves out is no loss
        if size < len(content) - 32:
            with pytest.raises(CheckpointError):
                read_gguf(tmp_path / "cut.gguf")


def test_flipped_bytes_end_in_a_checkpoint_error_or_in_a_well_formed_file(
    small: Path, tmp_path: Path
):
    """Whatever the damage, memory and time stay small, and tensors stay inside the file."""
    content = np.frombuffer(small.read_bytes(), dtype=np.uint8)
    chance = np.random.default_rng(11)
    path = tmp_path / "flipped.gguf"
    errors, slowest_s = 0, 0.0
    for _ in range(600):
        damaged = content.copy()
        places = chance.integers(4, len(content), chance.integers(1, 5))
        damaged[places] = chance.choice([0, 1, 9, 0x7F, 0x80, 0xFF], len(places))
        path.write_bytes(damaged.tobytes())
        start_s = time.process_time()
        try:
            file = read_gguf(path)
            assert all(len(file.data(n)) == t.num_bytes for n, t in file.tensors.items())
        except CheckpointError:
            errors += 1
        slowest_s = max(slowest_s, time.process_time() - start_s)

    assert errors > 200
    assert slowest_s < 0.5
