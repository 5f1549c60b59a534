"""A model whose next token is a hash of all tokens so far, computed as attention computes.

Its keys are small integers, so that sums are exact in any order; what it reads that is not its own,
or not yet written, changes the token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.engine.kv_cache import CacheShape, KVCache
from cadenza.engine.models import ModelBatch, ModelConfig
from cadenza.kernels.paged_attention import QueryTiles, TileCutter
from cadenza.wire.messages import SamplingDefaults

VOCABULARY, PRIME = 997, 8191
BLOCK_SIZE = 4
CUTTER = TileCutter(kv_heads=1, group=1, head_dim=2, processors=1)
SHAPE = CacheShape(
    num_layers=1, block_size=BLOCK_SIZE, num_kv_heads=1, head_dim=2, dtype=torch.float32
)


def oracle(prompt: Sequence[int], num: int) -> list[int]:
    """The `num` tokens after a prompt, by a plain loop."""
    tokens = list(prompt)
    for _ in range(num):
        keys = [(31 * token + 17 * place + 7) % PRIME for place, token in enumerate(tokens)]
        hashed = sum((place + 1) * key for place, key in enumerate(keys))
        tokens.append(hashed % VOCABULARY)
    return tokens[len(prompt) :]


class HashModel:
    """Computes by tiles alone, which are on the device. Its last block stands for nowhere."""

    dtype = torch.float32
    device = torch.device("cpu")
    layers = "plain"

    def __init__(self, max_positions: int = 64) -> None:
        self.config = ModelConfig(
            architecture="Hash",
            vocab_size=VOCABULARY,
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            max_positions=max_positions,
            eos_token_ids=(),
            sampling=SamplingDefaults(),
        )

    def hidden(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        places = cache.blocks[:, 0, 0, :, 0, 0]  # of keys, [blocks, offsets]
        blocks = torch.where(batch.blocks < 0, cache.num_blocks - 1, batch.blocks)
        keys = (31 * batch.tokens + 17 * batch.positions + 7) % PRIME
        places.index_put_((blocks, batch.offsets), keys.float())
        found = torch.zeros(len(batch.tokens) + 1, dtype=torch.float64)
        for tiles in batch.tiles:
            found.index_add_(0, *_attended(places, tiles, len(batch.tokens)))
        return found[:-1].unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        chosen = hidden.remainder(VOCABULARY).long()
        return torch.zeros(len(hidden), VOCABULARY).scatter(1, chosen, 1.0)


def _attended(places: Tensor, tiles: QueryTiles, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Which tokens the tiles are of, padding last of all, and each one's sum over what it sees."""
    steps = torch.arange(tiles.query_rows)
    is_real = steps < tiles.counts[:, None]
    tokens = torch.where(is_real, tiles.first_tokens[:, None] + steps, num_tokens)
    seen_to = tiles.positions[:, None] + steps  # [tiles, steps]
    tables = tiles.block_tables.index_select(0, tiles.rows).long()
    keys = places[tables].flatten(1)  # [tiles, keys]
    key = torch.arange(keys.shape[1])
    weights = torch.where(key <= seen_to[:, :, None], key + 1, 0).double()
    sums = torch.where(weights > 0, weights * keys[:, None, :].double(), 0.0).sum(2)
    return tokens.flatten(), torch.where(is_real, sums, 0.0).flatten()
