"""What is written of requests, what is not, and files that cannot be used."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cadenza.service.metrics import Metrics
from cadenza.service.recorder import Recorder, UnusableRecording
from cadenza.service.request import GenerationRequest
from cadenza.service.request_timer import RequestTimer
from cadenza.simulator.readers import read_trace
from cadenza.wire.line_file import LineFile
from tests.service.conftest import OpenFront


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def job(prompt: list[int], **changes: Any) -> Any:
    known = {
        "tenant": "a",
        "priority": 2,
        "ttft_target_s": 0.5,
        "tpot_target_s": None,
        "cache_salt": "",
    }
    return SimpleNamespace(prompt=prompt, checked=SimpleNamespace(**{**known, **changes}))


def record(recorder: Recorder, prompt: list[int], **changes: Any) -> None:
    """A request of three tokens: the first after 0.25 s, the others 0.1 s apart."""
    clock = Clock()
    timer = RequestTimer(Metrics(), clock)
    timer.launched(tenant="a", prompt_tokens=len(prompt), n=1, max_tokens=9)
    timer.watch(recorder.watching(job(prompt, **changes)))
    times = timer.choice()
    for time_s in (0.25, 0.35, 0.45):
        clock.now_s = time_s
        times.token(time_s)
    timer.ended("length")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_request_is_a_line_that_the_simulator_reads(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, 4)
    record(recorder, [*range(10)])
    recorder.close()

    head, line = lines(path)
    assert head == {"format": "cadenza-requests", "version": 1, "block_tokens": 4}
    assert line["reason"] == "length"
    [request] = read_trace(path).requests
    assert (request.prompt_tokens, request.output_tokens, request.max_tokens) == (10, 3, 9)
    assert (request.tenant, request.priority, request.ttft_target_s) == ("a", 2, 0.5)
    assert request.recorded == (0.25, 0.45, 0)
    assert len(request.blocks) == 2


def test_equal_beginnings_have_equal_names_and_no_others(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, 4)
    record(recorder, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    record(recorder, [1, 2, 3, 4, 5, 6, 7, 0])
    record(recorder, [0, 2, 3, 4, 5, 6, 7, 8])
    record(recorder, [1, 2, 3, 4], cache_salt="other")
    recorder.close()

    one, two, three, salted = (line["blocks"] for line in lines(path)[1:])
    assert one[0] == two[0]
    assert len({*one, *two, *three, *salted}) == 6


def test_names_tell_nobody_what_a_prompt_was(tmp_path: Path):
    names = []
    for number in range(2):
        recorder = Recorder(tmp_path / str(number), 4)
        record(recorder, [1, 2, 3, 4])
        recorder.close()
        names.append(lines(tmp_path / str(number))[1]["blocks"])

    assert names[0] != names[1]


def test_a_recording_goes_on_in_its_file(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        recorder = Recorder(path, 4)
        record(recorder, [1, 2, 3, 4])
        recorder.close()

    assert len(lines(path)) == 3
    assert len(read_trace(path).requests) == 2


def test_other_files_are_left_alone(tmp_path: Path):
    (tmp_path / "notes").write_text("mine\n")

    with pytest.raises(UnusableRecording, match="holds something else"):
        Recorder(tmp_path / "notes", 4)
    with pytest.raises(UnusableRecording, match="cannot be written"):
        Recorder(tmp_path, 4)
    assert (tmp_path / "notes").read_text() == "mine\n"


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    recorder = Recorder(tmp_path / "run.jsonl", 4)
    monkeypatch.setattr(LineFile, "write", full)
    with capture_logs() as logs:
        record(recorder, [1, 2, 3, 4])
        record(recorder, [1, 2, 3, 4])

    assert [log["event"] for log in logs] == ["recording_ended"]
    recorder.close()


def test_a_service_records_what_it_served(run, open_front: OpenFront, tmp_path: Path):
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        recorder = Recorder(path, 16)
        async with open_front(recorder=recorder) as front:
            request = GenerationRequest(text="some words", max_tokens=4, tenant="t", n=2)
            async for _ in await front.generator.submit(request):
                pass
        recorder.close()

    run(main())
    line = lines(path)[1]
    assert line["tenant"] == "t"
    assert line["n"] == 2
    assert line["output_tokens"] == 8
    assert line["ttft_s"] <= line["e2e_s"]
    assert "some words" not in path.read_text()
