"""How much one client, and all together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumptionLimits:
    """Bounds on streams that outlive their connections."""

    grace_s: float = 30.0  # that a stream is kept while nobody reads it
    max_streams: int = 512  # running, or ended and kept
    max_bytes: int = 512 << 10  # of events that are kept of one stream; half of it unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that do not depend on the model. Beyond them a request is refused, never clipped."""

    max_queued: int = 256  # choices without a first seat yet
    max_choices: int = 16
    max_messages: int = 4096
    max_stops: int = 4
    max_stop_chars: int = 256
    max_stop_token_ids: int = 16
    max_logprobs: int = 20
    max_logit_bias: int = 1024
    max_bad_words: int = 128
    max_bad_word_chars: int = 256
    max_salt_chars: int = 128
    max_tenant_chars: int = 128
    resumption: ResumptionLimits = field(default_factory=ResumptionLimits)
