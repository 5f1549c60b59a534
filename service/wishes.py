"""What headers, or metadata, say of a request: whom it counts for, how soon it is wanted, its end.

The names are those of the Gateway API inference extension, but for the timeout's, which is ours.
The tenant's is a gateway's word: it is believed because there are no API keys here by which to tell
a gateway from anybody else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from cadenza.service.errors import InvalidRequest
from cadenza.service.validation import MAX_TARGET_S

TTFT_HEADER, TPOT_HEADER = "x-slo-ttft-ms", "x-slo-tpot-ms"
TIMEOUT_HEADER = "x-request-timeout-ms"
TENANT_HEADER = "x-gateway-inference-fairness-id"

_MAX_MS = MAX_TARGET_S * 1000
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_TENANT = re.compile(r"[!-~]{1,128}")  # what a header carries unchanged, without spaces
FORMS = {
    **dict.fromkeys((TTFT_HEADER, TPOT_HEADER, TIMEOUT_HEADER), _NUMBER),
    TENANT_HEADER: _TENANT,
}  # of whole values


def read_wishes(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The fields of `GenerationRequest` that headers set, whose names are in lower case.

    Raises:
        InvalidRequest: names the first header whose value is none, or which comes twice.
    """
    told: dict[str, list[str]] = {}
    for name, value in headers:
        if name in FORMS:
            told.setdefault(name, []).append(value)
    timeout_s = _seconds(told, TIMEOUT_HEADER)
    wishes = {
        "ttft_target_s": _seconds(told, TTFT_HEADER),
        "tpot_target_s": _seconds(told, TPOT_HEADER),
        "deadline_s": None if timeout_s is None else time.monotonic() + timeout_s,
        "tenant": _tenant(told),
    }
    return {field: wish for field, wish in wishes.items() if wish is not None}


def _seconds(told: Mapping[str, list[str]], name: str) -> float | None:
    value = _only(told, name)
    if value is None:
        return None
    time_ms = float(value) if _NUMBER.fullmatch(value) else 0.0
    if not 0 < time_ms <= _MAX_MS:
        raise InvalidRequest(
            f"{name} must be a number of milliseconds above 0 and at most {_MAX_MS:.0f}.", name
        )
    return time_ms / 1000


def _tenant(told: Mapping[str, list[str]]) -> str | None:
    value = _only(told, TENANT_HEADER)
    if value is not None and not _TENANT.fullmatch(value):
        raise InvalidRequest(
            f"{TENANT_HEADER} must be 1 to 128 visible ASCII characters.", TENANT_HEADER
        )
    return value


def _only(told: Mapping[str, list[str]], name: str) -> str | None:
    values = told.get(name, [None])
    if len(values) > 1:
        raise InvalidRequest(f"{name} must be given only once.", name)
    return values[0]
