"""Where a model's weights come from: a name to tensor lookup, for GGUF files and for folders."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.checkpoints import CheckpointError, GgufFile, ModelFolder
from cadenza.checkpoints.ggml_types import GGML_TYPES
from cadenza.engine.models.config import DecoderConfig

ProgressCallback = Callable[[str, int, int], None]  # stage, done, total (0: not countable)

_AT_ONCE = 1 << 16  # elements that a thread dequantises: they stay in its core's cache

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_FLOATS = ("F64", "F32", "F16", "BF16")  # types of safetensors
_GGUF_NAMES = {
    EMBEDDING: "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    HEAD: "output.weight",
}
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_LAYER_NAMES_WITH_POST_NORMS = _GGUF_LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
COMPUTED = "rotary_emb.inv_freq"  # what old checkpoints store, and nobody reads


class Weights(Protocol):
    """Weights under transformers' names."""

    @property
    def where(self) -> str:
        """The path, for messages."""
        ...

    @property
    def norms_are_offset(self) -> bool:
        """Whether what a family adds to its norms' weights is in them already."""
        ...

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight on the CPU, in any floating dtype.

        Raises CheckpointError when it is missing, has another shape or cannot be read.
        """
        ...

    def unread(self) -> list[str]:
        """Return the names, as stored, of layers' weights that nobody has got, sorted."""
        ...


class WeightSource(Weights, Protocol):
    """Those of a checkpoint, and what it tells before they are read."""

    @property
    def is_bfloat16(self) -> bool:
        """Whether they are stored as bfloat16, as far as the embedding tells, or any."""
        ...

    @property
    def num_values(self) -> int:
        """How many numbers all of them are."""
        ...


class FolderWeights:
    """The safetensors files of a folder, open and memory-mapped."""

    norms_are_offset = False

    def __init__(self, folder: ModelFolder) -> None:
        from safetensors import SafetensorError, safe_open

        self._errors = (SafetensorError, OSError, ValueError)
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._read: set[str] = set()
        self.where = str(folder.path)
        for path in folder.weights:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                names = file.keys()
                kinds = {name: file.get_slice(name).get_dtype() for name in names}
            except self._errors as error:
                raise CheckpointError(
                    f"{path}: not a readable safetensors file ({error}); truncated or corrupt?"
                ) from error
            self._check(path, kinds)
            self._files.update(dict.fromkeys(names, file))

    def _check(self, path: Path, kinds: Mapping[str, str]) -> None:
        """Refuse weights that another file has too, or that are no numbers without a scale."""
        for name, kind in kinds.items():
            if name in self._files:
                raise CheckpointError(f"{path}: {name!r} is in another file of the folder too.")
            # others may be masks, such as `attention.bias` of GPT-NeoX
            if name.endswith(".weight") and kind not in _FLOATS:
                raise CheckpointError(
                    f"{path}: {name!r} is stored as {kind}; of safetensors only"
                    f" {', '.join(_FLOATS)} are supported, nothing quantised."
                )

    def has(self, name: str) -> bool:
        return name in self._files

    @property
    def is_bfloat16(self) -> bool:
        name = EMBEDDING if EMBEDDING in self._files else min(self._files, default=None)
        return name is not None and self._files[name].get_slice(name).get_dtype() == "BF16"

    @property
    def num_values(self) -> int:
        return sum(
            math.prod(file.get_slice(name).get_shape()) for name, file in self._files.items()
        )

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        file = self._files.get(name)
        if file is None:
            raise CheckpointError(f"{self.where}: the weight {name!r} is missing.")
        try:
            weight: Tensor = file.get_tensor(name)
        except self._errors as error:
            raise CheckpointError(f"{self.where}: {name!r} cannot be read: {error}.") from error
        _check_shape(self.where, name, tuple(weight.shape), shape)
        self._read.add(name)
        return weight

    def unread(self) -> list[str]:
        left = sorted(self._files.keys() - self._read)
        return [name for name in left if ".layers." in name and not name.endswith(COMPUTED)]


class GgufWeights:
    """The tensors of a GGUF file, dequantised one at a time."""

    norms_are_offset = True

    def __init__(self, file: GgufFile, config: DecoderConfig) -> None:
        family = config.family
        self._file = file
        self._read: set[str] = set()
        self._layer_names = (
            _GGUF_LAYER_NAMES_WITH_POST_NORMS if family.has_post_norms else _GGUF_LAYER_NAMES
        )
        heads = {
            "self_attn.q_proj": config.num_heads,
            "self_attn.k_proj": config.num_kv_heads,
        }
        self._paired_heads = heads if family.pairs_are_neighbours else {}
        self.where = str(file.path)

    @property
    def is_bfloat16(self) -> bool:
        info = self._file.tensors.get(_GGUF_NAMES[EMBEDDING])
        return info is not None and GGML_TYPES[info.ggml_type].name == "BF16"

    @property
    def is_quantised(self) -> bool:
        """Whether values have to be worked out of what is stored."""
        return any(
            GGML_TYPES[info.ggml_type].block_elements > 1 for info in self._file.tensors.values()
        )

    @property
    def stored(self) -> npt.NDArray[np.uint8]:
        """The whole file, memory-mapped."""
        return self._file.stored

    @property
    def num_values(self) -> int:
        return sum(math.prod(info.shape) for info in self._file.tensors.values())

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        layer = _LAYER.fullmatch(name)
        stored = f"blk.{layer[1]}.{self._layer_names[layer[2]]}.{layer[3]}" if layer else None
        stored = stored or _GGUF_NAMES[name]
        info = self._file.tensors.get(stored)
        if info is None:
            raise CheckpointError(f"{self.where}: the weight {name!r} is missing.")
        _check_shape(self.where, stored, info.shape, shape)
        self._read.add(stored)
        weight = torch.from_numpy(_dequantised(self._file, stored)).view(shape)
        heads = self._paired_heads.get(layer[2]) if layer else None
        return weight if heads is None else _half_rotated(weight, heads)

    def unread(self) -> list[str]:
        left = sorted(self._file.tensors.keys() - self._read)
        return [name for name in left if name.startswith("blk.")]


def _check_shape(where: str, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise CheckpointError(
            f"{where}: {name!r} has the shape {list(found)}, expected {list(expected)}."
        )


def _dequantised(file: GgufFile, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a tensor's values, fp32, flat."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    info = file.tensors[name]
    kind = GGMLQuantizationType(info.ggml_type)
    # not as a memory map, whose every view costs as much as what is done with it
    stored = np.asarray(file.data(name))
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        floats = stored.view(np.float32 if kind is GGMLQuantizationType.F32 else np.float16)
        return floats.astype(np.float32)
    layout = GGML_TYPES[info.ggml_type]
    values = np.empty(math.prod(info.shape), dtype=np.float32)

    def fill(start: int) -> None:
        piece = values[start : start + _AT_ONCE]
        first, last = (
            place // layout.block_elements * layout.block_bytes
            for place in (start, start + len(piece))
        )
        piece[:] = dequantize(stored[first:last], kind)

    try:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, range(0, len(values), _AT_ONCE)))
    except NotImplementedError as error:
        raise CheckpointError(
            f"{file.path}: the tensor {name!r} is stored as {kind.name}, which is not supported."
        ) from error
    return values


def _half_rotated(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of a head's rows, in which the two of a rotary pair are neighbours."""
    pairs = weight.view(heads, len(weight) // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
