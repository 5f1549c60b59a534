"""Sampling in Triton: the same tokens as on the CPU.

As in reference.py: the largest of logit / temperature + Gumbel noise over the tokens that filters
keep. A row's vocabulary is cut into pieces, which programs of their own look at. Filters are a cut:
kept is what scores above it, and of what scores the same, the lowest ids up to some last one. The
cut is found by bisection over the bits of scaled logits, which are never positive, so that their
magnitudes are ordered as integers. Sums are in fp64 and in one order. Noise is computed in fp64 and
rounded, as on the CPU: a GPU's fp32 logarithms are off by more than the scores of likely winners
differ. Source of Philox: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.sampling.columns import Columns

_PIECE = 1024  # tokens a program draws for: four words of noise a thread and Philox call
_WINDOW = 1024  # tokens that a search for a cut reads at once
_PARTS = tl.constexpr(8)  # that each pass of a search cuts what is left into: 11 passes
_INFINITE = tl.constexpr(0x7F800000)  # the bits of an infinite magnitude


@triton.jit  # type: ignore[untyped-decorator]
def _largest_kernel(logits_ptr, largest_ptr, size, stride_lr, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest logit of each piece; +inf where there is a NaN, too."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits_ptr + row * stride_lr + token, mask=token < size, other=float("-inf"))
    x = tl.where(x == x, x, float("inf"))
    tl.store(largest_ptr + row * tl.num_programs(1) + piece, tl.max(x, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _row_largest(largest_ptr, row, num_pieces, PIECES: tl.constexpr):  # type: ignore[no-untyped-def]
    piece = tl.arange(0, PIECES)
    largest = tl.load(
        largest_ptr + row * num_pieces + piece, mask=piece < num_pieces, other=float("-inf")
    )
    return tl.max(largest, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _up_to(  # type: ignore[no-untyped-def]
    row_ptr, size, largest, temperature, bits, WINDOW: tl.constexpr
):
    """Count, and sum the exponentials of, the tokens whose magnitude has at most `bits` [n]."""
    count = tl.zeros_like(bits)
    mass = tl.zeros_like(bits).to(tl.float64)
    for start in range(0, size, WINDOW):
        token = start + tl.arange(0, WINDOW)
        x = tl.load(row_ptr + token, mask=token < size, other=float("-inf"))
        scaled = tl.div_rn(x - largest, temperature)
        magnitude = tl.abs(scaled).to(tl.int32, bitcast=True)
        kept = (magnitude[:, None] <= bits[None, :]) & (token < size)[:, None]  # [WINDOW, n]
        count += tl.sum(kept.to(tl.int32), 0)
        mass += tl.sum(tl.where(kept, tl.exp(scaled).to(tl.float64)[:, None], 0.0), 0)
    return count, mass


@triton.jit  # type: ignore[untyped-decorator]
def _cut_where(  # type: ignore[no-untyped-def]
    row_ptr, size, largest, temperature, most, wanted, BY_MASS: tl.constexpr, WINDOW: tl.constexpr
):
    """The fewest bits, at most `most`, up to which count or mass is what is wanted.

    Returns them, and the count and the mass of all tokens of fewer bits.
    """
    low = tl.full([], -1, tl.int32)  # up to it there is too little
    cut = most
    low_count = tl.full([], 0, tl.int32)
    low_mass = tl.full([], 0.0, tl.float64)
    while cut - low > 1:
        part = (cut - low - 1) // _PARTS + 1
        step = tl.arange(0, _PARTS)
        bits = tl.minimum(low.to(tl.int64) + part.to(tl.int64) * (step + 1), cut).to(tl.int32)
        count, mass = _up_to(row_ptr, size, largest, temperature, bits, WINDOW)
        reached = mass if BY_MASS else count
        is_short = (reached < wanted) & (bits < cut)
        num_short = tl.sum(is_short.to(tl.int32), 0)
        if num_short > 0:
            low_count = tl.sum(tl.where(step == num_short - 1, count, 0), 0)
            low_mass = tl.sum(tl.where(step == num_short - 1, mass, 0.0), 0)
        cut = tl.sum(tl.where(step == num_short, bits, 0), 0)
        low = low + part * num_short
    return cut, low_count, low_mass


@triton.jit  # type: ignore[untyped-decorator]
def _cut_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    largest_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    cuts_ptr,
    last_ids_ptr,
    size,
    num_pieces,
    stride_lr,
    PIECES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """The magnitude up to which tokens are kept, and the last id that is kept of those at it."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures_ptr + row)
    top_k = tl.load(top_ks_ptr + row)
    top_p = tl.load(top_ps_ptr + row)
    largest = _row_largest(largest_ptr, row, num_pieces, PIECES)
    has_top_k = (top_k > 0) & (top_k < size)
    is_failed = tl.abs(largest) == float("inf")
    if (temperature == 0.0) | is_failed | ((top_p >= 1.0) & (not has_top_k)):
        tl.store(cuts_ptr + row, _INFINITE)
        tl.store(last_ids_ptr + row, size)
        return
    row_ptr = logits_ptr + row * stride_lr

    cut = tl.full([], _INFINITE, tl.int32)
    ties = tl.full([], 0x7FFFFFFF, tl.int32)  # that top-k keeps at the cut
    total = tl.full([], 0.0, tl.float64)
    room = tl.full([], float("inf"), tl.float64)  # that ties at the cut have until top-p is reached
    if has_top_k:
        cut, better, better_mass = _cut_where(
            row_ptr, size, largest, temperature, cut, top_k, False, WINDOW
        )
        ties = top_k - better
        total = better_mass + ties * _weight(cut)
    if top_p < 1.0:
        if not has_top_k:
            bits = tl.full([1], _INFINITE, tl.int32)
            _, mass = _up_to(row_ptr, size, largest, temperature, bits, WINDOW)
            total = tl.sum(mass, 0)
        most = cut
        cut, better, better_mass = _cut_where(
            row_ptr, size, largest, temperature, most, top_p * total, True, WINDOW
        )
        room = top_p * total - better_mass
        ties = tl.where(cut == most, ties, 0x7FFFFFFF)
    tl.store(cuts_ptr + row, cut)
    last = _last_tie(row_ptr, size, largest, temperature, cut, ties, room, WINDOW)
    tl.store(last_ids_ptr + row, last)


@triton.jit
def _weight(bits):  # type: ignore[no-untyped-def]
    """The exponential of minus the magnitude that has these bits."""
    return tl.exp(-bits.to(tl.float32, bitcast=True)).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def _last_tie(  # type: ignore[no-untyped-def]
    row_ptr, size, largest, temperature, cut, ties, room, WINDOW: tl.constexpr
):
    """The last id kept at the cut: of at most `ties` tokens, and the first to fill the room."""
    last = tl.full([], -1, tl.int32)
    seen = tl.full([], 0, tl.int32)
    weight = _weight(cut)
    for start in range(0, size, WINDOW):
        token = start + tl.arange(0, WINDOW)
        x = tl.load(row_ptr + token, mask=token < size, other=float("-inf"))
        magnitude = tl.abs(tl.div_rn(x - largest, temperature)).to(tl.int32, bitcast=True)
        is_tie = ((magnitude == cut) & (token < size)).to(tl.int32)
        before = seen + tl.cumsum(is_tie, 0) - 1
        kept = (is_tie == 1) & (before < ties) & ((before == 0) | (before * weight < room))
        last = tl.maximum(last, tl.max(tl.where(kept, token, -1), 0))
        seen += tl.sum(is_tie, 0)
    return last


@triton.jit
def _gumbel(word):  # type: ignore[no-untyped-def]
    """-log(-log(1 - u)) of u = (word + 0.5) / 2^32 in fp32 and below 1; then in fp64."""
    uniform = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    u = uniform.to(tl.float64)
    rest = 1.0 - u
    # log1p(-u): the quotient makes up for what 1 - u was rounded by
    exact = tl.where(rest == 1.0, u, -tl.log(rest) * (u / tl.where(rest == 1.0, 1.0, 1.0 - rest)))
    return (-tl.log(exact)).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _draw_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    largest_ptr,
    seeds_ptr,
    positions_ptr,
    choices_ptr,
    temperatures_ptr,
    leasts_ptr,
    cuts_ptr,
    last_ids_ptr,
    scores_ptr,
    tokens_ptr,
    size,
    stride_lr,
    HAS_CUTS: tl.constexpr,
    PIECES: tl.constexpr,
    PIECE: tl.constexpr,
):
    """The best score of each piece, and the lowest token that has it."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    num_pieces = tl.num_programs(1)
    temperature = tl.load(temperatures_ptr + row)
    largest = _row_largest(largest_ptr, row, num_pieces, PIECES)
    row_ptr = logits_ptr + row * stride_lr
    call = piece * (PIECE // 4) + tl.arange(0, PIECE // 4)
    best = tl.full([PIECE // 4], float("-inf"), tl.float32)
    best_token = tl.full([PIECE // 4], 0x7FFFFFFF, tl.int32)
    if temperature == 0.0:
        for word in tl.static_range(4):
            token = 4 * call + word
            x = tl.load(row_ptr + token, mask=token < size, other=float("-inf"))
            is_better = x > best
            best = tl.where(is_better, x, best)
            best_token = tl.where(is_better, token, best_token)
    else:
        least = tl.load(leasts_ptr + row)
        # a seed's 64 bits; int32 bits of a position, a choice and a call are those of uint32
        words = tl.philox(
            tl.load(seeds_ptr + row),
            tl.load(positions_ptr + row) + tl.zeros_like(call),
            tl.load(choices_ptr + row) + tl.zeros_like(call),
            call,
            tl.zeros_like(call),
        )
        for word in tl.static_range(4):
            token = 4 * call + word
            x = tl.load(row_ptr + token, mask=token < size, other=float("-inf"))
            scaled = tl.div_rn(x - largest, temperature)
            kept = scaled >= least
            if HAS_CUTS:
                cut = tl.load(cuts_ptr + row)
                magnitude = tl.abs(scaled).to(tl.int32, bitcast=True)
                is_tie = (magnitude == cut) & (token <= tl.load(last_ids_ptr + row))
                kept = kept & ((magnitude < cut) | is_tie)
            score = tl.where(kept, scaled + _gumbel(words[word]), float("-inf"))
            is_better = score > best
            best = tl.where(is_better, score, best)
            best_token = tl.where(is_better, token, best_token)
    most = tl.max(best, 0)
    place = row * num_pieces + piece
    tl.store(scores_ptr + place, most)
    tl.store(tokens_ptr + place, tl.min(tl.where(best == most, best_token, 0x7FFFFFFF), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _winner_kernel(  # type: ignore[no-untyped-def]
    largest_ptr, raw_largest_ptr, scores_ptr, tokens_ptr, out_ptr, num_pieces, PIECES: tl.constexpr
):
    """The token of the best score, the lowest of equals; -1 for a row that fails."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    mask = piece < num_pieces
    place = row * num_pieces + piece
    scores = tl.load(scores_ptr + place, mask=mask, other=float("-inf"))
    tokens = tl.load(tokens_ptr + place, mask=mask, other=0x7FFFFFFF)
    winner = tl.min(tl.where(scores == tl.max(scores, 0), tokens, 0x7FFFFFFF), 0)
    largest = _row_largest(largest_ptr, row, num_pieces, PIECES)
    raw = _row_largest(raw_largest_ptr, row, num_pieces, PIECES)
    is_failed = (tl.abs(largest) == float("inf")) | (tl.abs(raw) == float("inf"))
    tl.store(out_ptr + row, tl.where(is_failed, -1, winner))


def sample_triton(logits: Tensor, columns: Columns, shaped: Tensor) -> Tensor:
    """Return a token for each row, [rows] int32 on the device of the logits, as `sample` does.

    logits, shaped: [rows, vocab_size] fp32, rows contiguous; columns: of its rows, on its device.
    """
    for given in (logits, shaped):
        if given.dtype != torch.float32 or given.stride(1) != 1 or given.shape != logits.shape:
            raise ValueError(
                f"logits are {given.dtype} of shape {tuple(given.shape)}, strides {given.stride()}"
            )
    rows, size = logits.shape
    if len(columns.seeds) != rows:
        raise ValueError(f"{len(columns.seeds)} rows of settings for {rows} of logits")
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if not rows:
        return out
    num_pieces = triton.cdiv(size, _PIECE)
    pieces = triton.next_power_of_2(num_pieces)
    grid = (rows, num_pieces)

    def largest_of(values: Tensor) -> Tensor:
        largest = torch.empty(grid, dtype=torch.float32, device=values.device)
        _largest_kernel[grid](values, largest, size, values.stride(0), PIECE=_PIECE)
        return largest

    raw_largest = largest_of(logits)
    largest = raw_largest if shaped is logits else largest_of(shaped)
    cuts, last_ids = out, out
    if columns.has_cuts:
        cuts, last_ids = torch.empty_like(out), torch.empty_like(out)
        _cut_kernel[(rows,)](
            shaped,
            largest,
            columns.temperatures,
            columns.top_ks,
            columns.top_ps,
            cuts,
            last_ids,
            size,
            num_pieces,
            shaped.stride(0),
            PIECES=pieces,
            WINDOW=min(_WINDOW, triton.next_power_of_2(size)),
            num_warps=8,
        )
    scores = torch.empty(grid, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(grid, dtype=torch.int32, device=logits.device)
    _draw_kernel[grid](
        shaped,
        largest,
        columns.seeds,
        columns.positions,
        columns.choices,
        columns.temperatures,
        columns.leasts,
        cuts,
        last_ids,
        scores,
        tokens,
        size,
        shaped.stride(0),
        HAS_CUTS=columns.has_cuts,
        PIECES=pieces,
        PIECE=_PIECE,
    )
    _winner_kernel[(rows,)](largest, raw_largest, scores, tokens, out, num_pieces, PIECES=pieces)
    return out
