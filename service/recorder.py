"""Requests as they came and what became of them, in a file that `cadenza simulate` replays.

No text and no token ids: of a prompt its length, and for each full block a number that stands for
the block and all before it. Numbers are keyed with a secret of this process, so that nobody can
test what a prompt was.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import structlog

from cadenza.service.job import Job
from cadenza.service.request_timer import Ended
from cadenza.wire.arrays import pack_ids
from cadenza.wire.line_file import LineFile, OtherContent

FORMAT, VERSION = "cadenza-requests", 1
_ID_BYTES = 4
_MICROSECOND = 6  # digits

_log = structlog.get_logger(__name__)


class UnusableRecording(Exception):
    """A file that nothing can be recorded in. The message is one sentence for an operator."""


class Recorder:
    """Appends a line for each request that went to the engine, once it has ended.

    A file that cannot be written any more ends the recording, and nothing else.
    """

    def __init__(self, path: Path, block_tokens: int) -> None:
        """Open the file, which goes on where another recording of ours has ended.

        Raises:
            UnusableRecording: it cannot be opened, or holds something else.
        """
        self._path = path
        self._block_tokens = block_tokens
        self._key = secrets.token_bytes(32)
        # Arrivals of several recordings in one file lie on one clock, which never goes back in each
        self._epoch_s = time.time() - time.monotonic()
        head = {"format": FORMAT, "version": VERSION, "block_tokens": block_tokens}
        try:
            self._file: LineFile | None = LineFile(path, head)
        except OSError as error:
            raise UnusableRecording(f"{path} cannot be written: {error.strerror}") from error
        except OtherContent as error:
            raise UnusableRecording(
                f"{path} holds something else than a recording with blocks of {block_tokens} "
                "tokens; name another file"
            ) from error

    def watching(self, job: Job) -> Callable[[Ended], None]:
        """What to call at the end of a request that is about to be launched."""
        checked = job.checked
        known = {
            "tenant": checked.tenant,
            "blocks": self._names(job.prompt, checked.cache_salt),
            "priority": checked.priority,
            "ttft_target_s": checked.ttft_target_s,
            "tpot_target_s": checked.tpot_target_s,
        }
        return partial(self._end, known)

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _names(self, prompt: Sequence[int], salt: str) -> list[int]:
        """Equal for equal beginnings under equal salts, as in the prefix cache."""
        ids, name, names = pack_ids(prompt), salt.encode(), []
        size = _ID_BYTES * self._block_tokens
        for start in range(0, len(ids) - size + 1, size):
            block = ids[start : start + size] + name
            name = blake2b(block, digest_size=8, key=self._key).digest()
            names.append(int.from_bytes(name, "little") >> 1)  # 63 bits, as JSON's readers like it
        return names

    def _end(self, known: dict[str, Any], ended: Ended) -> None:
        if self._file is None:
            return
        line = {
            "arrival_s": round(self._epoch_s + ended.arrived_s, _MICROSECOND),
            "prompt_tokens": ended.prompt_tokens,
            "output_tokens": ended.generated_tokens,
            "max_tokens": ended.max_tokens,
            "n": ended.n,
            **known,
            "reason": ended.reason,
            "cached_tokens": ended.cached_tokens,
            "ttft_s": _since(ended.first_s, ended.arrived_s),
            "e2e_s": _since(ended.last_s, ended.arrived_s),
            "preemptions": ended.preemptions,
        }
        try:
            self._file.write(line)
        except OSError as error:
            _log.error("recording_ended", path=str(self._path), reason=error.strerror)
            self.close()


def _since(time_s: float | None, begin_s: float) -> float | None:
    return None if time_s is None else round(time_s - begin_s, _MICROSECOND)
