"""Seconds from starting the process to the first streamed token, and to the end of --help.

The floors are what Python itself takes: importing torch, and doing nothing.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import grpc
import httpx

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub

sys.path.append(str(Path(__file__).parent))
from machine import heading

PYTHON = (sys.executable, "-P")
COMMAND = (*PYTHON, "-m", "cadenza.cli")
QUESTION = "What is the capital of France?"

STARTS = 3
HELPS = 5

FirstToken = Callable[[str], None]  # takes the banner, returns once a token is there


def http_token(banner: str) -> None:
    (base,) = re.findall(r"HTTP (http://\S+)/v1", banner)
    body = {"messages": [{"role": "user", "content": QUESTION}], "stream": True}
    with httpx.stream("POST", f"{base}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line and json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get(
                "content"
            ):
                return
    raise AssertionError("the stream ended without a token")


def grpc_token(banner: str) -> None:
    (address,) = re.findall(r"gRPC (\S+)", banner)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=QUESTION)])
    request = pb.GenerateRequest(input=pb.GenerationInput(chat=chat))
    with grpc.insecure_channel(address) as channel:
        for response in GenerationServiceStub(channel).Generate(request):
            if any(event.HasField("tokens") for event in response.events):
                return
    raise AssertionError("the stream ended without a token")


def start_to(token: FirstToken) -> float:
    """Start a server, wait for its first token, and stop it."""
    started = time.perf_counter()
    command = [*COMMAND, "serve", "demo", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        banner = ""
        for line in process.stdout:
            banner += line
            if "Stop with" in line:
                break
        try:
            token(banner)
            return time.perf_counter() - started
        finally:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)


def seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    print(heading())
    seconds(*PYTHON, "-c", "import torch")  # warms the disk
    start_to(http_token)
    torch_s = median(seconds(*PYTHON, "-c", "import torch") for _ in range(STARTS))
    http_s = median(start_to(http_token) for _ in range(STARTS))
    grpc_s = start_to(grpc_token)
    pass_s = median(seconds(*PYTHON, "-c", "pass") for _ in range(HELPS))
    help_s = median(seconds(*COMMAND, "--help") for _ in range(HELPS))
    print(f"{'':30}{'seconds':>9}{'floor':>9}{'ratio':>8}")
    for name, took_s, floor_s in (
        ("start to first token, HTTP", http_s, torch_s),
        ("start to first token, gRPC", grpc_s, torch_s),
        ("cadenza --help", help_s, pass_s),
    ):
        print(f"{name:30}{took_s:9.2f}{floor_s:9.2f}{took_s / floor_s:8.1f}")
    figures = {
        "start_to_first_token_s": http_s,
        "start_to_first_token_grpc_s": grpc_s,
        "import_torch_s": torch_s,
        "start_to_first_token_ratio": http_s / torch_s,
        "help_s": help_s,
        "python_s": pass_s,
        "help_ratio": help_s / pass_s,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
