"""The scheduler's limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits, in tokens, blocks and rows. `watermark` is a share of the pool.

    Raises:
        ValueError: limits that contradict each other.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    num_host_blocks: int = 0  # 0: nobody is swapped
    max_preemptions: int = 8  # of one request, before others are preferred as victims
    stall_steps: int = 1000  # steps without any progress, until the head of the queue fails

    @property
    def least_batched_tokens(self) -> int:
        """The smallest token budget: decodes of all seats never keep a prefill from moving on."""
        return self.max_num_seqs + self.block_size

    def __post_init__(self) -> None:
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit the pool of "
                f"{self.num_blocks} blocks of {self.block_size} tokens"
            )
        if self.max_num_batched_tokens < self.least_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is under "
                f"{self.least_batched_tokens}: a token for each of {self.max_num_seqs} running "
                f"requests, and a block of {self.block_size} for a prefill beside them"
            )
        for name in ("num_host_blocks", "max_preemptions", "stall_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark {self.watermark} is no share of the pool in [0, 1)")
