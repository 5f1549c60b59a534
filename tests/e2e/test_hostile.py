"""Hostile policies in a running service, in both of its processes: others' streams do not notice.

The scheduler's tests have every hook and everything that it can do (`tests/policies/test_hostile`).
Here are real clients, real rests, and what an operator sees. How long a stream stood still is for
`make bench-policies`, as no test is timed.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import httpx
import pytest

from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS, OBSERVERS
from cadenza.policies.profile import OBSERVER
from cadenza.policies.runner import STRIKES
from tests.e2e.conftest import Serve
from tests.e2e.servers import COMMAND, Served
from tests.e2e.test_serving import is_idle, until
from tests.policies.hostile import HostileModule, kinds_of, policy_of

pytestmark = [pytest.mark.extra, pytest.mark.timeout(120)]

TOKENS = 24
PROMPTS = [
    f"{number} things that everybody should know about {number + 1} birds" for number in range(8)
]
LIMITS = ("--max-num-seqs", "4", "--num-blocks", "8", "--max-model-len", "64")  # too few blocks
QUEUE = ("--max-num-queued-reqs", "3")  # one of eight clients is refused now and then

# Without a reservation running requests crowd each other out, now and then
RARE = ("choose_preemption", "on_preempted", "on_resumed")
HOOKS = tuple(hook for hook in (*ENGINE_HOOKS, *FRONT_HOOKS) if hook != "reserve_blocks")
FREQUENT = tuple(hook for hook in HOOKS if hook not in RARE)


def stream(client: httpx.Client, prompt: str) -> tuple[str, int] | None:
    """Text and number of tokens of a streamed answer; None: the service had no room."""
    body = {
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, tokens = "", 0
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code == 503:
            return None
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            text += "".join(choice["text"] for choice in chunk["choices"])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return text, tokens


class Others:
    """Clients that stream the same prompts again and again, each in a thread of its own."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.wanted = {prompt: stream(client, prompt) for prompt in PROMPTS}
        self.wrong: list[Any] = []
        self.num_right = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(each,)) for each in PROMPTS]
        for thread in self._threads:
            thread.start()

    def _read(self, prompt: str) -> None:
        while not self._stop.is_set():
            try:
                got = stream(self._client, prompt)
            except Exception as error:
                self.wrong.append(error)
                return
            if got is None:
                self._stop.wait(0.02)
            elif got == self.wanted[prompt]:
                self.num_right += 1
            else:
                self.wrong.append(got)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Service:
    """A service under hostile policies that have no opinion yet, its clients and its operator."""

    def __init__(self, served: Served, module: HostileModule, client: httpx.Client) -> None:
        self.served, self.module = served, module
        self._client = client
        self.others = Others(client)

    def report(self) -> dict[str, Any]:
        live: dict[str, Any] = self._client.get("/v1/policies").json()["live"]
        return live

    def faults(self) -> dict[str, int]:
        """By hook, since the service started."""
        return {each["hook"]: each["faults"] for each in self.report()["faults"]}

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """A report is a round trip through the engine, which steps meanwhile."""
        for _ in range(20_000):
            if condition(report := self.report()):
                return
        raise AssertionError(report)

    def release(self, policy: str) -> None:
        answer = self._client.post(f"/v1/policies/{policy}/release")
        assert answer.status_code == 200, answer.text

    def check(self, kind: str, hooks: Collection[str], rare: Collection[str] = ()) -> None:
        """Hooks become hostile, are found out, and are released when they have come to reason.

        Nobody waits for the rare ones, which are hostile beside them.
        """
        policies = {policy_of(hook) for hook in hooks}
        before, right = self.faults(), self.others.num_right
        self.module.arm(kind, (*hooks, *rare))
        try:
            self.until(lambda report: {*report["quarantined"]} >= policies)
            metrics = self._client.get("/metrics").text.splitlines()
            faults = self.faults()
        finally:
            self.module.disarm()
            for hook in (*hooks, *rare):
                self.release(policy_of(hook))
        for hook in hooks:
            policy = policy_of(hook)
            # Fewer, where a call took too long on a busy machine before
            assert 0 < faults[hook] - before.get(hook, 0) <= STRIKES
            assert sample(metrics, "policy_faults_by_hook_total", policy, hook) == faults[hook]
            assert sample(metrics, "policy_quarantined", policy) == 1
        assert self.report()["quarantined"] == []
        self.until(lambda _: self.others.num_right > right or bool(self.others.wrong))
        assert self.others.wrong == []


def sample(metrics: list[str], name: str, *labels: str) -> float:
    [line] = [
        line
        for line in metrics
        if line.startswith(f"cadenza:{name}{{") and all(f'"{label}"' in line for label in labels)
    ]
    return float(line.rsplit(" ", 1)[1])


@pytest.fixture(scope="module")
def service(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("plugins")
    module = HostileModule(folder)
    chosen = {hook: OBSERVER if hook in OBSERVERS else hook for hook in HOOKS}
    flags = [f"--policy={decision}={policy_of(hook)}" for hook, decision in chosen.items()]
    served = serve(*LIMITS, *QUEUE, "--plugins-dir", str(folder), "--policy=reserve=none", *flags)
    with httpx.Client(base_url=served.http, timeout=60) as client:
        service = Service(served, module, client)
        yield service
        service.others.stop()
    assert service.others.wrong == []
    until(served, is_idle)
    assert served.stop() == 0


EACH = [(hook, kinds_of(hook)[index % len(kinds_of(hook))]) for index, hook in enumerate(FREQUENT)]


@pytest.mark.parametrize(("hook", "kind"), EACH)
def test_a_hook_is_hostile(service: Service, hook: str, kind: str):
    service.check(kind, [hook])


@pytest.mark.parametrize("kind", ["loops", "sleeps", "raises"])
def test_all_hooks_of_both_processes_are_hostile_at_once(service: Service, kind: str):
    service.check(kind, FREQUENT, RARE)


def test_an_operator_sees_who_is_hostile_and_lets_it_back_in(service: Service):
    hooks = ("order_admissions", "gate_arrivals")
    service.module.arm("sleeps", hooks)
    service.until(lambda report: len(report["quarantined"]) == len(hooks))
    listed = command(service, "list")
    for hook in hooks:
        lines = [line for line in listed.splitlines() if line.startswith(policy_of(hook))]
        assert lines[0].endswith("quarantined")  # after which it may say what was passed over
        assert f"last fault of {policy_of(hook)} in " in listed
    assert "was interrupted after " in listed
    service.module.disarm()
    for hook in hooks:
        command(service, "release", policy_of(hook))
    assert "quarantined" not in command(service, "list")


def command(service: Service, *arguments: str) -> str:
    ended = subprocess.run(
        [*COMMAND, "policies", *arguments, "--server", service.served.http],
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout
