"""/v1/policies over real sockets, with a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.service.policy_control import MAX_PROFILE_BYTES
from cadenza.wire.messages import UseProfile
from cadenza.wire.policies import HookFaults

from .conftest import OpenServed

AUTHORIZED = {"authorization": "Bearer s3cret"}


def error(response: Any, status: int, code: str | None) -> str:
    assert response.status_code == status, response.text
    body = response.json()["error"]
    assert body["code"] == code
    assert {*body} == {"message", "type", "param", "code"}
    return body["message"]


def test_the_report(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            engine = served.front.engine
            engine.hook_faults = (
                HookFaults("edf", "order_admissions", 3, "ValueError('no')", 2.5, 4, 1),
            )
            engine.quarantined = ("edf",)
            response = await served.http.put(
                "/v1/policies/profile", json={"decisions": {"order": "edf", "guard": ["max-wait"]}}
            )

            assert response.status_code == 200, response.text
            body = (await served.http.get("/v1/policies")).json()
            assert response.json() == body
            assert body["hookspec_version"] == HOOKSPEC_VERSION
            assert [each["name"] for each in body["installed"]] == sorted(BUILTIN)
            edf = next(each for each in body["installed"] if each["name"] == "edf")
            assert edf == {
                "name": "edf",
                "hooks": ["order_admissions"],
                "source": "built in",
                "version": None,
                "requires_hookspec": None,
                "active": ["order_admissions"],
                "stale": False,
            }
            assert body["live"] == {
                "preset": None,
                "decisions": {"order_admissions": ["edf"], "guard_starvation": ["max-wait"]},
                "observers": {},
                "options": {},
                "faults": [
                    {
                        "policy": "edf",
                        "hook": "order_admissions",
                        "process": "engine",
                        "faults": 3,
                        "last_error": "ValueError('no')",
                        "last_fault_age_s": 2.5,
                        "passed_over": 4,
                        "excused": 1,
                    }
                ],
                "quarantined": ["edf"],
            }
            assert body["shadow"] is None

    run(main())


def test_release_and_shadow(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            served.front.engine.quarantined = ("fcfs",)
            released = await served.http.post("/v1/policies/fcfs/release")
            assert released.json()["live"]["quarantined"] == []

            shadowed = await served.http.put("/v1/policies/shadow", json={"preset": "slo"})
            assert shadowed.status_code == 200
            shadow = shadowed.json()["shadow"]
            assert shadow["profile"]["preset"] == "slo"
            assert shadow["profile"]["decisions"] == {"order_admissions": ["edf"]}
            assert [(each["process"], each["hook"]) for each in shadow["comparisons"]] == [
                ("engine", "order_admissions"),
                ("front", "gate_arrivals"),
                ("front", "shed_load"),
            ]
            assert shadow["comparisons"][:1] == [
                {
                    "hook": "order_admissions",
                    "process": "engine",
                    "asked": 8,
                    "unanswered": 1,
                    "differed": 3,
                    "first_differed": 2,
                    "figure": "mean change of place, 1 is reversed",
                    "mean": 0.25,
                }
            ]
            gone = await served.http.delete("/v1/policies/shadow")
            assert gone.json()["shadow"] is None

    run(main())


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 400, "The body is not valid JSON"),
        (b"[]", 400, "The body must be a JSON object."),
        (b'{"options": {"fcfs": {"a": %s}}}' % nested(600), 400, "more than 64 deep"),
        (b'{"preset": %s}' % nested(5000), 400, "more than 64 deep"),
        (b'{"preset": %s}' % nested(60), 400, "preset must be a name, and is [["),
        (b'{"preset": "fifo"}', 400, "there is no preset 'fifo'; presets are fcfs, priority"),
        (
            b'{"decisions": {"order": "lifo"}, "options": {"fcfs": {"a": 1}}}',
            400,
            "2 faults:\n  - there is no policy 'lifo'",
        ),
        (b'{"options": {"cost-model": {"x": 1}}}', 400, "takes no options"),
        (
            b'{"preset": "priority", "options": {"priority": {"aging_s": %d}}}' % (1 << 70),
            400,
            "[options.priority] aging_s cannot be passed on",
        ),
        (b'{"preset": "priority", "options": {"priority": {"aging_s": 1e999}}}', 400, "not valid"),
        (b'{"preset": 1%s}' % (b"0" * 400), 400, "preset must be a name, and is 10000"),
        (b" " * (MAX_PROFILE_BYTES + 1), 413, "The body is larger than 65536 bytes."),
    ],
)
def test_bad_input(run, serve: OpenServed, content: bytes, status: int, message: str):
    async def main() -> None:
        async with serve() as served:
            for path in ("/v1/policies/profile", "/v1/policies/shadow"):
                response = await served.http.put(path, content=content)
                code = "invalid_value" if status == 400 else None
                assert message in error(response, status, code)

    run(main())


def test_what_the_engine_refuses(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            served.front.engine.policy_error = "there is no policy 'edf'"
            response = await served.http.put("/v1/policies/profile", json={"preset": "slo"})
            assert error(response, 400, "invalid_value") == "there is no policy 'edf'"

    run(main())


def test_an_engine_that_hangs_is_unavailable(run, serve: OpenServed):
    async def main() -> None:
        async with serve(patience_s=0.01) as served:
            served.front.engine.answers_changes = False
            response = await served.http.put("/v1/policies/profile", json={"preset": "slo"})
            assert "within 0.01 s" in error(response, 503, "engine_unavailable")
            assert response.headers["retry-after"] == "1"
            response = await served.http.put("/v1/policies/profile", json={"preset": "slo"})
            assert "under way" in error(response, 409, "change_under_way")

    run(main())


def test_an_unknown_policy_is_not_found(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            response = await served.http.post("/v1/policies/lifo/release")
            assert "'lifo' is not in use" in error(response, 404, "policy_not_found")

    run(main())


def test_a_conflict_may_be_tried_again(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            engine = served.front.engine
            engine.answers_changes = False
            put = served.http.put("/v1/policies/profile", json={"preset": "slo"})
            first = asyncio.create_task(put)
            await engine.until(
                lambda: any(isinstance(message, UseProfile) for message in engine.received)
            )
            response = await served.http.put("/v1/policies/profile", json={})
            assert "under way" in error(response, 409, "change_under_way")
            assert response.headers["retry-after"] == "1"
            change = next(each for each in engine.received if isinstance(each, UseProfile))
            engine.answer_change(change)
            assert (await first).status_code == 200

    run(main())


ROUTES = [
    ("GET", "/v1/policies"),
    ("PUT", "/v1/policies/profile"),
    ("PUT", "/v1/policies/shadow"),
    ("DELETE", "/v1/policies/shadow"),
    ("POST", "/v1/policies/fcfs/release"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_is_guarded(run, serve: OpenServed, method: str, path: str):
    async def main() -> None:
        async with serve(admin_key="s3cret") as served:
            send = served.http.request
            missing = await send(method, path, content=b"{}")
            assert "is missing" in error(missing, 401, "invalid_api_key")
            assert missing.headers["www-authenticate"] == "Bearer"
            wrong = await send(method, path, headers={"authorization": "Bearer x"}, content=b"{}")
            assert "not the administrator's key" in error(wrong, 401, "invalid_api_key")
            page = await send(method, path, headers={**AUTHORIZED, "origin": "http://localhost"})
            assert "Web pages" in error(page, 403, "forbidden")
            assert (await send(method, path, headers=AUTHORIZED, content=b"{}")).status_code == 200
        async with serve(is_local=False) as served:
            refused = await served.http.request(method, path, content=b"{}")
            assert "Other machines can reach" in error(refused, 403, "forbidden")
        async with serve() as served:
            for headers in ({"x-forwarded-for": "192.0.2.7"}, {"host": "evil.example"}):
                refused = await served.http.request(method, path, headers=headers, content=b"{}")
                assert "--admin-api-key" in error(refused, 403, "forbidden")

    run(main())


def test_streams_go_on_through_changes(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            body = {"model": "tiny", "prompt": "ab", "max_tokens": 12}
            alone = await served.events("/v1/completions", body)
            served.front.engine.auto = False
            streams = [
                asyncio.create_task(served.events("/v1/completions", body)) for _ in range(4)
            ]
            await served.front.engine.until(lambda: len(served.front.engine.waiting) == 4)
            for preset in ("priority", "slo", "fcfs", "fair-share", "prefix-aware"):
                served.front.engine.step()
                response = await served.http.put("/v1/policies/profile", json={"preset": preset})
                assert response.status_code == 200
            served.front.engine.resume()
            for stream in streams:
                assert texts(await stream) == texts(alone)
            assert served.front.is_clean()

    def texts(events: list[Any]) -> str:
        return "".join(event["choices"][0]["text"] for event in events if event != "[DONE]")

    run(main())
