"""Every format, told by content alone."""

from __future__ import annotations

import fcntl
import gzip
import json
import math
import os
import termios
import threading
import time
from pathlib import Path

import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.readers import read_trace
from cadenza.simulator.trace import Trace


def read(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "anything"
    path.write_text(text)
    return read_trace(path)


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:05,5,1\n"
)


def test_azure_is_sorted_and_begins_at_0(tmp_path: Path):
    trace = read(tmp_path, AZURE)

    assert trace.kind == "Azure"
    assert [each.prompt_tokens for each in trace.requests] == [4808, 3180, 5]
    assert [each.arrival_s for each in trace.requests] == pytest.approx([0, 0.052, 1.02004])


def test_azure_may_name_its_time_zone(tmp_path: Path):
    trace = read(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2,5\n",
    )

    assert trace.requests[1].arrival_s == pytest.approx(0.99007)


@pytest.mark.parametrize(
    "text",
    [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "5,1,2.5,ChatGPT,472,18,490,Conversation log\n"
        "45,1,2.5,ChatGPT,1087,0,1087,Conversation log\n"
        "118,2,9.5,GPT-4,417,276,693,API log\n",
    ],
)
def test_burst_gpt_goes_by_names_of_columns(tmp_path: Path, text: str):
    trace = read(tmp_path, text)

    assert trace.kind == "BurstGPT"
    assert [each[:3] for each in trace.requests] == [(0, 472, 18), (113, 417, 276)]
    assert trace.notes == ("1 requests without an output left out",)


def test_tenants_are_kept_whatever_else_there_is(tmp_path: Path):
    trace = read(
        tmp_path,
        "timestamp_s,client_id,input_tokens,output_tokens,reason_ratio\n0.001,13,26,1057,0.349\n",
    )

    assert trace.kind == "tenants"
    assert trace.requests[0][:4] == (0, 26, 1057, "13")


def test_mooncake_has_milliseconds_and_blocks_of_512(tmp_path: Path):
    trace = read(
        tmp_path,
        lines(
            {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
            {"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 4]},
        ),
    )

    assert (trace.kind, trace.block_tokens) == ("Mooncake", 512)
    assert trace.requests[1].arrival_s == 3
    assert [each.blocks for each in trace.requests] == [(0, 1), (0, 4)]


def test_smaller_blocks_are_told_by_their_number(tmp_path: Path):
    trace = read(
        tmp_path,
        lines(
            {"timestamp": 0, "input_length": 90, "output_length": 5, "hash_ids": [*range(5)]},
            {"timestamp": 1, "input_length": 33, "output_length": 5, "hash_ids": [0, 1, 9]},
        ),
    )

    assert trace.block_tokens == 16
    assert trace.requests[1].blocks == (0, 1)


def test_bailian_has_seconds_chats_and_blocks_of_16(tmp_path: Path):
    chat = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}
    trace = read(
        tmp_path,
        lines(
            {**chat, "timestamp": 61.1, "input_length": 40, "output_length": 5, "hash_ids": [3, 4]},
            {**chat, "timestamp": 62.6, "input_length": 16, "output_length": 5, "hash_ids": [3]},
        ),
    )

    assert (trace.kind, trace.block_tokens) == ("Bailian", 16)
    assert trace.requests[1].arrival_s == pytest.approx(1.5)


RECORD = {
    "arrival_s": 2.5,
    "prompt_tokens": 40,
    "output_tokens": 10,
    "max_tokens": 64,
    "n": 2,
    "tenant": "a",
    "blocks": [5, 6],
    "priority": -1,
    "ttft_target_s": 0.5,
    "tpot_target_s": None,
    "ttft_s": 0.25,
    "e2e_s": 1.25,
    "preemptions": 1,
    "reason": "stop",
}
HEAD = {"format": "cadenza-requests", "version": 1, "block_tokens": 16}


def test_our_own_has_all_that_was_known(tmp_path: Path):
    trace = read(tmp_path, lines(HEAD, RECORD))
    request = trace.requests[0]

    assert (trace.kind, trace.block_tokens, len(trace.requests)) == ("recording", 16, 2)
    assert request[:7] == (0, 40, 5, "a", (5, 6), 64, -1)
    assert (request.ttft_target_s, request.tpot_target_s) == (0.5, math.inf)
    assert request.recorded == (0.25, 1.25, 1)


def test_choices_share_the_preemptions_of_their_request(tmp_path: Path):
    trace = read(tmp_path, lines(HEAD, {**RECORD, "preemptions": 3}))

    assert sum(each.recorded.preemptions for each in trace.requests if each.recorded) == 3


def test_half_a_line_at_the_end_is_what_a_killed_service_leaves(tmp_path: Path):
    trace = read(tmp_path, lines(HEAD, RECORD, RECORD)[:-20])

    assert len(trace.requests) == 2


def test_lines_that_are_empty_count_as_lines(tmp_path: Path):
    head = "\n\nTIMESTAMP,ContextTokens,GeneratedTokens\n"
    assert read(tmp_path, f"{head}\n2023-11-16 18:17:05,1,1\n").kind == "Azure"
    with pytest.raises(SimulatorError, match="line 5: 1 values"):
        read(tmp_path, f"{head}\n1\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "its columns are a, b. Known are Azure"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2: 'yesterday' is no"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:05,1\n", "2 values for 3"),
        ("timestamp_s,client_id,input_tokens,output_tokens\n0,1,x,3\n", "'x' is no number"),
        ("timestamp_s,client_id,input_tokens,output_tokens\n0,1,1.5,3\n", "no number of tokens"),
        ("timestamp_s,client_id,input_tokens,output_tokens\nnan,1,1,3\n", "'nan' is no number"),
        ("timestamp_s,client_id,input_tokens,output_tokens\n1,1,1,0\n", "no request with an out"),
        ('{"a": 1}\n', "its lines have a"),
        ("{\n", "line 1 is no JSON"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[]\n', "line 2 is no object"),
        ('{"timestamp": "0", "input_length": 1, "output_length": 1}\n', "timestamp must be a numb"),
        ('{"timestamp": 0, "input_length": 1, "output_length": -1}\n', "-1 is no number of tokens"),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
            "hash_ids must be a list of whole numbers",
        ),
        (lines({**HEAD, "version": 2}), "version 2"),
        (lines({**HEAD, "block_tokens": 0}), "how many tokens a block has"),
        (lines(HEAD, {**RECORD, "n": 0}), "line 2: n must be from 1"),
        (lines(HEAD, {**RECORD, "prompt_tokens": None}), "prompt_tokens must be a number"),
        (lines(HEAD, {**RECORD, "arrival_s": 10**400}), "arrival_s must be a number"),
        (lines(HEAD, {**RECORD, "ttft_target_s": 0}), "ttft_target_s must be above 0"),
        (lines(HEAD, {**RECORD, "n": 1 << 30}), "n must be from 1"),
        (lines(HEAD, {**RECORD, "priority": 10**30}), "priority must be"),
        (lines({**HEAD, "block_tokens": 10**15}, RECORD), "how many tokens a block has"),
        (lines(HEAD, RECORD)[:-20] + "\n" + lines(RECORD), "line 2 is no JSON"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, said: str):
    with pytest.raises(SimulatorError, match=said.replace(".", r"\.")):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(SimulatorError, match="No such file"):
        read_trace(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-9], "cannot be unpacked"),
        (b"\x1f\x8bnonsense", "cannot be unpacked"),
        (gzip.compress(b"\xff", mtime=0), "no text in UTF-8"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes, said: str):
    (tmp_path / "x").write_bytes(content)

    with pytest.raises(SimulatorError, match=said):
        read_trace(tmp_path / "x")


def test_what_is_packed_is_unpacked_whatever_its_name(tmp_path: Path):
    (tmp_path / "x.csv").write_bytes(gzip.compress(AZURE.encode(), mtime=0))

    assert len(read_trace(tmp_path / "x.csv").requests) == 3


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_may_end_otherwise(tmp_path: Path, end: str):
    for name, text in (("csv", AZURE), ("jsonl", lines(HEAD, RECORD))):
        (tmp_path / name).write_bytes(text.replace("\n", end).encode("utf-8-sig"))

        assert read_trace(tmp_path / name).requests


@pytest.mark.parametrize("content", [AZURE.encode(), gzip.compress(AZURE.encode())])
def test_a_pipe_is_read_to_its_end_in_whatever_pieces_it_comes(tmp_path: Path, content: bytes):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with pipe.open("wb", buffering=0) as file:
            file.write(content[:1])
            while fcntl.ioctl(file, termios.FIONREAD, b"    ") != b"\0\0\0\0":
                time.sleep(0.001)  # nothing tells that it has been read
            file.write(content[1:])

    writer = threading.Thread(target=write)
    writer.start()

    assert len(read_trace(pipe).requests) == 3
    writer.join()
