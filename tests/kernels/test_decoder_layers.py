"""All layers in one call, at every level that this machine has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.decoder_layers import DecoderShape, LayerWeights, NativeLayers, is_supported
from cadenza.kernels.linear import native
from cadenza.kernels.linear.native import PackedWeight
from cadenza.kernels.native import BFLOAT16, COMPACT_BFLOAT16, library
from cadenza.kernels.rotary_embedding import RotaryTables, rotary_tables
from tests.kernels.conftest import assert_close, randn, same_bits

pytestmark = pytest.mark.skipif(not native.levels(), reason="there was no compiler")


class Kind(NamedTuple):
    """A level, with a dtype and products that it has kernels of its own for."""

    dtype: torch.dtype
    level: str | None = None  # the fastest
    int8: bool = False

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}-{'int8-' if self.int8 else ''}{self.level}"

    @property
    def tolerance(self) -> float:
        """Of the largest value, after three layers."""
        return 5e-2 if self.int8 else 2e-6 if self.dtype == torch.float32 else 2e-2


KINDS = [
    *(Kind(torch.float32, level) for level in native.levels(torch.float32)),
    *(Kind(torch.bfloat16, level) for level in native.levels(torch.bfloat16)),
    *(Kind(torch.bfloat16, level, True) for level in native.levels(torch.int8)),
    *(Kind(torch.float32, level, True) for level in native.levels(torch.int8)[-1:]),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
POSITIONS = 400
# hidden, intermediate, heads, KV heads, head_dim; the last ones fill no panel, pair or lane
SHAPES = {
    "demo": (96, 160, 9, 3, 64),
    "one KV head": (64, 100, 8, 1, 32),
    "as many KV heads": (40, 33, 2, 2, 96),
    "odd": (37, 1, 5, 1, 32),
    "large heads": (48, 17, 4, 2, 256),
    "with all": (64, 48, 6, 2, 32),
}
WINDOWS = (None, 9, 70)  # of the three layers of the last


def shape_of(name: str) -> DecoderShape:
    hidden, intermediate, heads, kv_heads, head_dim = SHAPES[name]
    return DecoderShape(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=1e-5,
    )


def random_weights(shape: DecoderShape, dtype: torch.dtype, seed: int, more: bool) -> LayerWeights:
    """more: with biases, and norms of queries and keys."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_heads * shape.head_dim
    sizes = {
        "attention_norm": (hidden,),
        "qkv": (queries + 2 * shape.num_kv_heads * shape.head_dim, hidden),
        "output": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if more:
        sizes |= {"qkv_bias": sizes["qkv"][:1]}
        sizes |= {"query_norm": (shape.head_dim,), "key_norm": (shape.head_dim,)}
    return LayerWeights(
        **{
            name: (randn(*size, seed=seed + place) / size[-1] ** 0.5 + (len(size) == 1)).to(dtype)
            for place, (name, size) in enumerate(sizes.items())
        }
    )


@dataclass(frozen=True)
class Chunk:
    """Successive positions of one sequence, computed in one step with others."""

    sequence: int
    start: int
    end: int


@dataclass
class Model:
    """Three random layers, and sequences whose keys and values lie in a cache of NaN."""

    name: str  # of its shape
    kind: Kind
    block_size: int = 16
    lengths: tuple[int, ...] = (150, 1, 70)
    seed: int = 0
    shape: DecoderShape = field(init=False)
    layers: list[LayerWeights] = field(init=False)
    rotary: RotaryTables = field(init=False)
    native: NativeLayers = field(init=False)
    hidden: list[Tensor] = field(init=False)  # a sequence, [length, hidden]
    tables: np.ndarray = field(init=False)
    cache: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.shape = shape = shape_of(self.name)
        more = self.name == "with all"
        self.layers = [
            random_weights(shape, self.kind.dtype, 10 * index, more) for index in range(3)
        ]
        if more:
            self.layers = [
                layer._replace(window=window)
                for layer, window in zip(self.layers, WINDOWS, strict=True)
            ]
        half = shape.head_dim // 2
        self.rotary = rotary_tables(1.0 / 1000.0 ** (torch.arange(half) / half), POSITIONS)
        self.pack()
        self.hidden = [
            randn(length, shape.hidden_size, seed=100 + place)
            for place, length in enumerate(self.lengths)
        ]
        self.empty()

    def pack(self) -> None:
        level, int8 = self.kind.level, self.kind.int8
        self.native = NativeLayers(self.shape, self.layers, self.rotary, level, int8=int8)

    def empty(self) -> None:
        """Nothing is computed; blocks lie anew."""
        needed = -(-max(self.lengths) // self.block_size)
        order = np.random.default_rng(self.seed).permutation(needed * len(self.lengths) + 2)
        self.tables = order[: needed * len(self.lengths)].reshape(len(self.lengths), needed)
        sizes = (3, 2, self.block_size, self.shape.num_kv_heads, self.shape.head_dim)
        self.cache = torch.full((len(order), *sizes), float("nan"), dtype=self.kind.dtype)

    def step(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        rows = np.repeat([chunk.sequence for chunk in chunks], [c.end - c.start for c in chunks])
        out = self.native.forward(
            torch.cat([self.hidden[c.sequence][c.start : c.end] for c in chunks]),
            self.cache,
            positions=torch.from_numpy(positions),
            blocks=torch.from_numpy(self.tables[rows, positions // self.block_size]),
            offsets=torch.from_numpy(positions % self.block_size),
            num_context=np.array([chunk.start for chunk in chunks]),
            num_new=np.array([chunk.end - chunk.start for chunk in chunks]),
            block_tables=self.tables[[chunk.sequence for chunk in chunks]],
        )
        return list(out.split([chunk.end - chunk.start for chunk in chunks]))

    def in_chunks(self, sequence: int, size: int) -> Tensor:
        """The whole sequence alone, a chunk a step."""
        length = self.lengths[sequence]
        return torch.cat(
            [
                self.step([Chunk(sequence, start, min(start + size, length))])[0]
                for start in range(0, length, size)
            ]
        )

    def exact(self, sequence: int) -> Tensor:
        """Dense, in double precision."""
        hidden = self.hidden[sequence].double()
        for layer in self.layers:
            exact = (part.double() if isinstance(part, Tensor) else part for part in layer)
            hidden = self._exact_layer(hidden, LayerWeights(*exact))
        return hidden

    def _exact_layer(self, hidden: Tensor, layer: LayerWeights) -> Tensor:
        shape, length = self.shape, len(hidden)
        sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        normed = exact_norm(hidden, layer.attention_norm, shape.norm_eps)
        heads = normed @ layer.qkv.t()
        if layer.qkv_bias is not None:
            heads = heads + layer.qkv_bias
        q, k, v = heads.view(length, -1, shape.head_dim).split(sizes, dim=1)
        if layer.query_norm is not None:
            q = exact_norm(q, layer.query_norm, shape.norm_eps)
            k = exact_norm(k, layer.key_norm, shape.norm_eps)
        group = shape.num_heads // shape.num_kv_heads
        q, k = self._rotated(q), self._rotated(k).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / shape.head_dim**0.5
        ones = torch.ones(length, length, dtype=torch.bool)
        scores = scores.masked_fill(ones.triu(1), float("-inf"))
        if layer.window is not None:
            scores = scores.masked_fill(ones.tril(-layer.window), float("-inf"))
        v = v.repeat_interleave(group, dim=1)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        hidden = hidden + attended @ layer.output.t()
        normed = exact_norm(hidden, layer.mlp_norm, shape.norm_eps)
        gated = torch.nn.functional.silu(normed @ layer.gate.t()) * (normed @ layer.up.t())
        return hidden + gated @ layer.down.t()

    def _rotated(self, heads: Tensor) -> Tensor:
        cos, sin = (table[: len(heads)].double() for table in self.rotary)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@each_kind
@pytest.mark.parametrize("name", SHAPES)
def test_layers_compute_what_dense_ones_do(name: str, kind: Kind) -> None:
    """Prefills, chunks and decodes in one step, where what nobody wrote is NaN."""
    model = Model(name, kind, lengths=(150, 1, 70, 65, 33))
    model.step([Chunk(0, 0, 100), Chunk(2, 0, 69), Chunk(3, 0, 64)])

    found = model.step(
        [Chunk(0, 100, 150), Chunk(1, 0, 1), Chunk(2, 69, 70), Chunk(3, 64, 65), Chunk(4, 0, 33)]
    )

    for sequence, rows in enumerate(found):
        expected = model.exact(sequence)[-len(rows) :]
        assert_close(f"sequence {sequence}", rows, expected, kind.tolerance)


def weights_of(model: Model) -> list[PackedWeight]:
    return [part for layer in model.native._packed for part in layer if hasattr(part, "format")]


@pytest.mark.parametrize("plain", ["qkv", "output", "gate", "down"])
def test_weights_of_a_layer_may_be_packed_in_different_formats(plain: str, monkeypatch) -> None:
    """In 12 bits a value where they allow it; one of them does not here."""
    model = Model("demo", Kind(torch.bfloat16), lengths=(40,))
    spread = torch.where(torch.arange(model.layers[0].gate.shape[1]) % 2 == 0, 2.0**-20, 1.0)
    for layer in model.layers:
        weight = getattr(layer, plain)
        weight *= spread.repeat(2 + weight.shape[1] // len(spread))[: weight.shape[1]].bfloat16()
    model.pack()
    formats = {each.format for each in weights_of(model)}
    mixed = model.in_chunks(0, 40)

    with monkeypatch.context() as patched:
        patched.setattr(PackedWeight, "_formats", (BFLOAT16,))
        model.pack()
    model.empty()

    assert same_bits(model.in_chunks(0, 40), mixed)
    assert {each.format for each in weights_of(model)} == {BFLOAT16}
    level = native.levels().index(native.fastest(torch.bfloat16))
    found = library()
    assert found is not None
    assert len(formats) == (2 if found.takes(level, COMPACT_BFLOAT16) else 1)


@each_kind
@pytest.mark.parametrize("name", ["demo", "as many KV heads", "odd", "with all"])
def test_a_token_has_the_same_bits_in_any_chunk_and_company(
    name: str, kind: Kind, threads: int
) -> None:
    model = Model(name, kind)
    torch.set_num_threads(1)
    alone = model.in_chunks(0, size=1)
    torch.set_num_threads(threads)
    for block_size, size in ((16, 7), (1, 32), (64, 150), (8, 33)):
        model.block_size, model.seed = block_size, size
        model.empty()
        assert same_bits(model.in_chunks(0, size), alone), f"chunks of {size} differ"
        model.empty()
        found = []
        for start in range(0, 150, size):
            end = min(start + size, 150)
            others = (Chunk(1, 0, 1), Chunk(2, start % 70, start % 70 + 1))
            if start < 70:
                others = (others[0], Chunk(2, start, min(end, 70)))
            found.append(model.step([others[0], Chunk(0, start, end), others[1]])[1])
        assert same_bits(torch.cat(found), alone), f"chunks of {size} among others differ"


def in_one_step(model: Model, sequences: Iterable[int]) -> list[Tensor]:
    model.empty()
    return model.step([Chunk(sequence, 0, model.lengths[sequence]) for sequence in sequences])


@each_kind
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(poison: float, kind: Kind) -> None:
    model = Model("demo", kind)
    clean = in_one_step(model, range(3))
    model.hidden[1][0, 5] = poison

    found = in_one_step(model, range(3))

    assert not found[1].isfinite().any()
    assert same_bits(found[0], clean[0])
    assert same_bits(found[2], clean[2])


@each_kind
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize(("place", "block_size"), [(0, 16), (20, 16), (70, 32), (70, 4)])
def test_what_is_not_finite_harms_nothing_before_it(
    place: int, block_size: int, poison: float, kind: Kind
) -> None:
    """Else a published prefix would hold what a later token has spoiled."""
    model = Model("demo", kind, block_size, lengths=(100,))
    clean = model.in_chunks(0, size=1)
    blocks = model.cache[torch.from_numpy(model.tables[0])].clone()
    model.hidden[0][place, 5] = poison
    for size in (1, 7, 100):
        model.empty()
        found = model.in_chunks(0, size)
        assert same_bits(found[:place], clean[:place]), f"chunks of {size}"
        assert not found[place].isfinite().any()
        whole = place // model.block_size
        now = model.cache[torch.from_numpy(model.tables[0])]
        assert same_bits(now[:whole], blocks[:whole]), f"blocks after chunks of {size}"


@each_kind
@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_what_lies_behind_the_last_token_harms_nothing(block_size: int, kind: Kind) -> None:
    """Tokens that were computed once, and are not part of the sequence any more."""
    model = Model("with all", kind, block_size, lengths=(100,))
    clean = model.in_chunks(0, size=100)
    right = model.hidden[0].clone()
    for start, end, poison in ((70, 75, float("nan")), (81, 82, float("inf")), (20, 60, -1e30)):
        model.hidden[0][end:] = poison
        model.in_chunks(0, size=100)
        model.hidden[0][end:] = right[end:]
        found = model.step([Chunk(0, start, end)])[0]
        assert same_bits(found, clean[start:end]), f"{poison} behind {end}"


@each_kind
def test_a_large_residual_does_not_swallow_what_is_added(kind: Kind) -> None:
    """A product's sum is rounded to the residual's scale once, not at every input."""
    model = Model("demo", kind, lengths=(3,))
    model.hidden[0] += 4096.0
    found = in_one_step(model, [0])[0]
    # three layers, two sums each, of half a unit in the last place of 4096
    error = (found.double() - model.exact(0)).abs().max()
    is_exact = kind.dtype == torch.float32 and not kind.int8
    assert error < (6 * 2**-11 * 0.6 if is_exact else 0.1)


@each_kind
def test_scores_far_apart_do_not_overflow(kind: Kind) -> None:
    """Attention that is all on one key, and gates far beyond what exp can hold."""
    model = Model("demo", kind)
    model.layers = [
        layer._replace(qkv=layer.qkv * 30, gate=layer.gate * 300) for layer in model.layers
    ]
    model.pack()

    found = in_one_step(model, [2])[0]

    assert found.isfinite().all()
    if kind.tolerance < 1e-5:  # which key it is may turn on what bf16 rounds
        assert_close("all", found, model.exact(2), 2e-3)


def test_times_are_of_all_parts() -> None:
    model = Model("demo", Kind(torch.float32))
    before = model.native.times
    in_one_step(model, range(3))
    assert all(after > start for after, start in zip(model.native.times, before, strict=True))


def test_what_does_not_fit_is_refused() -> None:
    model = Model("demo", Kind(torch.bfloat16))
    chunk = [Chunk(0, 0, 3)]
    model.cache = model.cache.float()
    with pytest.raises(ValueError, match=r"cache is .*float32; .* \[blocks, 3, 2, 16, 3, 64\]"):
        model.step(chunk)
    model.empty()
    model.cache = model.cache[::2]
    with pytest.raises(ValueError, match="contiguous"):
        model.step(chunk)
    model.block_size = 24
    model.empty()
    with pytest.raises(ValueError, match="a block has a power of two tokens"):
        model.step(chunk)
    model.block_size = 16
    model.empty()
    model.hidden = [rows.bfloat16() for rows in model.hidden]
    with pytest.raises(ValueError, match=r"hidden is \[3, 96\] of .*bfloat16; .* \[tokens, 96\]"):
        model.step(chunk)


def test_places_that_do_not_fit_are_refused() -> None:
    model = Model("demo", Kind(torch.float32))
    right: dict[str, Any] = {
        "positions": torch.arange(3),
        "blocks": torch.zeros(3, dtype=torch.int64),
        "offsets": torch.arange(3),
        "num_context": np.array([0]),
        "num_new": np.array([3]),
        "block_tables": np.zeros((1, 1)),
    }
    for changes, message in (
        ({"positions": torch.arange(3).int()}, r"are \[3\] of torch.int32; 3 tokens have \[3\]"),
        ({"blocks": torch.zeros(6, dtype=torch.int64)[::2]}, "contiguous"),
        ({"offsets": torch.arange(1)}, r"are \[1\]"),
        ({"num_new": np.array([4])}, "num_new 1 of 4 tokens, .*; hidden has 3 tokens"),
        ({"num_context": np.array([0, 0])}, "num_context has 2 rows"),
        ({"block_tables": np.zeros((2, 1))}, "block_tables 2;"),
    ):
        with pytest.raises(ValueError, match=message):
            model.native.forward(model.hidden[0][:3], model.cache, **(right | changes))


def test_shapes_that_kernels_cannot_have_are_not_supported() -> None:
    cpu = torch.device("cpu")
    shape = shape_of("demo")
    assert is_supported(shape, torch.bfloat16, cpu)
    assert not is_supported(shape, torch.float16, cpu)
    assert not is_supported(shape, torch.float32, torch.device("meta"))
    for changes in ({"head_dim": 80}, {"head_dim": 288}, {"num_heads": 99, "num_kv_heads": 3}):
        fields = {name: getattr(shape, name) for name in shape.__slots__} | changes
        assert not is_supported(DecoderShape(**fields), torch.float32, cpu), changes
