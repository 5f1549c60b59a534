"""Loads what transformers runs for us, and tries it before anybody is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.checkpoints import CheckpointError, ModelFolder
from cadenza.engine.kv_cache import CacheShape, KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import ModelConfig
from cadenza.engine.models.folder_config import one_line, transformers_config
from cadenza.engine.models.generation import check_eos, folder_defaults, folder_eos
from cadenza.engine.models.transformers_model import TransformersModel
from cadenza.engine.models.weights import COMPUTED

_TRIED = 8  # tokens of the trial, in two chunks
_FIRST_CHUNK = 5
_BLOCK = 4
# Of the largest logit; fp32 and bf16 round differently in other orders, another model is far off
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
_LAYER_TYPES = ("full_attention", "sliding_attention")


def transformers_model_config(folder: ModelFolder, architecture: str) -> ModelConfig:
    """Describe a folder of a family that is not ours.

    Raises CheckpointError for what is no decoder-only model of texts, or known not to work.
    """
    where, config = str(folder.path), transformers_config(folder, architecture)
    _refuse(where, architecture, config)
    try:
        if config.num_attention_heads < 1:
            raise CheckpointError(f"{where}: there are no attention heads.")
        described = ModelConfig(
            architecture=architecture,
            vocab_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads,
            max_positions=config.max_position_embeddings,
            eos_token_ids=folder_eos(where, folder.generation, config.eos_token_id),
            sampling=folder_defaults(where, folder.generation),
        )
    except AttributeError as error:
        raise CheckpointError(f"{where}: config.json has no {error.name!r}.") from error
    for name in ("vocab_size", "num_layers", "num_kv_heads", "head_dim", "max_positions"):
        size = getattr(described, name)
        if not isinstance(size, int) or size < 1:
            raise CheckpointError(f"{where}: {name} is {size!r}, not positive.")
    check_eos(where, described.eos_token_ids, described.vocab_size)
    return described


def _refuse(where: str, architecture: str, config: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(
            f"{where}: {architecture} is an encoder with a decoder; only decoders are supported."
        )
    for sense in ("vision", "audio"):
        if getattr(config, f"{sense}_config", None) is not None:
            raise CheckpointError(
                f"{where}: {architecture} has {sense} inputs; only models of text are supported."
            )
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise CheckpointError(
            f"{where}: {architecture} is no decoder-only language model of transformers."
        )
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _LAYER_TYPES:
            raise CheckpointError(f"{where}: layers of the type {kind!r} are not supported.")
    # transformers would choose its frequencies for all rows of a step by the longest of them
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = (kind for kind in rope.values() if isinstance(kind, dict))
    if any(kind.get("rope_type") == "longrope" for kind in (rope, *of_layers)):
        raise CheckpointError(f"{where}: LongRoPE is supported in Phi-3 models alone.")


def load_transformers_model(
    path: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> TransformersModel:
    """Load a model and try it.

    Raises CheckpointError when transformers cannot load it, a weight is missing or has another
    shape, or the model does not compute over our cache what it computes by itself.
    """
    where, loaded = str(path), _loaded(path, dtype)
    if not loaded.is_backend_compatible():
        raise CheckpointError(
            f"{where}: {config.architecture} does not let its attention be replaced in this"
            " version of transformers."
        )
    tokens = torch.arange(_TRIED, device=device) % config.vocab_size
    try:
        loaded.eval().to(device)
        expected = loaded(tokens.unsqueeze(0), use_cache=False).logits[0].float()
        model = TransformersModel(config, loaded)
        found = _tried(where, model, tokens, loaded.config)
    except CheckpointError:
        raise
    # a model's own code may raise anything; all mean the same to the operator
    except Exception as error:
        raise CheckpointError(
            f"{where}: {config.architecture} does not run over a paged cache: {one_line(error)}"
        ) from error
    off = (found - expected).abs().max()
    if not off <= _TOLERANCE[dtype] * expected.abs().max():
        raise CheckpointError(
            f"{where}: {config.architecture} does not compute over a paged cache what it computes"
            " by itself; its attention, or a state of its own, is not supported."
        )
    return model


def _loaded(path: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForCausalLM  # its types do not know of the report
    try:
        model, report = auto.from_pretrained(
            path,
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            # else those that config.json names, which may be code on the hub
            attn_implementation="eager",
            experts_implementation=None,
        )
    except Exception as error:  # as in `transformers_config`
        raise CheckpointError(f"{path}: transformers cannot load it: {one_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(f"{path}: the weight {missing[0]!r} is missing.")
    if unread := sorted(name for name in report["unexpected_keys"] if not name.endswith(COMPUTED)):
        raise CheckpointError(
            f"{path}: {unread[0]!r} is not a weight of a model that is configured like this."
        )
    return model


def _tried(where: str, model: TransformersModel, tokens: Tensor, config: Any) -> Tensor:
    """Return the logits after each of `tokens`, in two chunks, [tokens, vocab_size]."""
    shape = CacheShape(
        num_layers=model.config.num_layers,
        block_size=_BLOCK,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=model.dtype,
    )
    cache = KVCache(shape, _TRIED // _BLOCK, tokens.device)
    found = []
    for start, end in ((0, _FIRST_CHUNK), (_FIRST_CHUNK, _TRIED)):
        hidden, step = model.attended(_chunk(tokens, start, end), cache)
        _check_layers(where, model.config, step.windows, config)
        found.append(model.logits(hidden))
    return torch.cat(found)


def _chunk(tokens: Tensor, start: int, end: int) -> ModelBatch:
    positions = torch.arange(start, end, device=tokens.device)
    return ModelBatch(
        tokens=tokens[start:end],
        positions=positions,
        blocks=positions // _BLOCK,
        offsets=positions % _BLOCK,
        num_context=np.array([start], dtype=np.int32),
        num_new=np.array([end - start], dtype=np.int32),
        block_tables=np.arange(_TRIED // _BLOCK, dtype=np.int32)[None],
    )


def _check_layers(
    where: str, ours: ModelConfig, windows: dict[int, int | None], config: Any
) -> None:
    """Refuse layers without attention, and windows that the attention is not told of."""
    if windows.keys() != set(range(ours.num_layers)):
        raise CheckpointError(
            f"{where}: {len(windows)} of the {ours.num_layers} layers of {ours.architecture} go"
            " through transformers' attention interface; models with others are not supported."
        )
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if has_window else "full_attention"] * ours.num_layers
    for layer, kind in enumerate(kinds):
        if kind == "sliding_attention" and windows[layer] is None:
            raise CheckpointError(
                f"{where}: {ours.architecture} does not tell its attention of the sliding window."
            )
