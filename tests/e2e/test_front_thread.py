"""No call that may block runs on the thread of the front's event loop, whatever clients do.

Seen by a profile function on every thread (calls to C functions, and Python frames) and by an audit
hook (opened files, connections, name look-ups, processes, also where C code asks for them). What
uvloop and gRPC do inside their own C code is beyond both.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import httpx
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cadenza.checkpoints.locate import locate
from cadenza.service.engine_process import start_engine
from cadenza.service.front import Front
from cadenza.service.front_config import Addresses, FrontConfig
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from cadenza.wire.messages import EngineConfig, Ready
from tests.e2e.test_serving import ReflectedSession

# Functions of C, by qualified name. A method of a socket counts unless the socket is non-blocking.
BLOCKING_C = {
    "socket.accept": "accept",
    "socket._accept": "accept",
    "socket.connect": "connect",
    "socket.recv": "receive",
    "socket.recv_into": "receive",
    "socket.recvfrom": "receive",
    "socket.recvmsg": "receive",
    "socket.send": "send",
    "socket.sendall": "send",
    "socket.sendto": "send",
    "socket.sendmsg": "send",
    "Tokenizer.encode": "encode",
    "Tokenizer.encode_batch": "encode",
    "Tokenizer.encode_batch_fast": "encode",
    "sleep": "sleep",
    "select": "select",
    "poll.poll": "select",
    "epoll.poll": "select",
    "FileIO.read": "read",
    "BufferedReader.read": "read",
    "TextIOWrapper.read": "read",
    "TextIOWrapper.readline": "read",
}

# Functions of Python: what leads to an encode, and waits for another thread.
BLOCKING_PYTHON = {
    Tokenizer.encode_text.__code__: "encode",
    Tokenizer.encode_messages.__code__: "encode",
    threading.Thread.join.__code__: "join",
    Future.result.__code__: "result",
}

BLOCKING_AUDITED = {
    "open": "open",
    "socket.connect": "connect",
    "socket.getaddrinfo": "resolve",
    "socket.gethostbyname": "resolve",
    "socket.gethostbyaddr": "resolve",
    "subprocess.Popen": "process",
    "os.posix_spawn": "process",
    "os.fork": "process",
    "os.system": "process",
}

TEMPLATE_FILE = "<template>"  # what jinja2 names the code of a template compiled from text


class Watch:
    """Notes calls that may block: on the watched thread with their stacks, on others by kind."""

    _current: Watch | None = None
    _is_hooked = False

    def __init__(self) -> None:
        self.on_thread: list[str] = []  # "kind: innermost frame < its caller < ..."
        self.elsewhere: Counter[str] = Counter()
        self.is_on = False
        self._thread = threading.get_ident()

    @property
    def kinds(self) -> set[str]:
        return {call.partition(":")[0] for call in self.on_thread}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Profile this thread and those that start from now on. Notes are taken while `is_on`."""
        if not Watch._is_hooked:
            sys.addaudithook(Watch._audit)
            Watch._is_hooked = True  # for good, and inert without a current watch
        Watch._current = self
        before = sys.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
            self.is_on = False
            Watch._current = None

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        watch = Watch._current
        kind = BLOCKING_AUDITED.get(event) if watch is not None and watch.is_on else None
        if kind and (event != "socket.connect" or _waits(arguments[0])):
            watch._note(kind, sys._getframe(1))

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if not self.is_on:
            return
        if event == "c_call":
            kind = BLOCKING_C.get(getattr(function, "__qualname__", ""))
            if kind and _waits(getattr(function, "__self__", None)):
                self._note(kind, frame)
        elif event == "call":
            code = frame.f_code
            kind = "render" if code.co_filename == TEMPLATE_FILE else BLOCKING_PYTHON.get(code)
            if kind and not _is_done(frame):
                self._note(kind, frame)

    def _note(self, kind: str, frame: FrameType) -> None:
        if threading.get_ident() == self._thread:
            self.on_thread.append(f"{kind}: {_stack(frame)}")
        else:
            self.elsewhere[kind] += 1


def _waits(target: object) -> bool:
    """Whether a call on `target` may wait: not so for a socket that is non-blocking."""
    return not isinstance(target, socket.socket) or target.gettimeout() != 0


def _is_done(frame: FrameType) -> bool:
    """Whether the frame is a look at the result of a future that has one."""
    future = frame.f_locals.get("self")
    return isinstance(future, Future) and future.done()


def _stack(frame: FrameType | None) -> str:
    places = []
    while frame is not None and len(places) < 8:
        places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(places)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate("demo").path)


def watched(act: Callable[[], object]) -> Watch:
    """What the watch sees of `act`, called on a loop of uvloop's."""
    watch = Watch()

    async def main() -> None:
        watch.is_on = True
        act()
        watch.is_on = False

    with watch.installed():
        uvloop.run(main())
    return watch


def connect_and_talk(tokenizer: Tokenizer) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        client = socket.create_connection(listener.getsockname())
        with closing(client), closing(listener.accept()[0]) as peer:
            client.sendall(b"x")
            peer.recv(1)


def read_a_file(tokenizer: Tokenizer) -> None:
    Path(__file__).read_text()


def finish_a_thread(tokenizer: Tokenizer) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 0.05).result()


CHAT = [{"role": "user", "content": "Hello"}]

ON_PURPOSE: list[tuple[Callable[[Tokenizer], object], set[str]]] = [
    (connect_and_talk, {"connect", "accept", "send", "receive"}),
    (lambda _: socket.getaddrinfo("127.0.0.1", 80), {"resolve"}),
    (lambda tokenizer: tokenizer.encode_text("Hello"), {"encode"}),
    (lambda tokenizer: tokenizer.backend.encode("Hello"), {"encode"}),
    (lambda tokenizer: tokenizer.template.render(CHAT, max_chars=1000), {"render"}),
    (read_a_file, {"open", "read"}),
    (lambda _: time.sleep(0), {"sleep"}),
    (lambda _: select.select([], [], [], 0), {"select"}),
    (lambda _: subprocess.run([sys.executable, "-c", ""], check=True), {"process"}),
    (finish_a_thread, {"join", "result"}),
]


@pytest.mark.parametrize(
    ("act", "kinds"), ON_PURPOSE, ids=["-".join(sorted(kinds)) for _, kinds in ON_PURPOSE]
)
def test_the_watch_sees_a_blocking_call(
    tokenizer: Tokenizer, act: Callable[[Tokenizer], object], kinds: set[str]
):
    assert watched(lambda: act(tokenizer)).kinds >= kinds


def test_the_watch_lets_a_non_blocking_socket_pass():
    def act() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            ours.send(b"x")
            assert theirs.recv(1) == b"x"

    assert not watched(act).on_thread


def test_the_watch_tells_threads_apart(tokenizer: Tokenizer):
    def act() -> None:
        thread = threading.Thread(target=tokenizer.encode_text, args=("Hello",))
        thread.start()
        while thread.is_alive():
            pass

    watch = watched(act)

    assert watch.elsewhere["encode"] >= 1
    assert "encode" not in watch.kinds


@pytest.mark.timeout(240)
def test_the_front_blocks_its_loop_with_nothing(tokenizer: Tokenizer):
    """The real front and engine, from the moment it is ready until it has drained."""
    watch = Watch()
    clients = ThreadPoolExecutor(1)
    driven: list[Future[None]] = []

    def on_ready(ready: Ready, addresses: Addresses) -> None:
        watch.is_on = True
        driven.append(clients.submit(drive, addresses))
        driven[0].add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    front = Front(
        config(), tokenizer, start_engine(), on_progress=lambda _: None, on_ready=on_ready
    )

    async def main() -> str | None:
        try:
            return await front.run()
        finally:
            watch.is_on = False

    with watch.installed():
        failure = uvloop.run(main())

    assert failure is None
    driven[0].result()
    clients.shutdown()
    assert watch.on_thread == []
    assert watch.elsewhere["encode"] > 10, "nobody tokenised: the watch was blind"
    assert watch.elsewhere["render"] > 3, "nobody rendered a template: the watch was blind"


def config() -> FrontConfig:
    return FrontConfig(
        host="127.0.0.1",
        port=0,
        grpc_port=0,
        model_names=("tiny",),
        engine=EngineConfig(
            model=str(locate("demo").path),
            max_model_len=512,
            num_blocks=128,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            threads=1,
            log_level="error",
        ),
    )


def drive(addresses: Addresses) -> None:
    """Everything that clients do, polite or not; on a thread of its own."""
    base = f"http://{addresses.host}:{addresses.http_port}"
    with httpx.Client(base_url=base, timeout=60) as http:
        look_around(http)
        ask_over_http(http)
        ask_wrongly_over_http(http)
        leave_over_http(addresses)
    with grpc.insecure_channel(f"{addresses.host}:{addresses.grpc_port}") as channel:
        ask_over_grpc(channel)
        ask_wrongly_over_grpc(channel)
        leave_over_grpc(channel)


def look_around(http: httpx.Client) -> None:
    for path in ("health", "ping", "ready", "version", "metrics", "v1/models", "v1/models/tiny"):
        assert http.get(f"/{path}").status_code == 200, path
    for path in ("nowhere", "v1/models/other"):
        assert http.get(f"/{path}").status_code == 404, path
    assert http.get("/v1/completions").status_code == 405


def ask_over_http(http: httpx.Client) -> None:
    chat = {"messages": CHAT, "max_tokens": 4}
    text = {"prompt": ["Once", "Twice"], "max_tokens": 4, "logprobs": 2, "stop": ["zzz"], "n": 2}
    long = {"prompt": "word " * 400, "max_tokens": 2}
    for path, body in (("chat/completions", chat), ("completions", text), ("completions", long)):
        for stream in (False, True):
            answer = http.post(f"/v1/{path}", json={**body, "stream": stream})
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("[DONE]\n\n") == stream


def ask_wrongly_over_http(http: httpx.Client) -> None:
    bodies: list[tuple[str, int]] = [
        ("{", 400),
        ("[]", 400),
        (json.dumps({"messages": CHAT, "model": "other"}), 404),
        (json.dumps({"messages": CHAT, "temperature": -1}), 400),
        (json.dumps({"messages": [{"role": "user", "content": "word " * 4000}]}), 400),
        (json.dumps({"messages": [{"role": "user", "content": "<|im_end|>" * 900}]}), 400),
        (json.dumps({"messages": [{"role": "nobody", "content": []}], "stream": True}), 400),
    ]
    for body, status in bodies:
        answer = http.post("/v1/chat/completions", content=body)
        assert answer.status_code == status, (body[:80], answer.text)


def leave_over_http(addresses: Addresses) -> None:
    """Connections cut in the head, in the body, before the answer, and in its middle."""
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    for sent, received in (
        (head[:20], 0),
        (head + body[:9], 0),
        (head + body, 0),
        (head + body, 900),
    ):
        with socket.create_connection((addresses.host, addresses.http_port)) as connection:
            connection.sendall(sent)
            if received:
                connection.recv(received)


def ask_over_grpc(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    stub = GenerationServiceStub(channel)
    for stream in (stub.Generate(generate()), reflected(channel, 8)):
        events = [event for response in stream for event in response.events]
        assert events[-1].HasField("finished")


def ask_wrongly_over_grpc(channel: grpc.Channel) -> None:
    stub = GenerationServiceStub(channel)
    wrong = pb.GenerateRequest(input=pb.GenerationInput(text="x", temperature=-1))
    with pytest.raises(grpc.RpcError, match="temperature"):
        list(stub.Generate(wrong))
    refused = pb.SessionRequest(submit=pb.Submit(request_id="q", input=wrong.input))
    events = [event for response in stub.Session(iter([refused])) for event in response.events]
    assert events[-1].failed.field == "input.temperature"
    garbage = channel.unary_stream("/cadenza.v1.GenerationService/Generate")
    with pytest.raises(grpc.RpcError, match="not a"):
        list(garbage(b"\xff"))


def leave_over_grpc(channel: grpc.Channel) -> None:
    for stream in (GenerationServiceStub(channel).Generate(generate(400)), reflected(channel, 400)):
        next(stream)
        stream.cancel()
        with suppress(grpc.RpcError):
            list(stream)


def generate(max_tokens: int = 4) -> pb.GenerateRequest:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hello")])
    return pb.GenerateRequest(input=pb.GenerationInput(chat=chat, max_tokens=max_tokens))


def reflected(channel: grpc.Channel, max_tokens: int) -> Any:
    """A Session of three requests, one of them cancelled by the client."""
    session = ReflectedSession(channel)
    generation = {"text": "Once", "max_tokens": max_tokens, "ignore_eos": True}
    requests = [session.submit(name, input=generation) for name in ("a", "b", "c")]
    requests.insert(2, session.request_class(cancel={"request_id": "a"}))
    return session.call(iter(requests))
