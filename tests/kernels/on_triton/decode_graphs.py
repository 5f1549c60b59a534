"""The runner over these kernels: captured decodes, and bits that no company changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cadenza.engine.block_copies import block_copier
from cadenza.engine.decode_graphs import DecodeGraphs
from cadenza.engine.device import Device, Stream, device_of
from cadenza.engine.kv_cache import CacheShape, HostCache, KVCache
from cadenza.engine.models import DecoderConfig
from cadenza.engine.models.decoder import Decoder, _packer
from cadenza.engine.models.families import BY_ARCHITECTURE, Activation
from cadenza.engine.models.layer import Layer
from cadenza.engine.models.plain_layers import PlainLayers
from cadenza.engine.models.rope import Rope
from cadenza.engine.runner import ModelRunner
from cadenza.engine.sampler import Sampler
from cadenza.kernels.linear import pack
from cadenza.kernels.paged_attention import TileCutter
from cadenza.kernels.triton_backend import INTERPRETED
from cadenza.wire.messages import Sampling, SamplingDefaults
from tests.engine.conftest import Row, make_plan, random_tokens
from tests.engine.fake_device import FakeDevice
from tests.kernels.conftest import randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE

VOCABULARY, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 101, 32, 48, 4, 2, 16
CONFIG = DecoderConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCABULARY,
    num_layers=1,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_positions=64,
    eos_token_ids=(),
    sampling=SamplingDefaults(),
    family=BY_ARCHITECTURE["LlamaForCausalLM"],
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_heads=HEADS,
    norm_eps=1e-5,
    activation=Activation.GELU,
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    scale=HEAD_DIM**-0.5,
    attention_softcap=None,
    logits_softcap=None,
    ropes=(Rope(theta=10000.0, rotated=HEAD_DIM),),
    windows=(5,),
    tied_embeddings=True,
)
TOKENS = random_tokens(30, vocab_size=VOCABULARY)
BLOCKS = [[1, 2, 3], [7, 5, 9], [4, 6, 8]]


def _layer(seed: int) -> Layer:
    def weight(*shape: int) -> torch.Tensor:
        return (0.3 * randn(*shape, seed=seed + sum(shape))).to(DEVICE)

    lacking = ("qkv_bias", "query_norm", "key_norm", "output_bias", "attention_post_norm")
    lacking += ("gate_up_bias", "down_bias", "mlp_post_norm")
    return Layer(
        attention_norm=1 + weight(HIDDEN),
        qkv=weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
        output=weight(HIDDEN, HEADS * HEAD_DIM),
        mlp_norm=1 + weight(HIDDEN),
        gate=weight(INNER, HIDDEN),
        up=weight(INNER, HIDDEN) * 0.9,
        down=weight(HIDDEN, INNER),
        **dict.fromkeys(lacking),
    )


@torch.inference_mode()
def runner_on(
    device: Device | None, *, invariant: bool = True, quantization: str = "none"
) -> ModelRunner:
    """Return a runner with captures on a device, or without any."""
    at = torch.device(DEVICE)
    packer = _packer(quantization, at, deterministic=invariant)
    embedding = randn(VOCABULARY, HIDDEN, seed=3).to(at)
    layers = PlainLayers(CONFIG, [_layer(0)], packer)
    head = pack(embedding, invariant=invariant)
    model = Decoder(CONFIG, embedding, layers, torch.ones(HIDDEN, device=at), head)
    shape = CacheShape(
        num_layers=1, block_size=8, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=model.dtype
    )
    cache, host = KVCache(shape, 10, at), HostCache(shape, 0, at)
    cutter = TileCutter(
        kv_heads=KV_HEADS,
        group=HEADS // KV_HEADS,
        head_dim=HEAD_DIM,
        processors=8,
        invariant=invariant,
    )
    streams = device or device_of(at)
    graphs = None
    if device is not None:
        graphs = DecodeGraphs(model, cache, streams, cutter, most_rows=4, longest=24)
        graphs.capture_largest()
    return ModelRunner(
        model,
        cache,
        block_copier(cache, host, device_of(at)),
        Sampler(4, VOCABULARY, at),
        lambda _: (Sampling(temperature=0.0), 0),
        streams,
        cutter,
        graphs,
    )


def capturing() -> FakeDevice | Device:
    return FakeDevice(Stream.COPY) if INTERPRETED else device_of(torch.device(DEVICE))


def rows(lengths: list[int], num_new: list[int]) -> list[Row]:
    return [
        Row(TOKENS[number : number + length], new, BLOCKS[number])
        for number, (length, new) in enumerate(zip(lengths, num_new, strict=True))
    ]


def plan_of(*of: Row) -> Any:
    return make_plan(*of, block_size=8)


def test_a_token_has_the_same_bits_however_it_was_computed() -> None:
    """Deterministic: captured beside others and padding, alone, in a chunk, in one prefill."""
    captured, eager = runner_on(capturing()), runner_on(None)
    whole = eager.logits(plan_of(*rows([10, 6, 3], [10, 6, 3]))).cpu()
    for runner in (captured, eager):
        runner.logits(plan_of(*rows([9, 5, 2], [9, 5, 2])))

    beside = captured.logits(plan_of(*rows([10, 6, 3], [1, 1, 1]))).clone().cpu()
    uncaptured = eager.logits(plan_of(*rows([10, 6, 3], [1, 1, 1]))).cpu()
    alone = eager.logits(plan_of(rows([10], [1])[0])).cpu()
    eager.logits(plan_of(rows([4], [4])[0]))
    chunk = eager.logits(plan_of(rows([10], [6])[0])).cpu()

    assert beside.isfinite().all()
    assert same_bits(beside, uncaptured)
    assert same_bits(beside, whole)
    assert same_bits(alone, beside[:1])
    assert same_bits(chunk, beside[:1])
    if isinstance(captured._device, FakeDevice):
        assert captured._device.num_replays == 1


@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.02), ("fp8", 0.15)])
def test_quantised_products_are_those_of_layers(quantization: str, error: float) -> None:
    """Near what the weights themselves give, and not the same."""
    plan = plan_of(*rows([2, 5], [2, 5]))
    exact, coded = (
        runner_on(None, invariant=False, quantization=each).logits(plan)
        for each in ("none", quantization)
    )

    distance = float((coded - exact).norm() / exact.norm())
    assert 1e-4 < distance < error


@pytest.mark.extra
def test_captured_decodes_draw_the_tokens_of_those_that_are_not() -> None:
    """Padded from three rows to four, with keys split as for so many; and two more steps."""
    captured, eager = (runner_on(device, invariant=False) for device in (capturing(), None))
    drawn: dict[ModelRunner, list[list[int]]] = {captured: [], eager: []}
    for runner, steps in drawn.items():
        for step in range(3):
            lengths = [9 + step, 5 + step, 2 + step]
            plan = plan_of(*rows(lengths, [1] * 3 if step else lengths))
            steps.append(runner.execute(plan).tokens.tolist())

    assert drawn[captured] == drawn[eager]
    assert np.unique(drawn[eager]).size > 3
