"""The commands that talk to a running service, with a server that says what the test wants."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cadenza.cli.main import main
from cadenza.service.policy_report import (
    Comparison,
    HookFaults,
    InstalledPolicy,
    PolicyReport,
    ProfileReport,
    ShadowReport,
)


def profile(order: str, **changes: Any) -> ProfileReport:
    plain = {
        "preset": None,
        "decisions": {"order_admissions": [order], "guard_starvation": ["a", "b"]},
        "observers": {},
        "options": {},
        "faults": [],
        "quarantined": [],
    }
    return ProfileReport(**{**plain, **changes})


FAULTS = HookFaults(
    policy="mine",
    hook="order_admissions",
    process="engine",
    faults=3,
    last_error="ValueError('no')",
    last_fault_age_s=61.7,
    passed_over=4,
    excused=1,
)
REPORT = PolicyReport(
    hookspec_version="0.3.0",
    installed=[
        InstalledPolicy(
            name=name,
            hooks=["order_admissions"],
            source=source,
            version=version,
            requires_hookspec=None,
            active=active,
        )
        for name, source, version, active in (
            ("fcfs", "built in", None, []),
            ("mine", "acme", "1.5", ["order_admissions", "on_finished"]),
        )
    ],
    live=profile("mine", faults=[FAULTS], quarantined=["mine"]),
    shadow=ShadowReport(
        profile=profile("edf"),
        comparisons=[
            Comparison(
                hook="order_admissions",
                process="engine",
                asked=9,
                unanswered=1,
                differed=4,
                first_differed=2,
                figure="mean change of place",
                mean=0.12345,
            ),
            Comparison(
                hook="select_victims",
                process="engine",
                asked=0,
                unanswered=0,
                differed=0,
                first_differed=0,
                figure="mean change of place",
                mean=0.0,
            ),
        ],
    ),
)


class Service:
    """Answers every request alike, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, msgspec.json.encode(REPORT)
        self.asked: list[tuple[str, str, Any, str | None]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                content = json.loads(self.rfile.read(length)) if length else None
                key = self.headers.get("authorization")
                service.asked.append((self.command, self.path, content, key))
                self.send_response(service.status)
                self.send_header("content-length", str(len(service.body)))
                self.send_header("location", f"{service.url}/elsewhere")
                self.end_headers()
                self.wfile.write(service.body)

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CADENZA_ADMIN_API_KEY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(("policies", *arguments))
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    return captured.out


def refusal_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(("policies", *arguments))
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_list_shows_choice_faults_quarantine_and_shadow(capsys, service: Service):
    lines = output_of(capsys, "list", "--server", service.url).splitlines()

    assert service.asked == [("GET", "/v1/policies", None, None)]
    cells = [" ".join(line.split()) for line in lines]
    assert cells == [
        "POLICY FROM DECIDES FAULTS STATE",
        "fcfs built in - - -",
        "mine acme 1.5 order, on_finished 3 quarantined",
        "last fault of mine in order (engine), 62 s ago: ValueError('no')",
        "mine in order (engine): 4 times passed over, 1 excused",
        "",
        "SHADOW POLICIES ASKED DIFFERED FIRST FIGURE",
        "order edf 9, 1 unanswered 4 2 0.123 mean change of place",
        "victims 0 0 0 -",
    ]


def test_list_for_programs_is_the_report(capsys, service: Service):
    output = output_of(capsys, "list", "--server", service.url, "--json")
    assert json.loads(output) == json.loads(service.body)


def test_use_sends_what_the_flags_mean(capsys, service: Service, tmp_path: Path):
    file = tmp_path / "profile.toml"
    file.write_text('[decisions]\nguard = ["max-wait"]\n[options.max-wait]\nmost_s = 9\n')
    flags = ("--policy", "order=edf:slack_s=2", "--policy-file", str(file))

    output = output_of(capsys, "use", "priority", *flags, "--server", f"{service.url}/v1/")

    assert service.asked == [
        (
            "PUT",
            "/v1/policies/profile",
            {
                "preset": "priority",
                "decisions": {
                    "order_admissions": ["edf"],
                    "allow_displacement": ["strict-priority"],
                    "select_victims": ["lowest-priority"],
                    "guard_starvation": ["max-wait"],
                },
                "options": {"max-wait": {"most_s": 9}, "edf": {"slack_s": "2"}},
            },
            None,
        )
    ]
    assert output.split() == ["DECISION", "POLICIES", "order", "mine", "guard", "a,", "b"]


def test_an_edited_file_is_told(capsys, service: Service):
    mine = msgspec.structs.replace(REPORT.installed[1], stale=True)
    report = msgspec.structs.replace(REPORT, installed=[mine])
    service.body = msgspec.json.encode(report)

    told = output_of(capsys, "use", "slo", "--server", service.url).splitlines()
    assert told[-1] == "mine is as it was loaded: its file has changed; restart to use that"
    told = output_of(capsys, "list", "--server", service.url).splitlines()
    assert told[1].endswith("quarantined, file changed: restart")


def test_use_without_a_choice_changes_nothing_and_says_how_to_go_back(capsys, service: Service):
    told = refusal_of(capsys, "use", "--server", service.url)

    assert "a preset, --policy or --policy-file" in told
    assert not service.asked
    assert "`cadenza policies use fcfs`" in told
    output_of(capsys, "use", "fcfs", "--server", service.url)
    assert service.asked[0][2] == {"preset": "fcfs", "decisions": {}, "options": {}}


def test_release_names_any_policy(capsys, service: Service):
    told = output_of(capsys, "release", "a/b?c", "--server", service.url)
    assert told == "a/b?c was not quarantined\n"
    assert service.asked[-1][:2] == ("POST", "/v1/policies/a%2Fb%3Fc/release")


def test_release_tells_those_that_were_out(capsys, service: Service):
    assert output_of(capsys, "release", "mine", "--server", service.url) == "mine is asked again\n"
    shadow = msgspec.structs.replace(REPORT.shadow, profile=profile("edf", quarantined=["edf"]))
    service.body = msgspec.json.encode(msgspec.structs.replace(REPORT, shadow=shadow))
    assert output_of(capsys, "release", "edf", "--server", service.url) == "edf is asked again\n"


def test_list_shows_the_options_in_force(capsys, service: Service):
    live = profile("mine", options={"mine": {"depth": 3, "share": 0.5}, "fcfs": {}})
    shadow = msgspec.structs.replace(
        REPORT.shadow, profile=profile("edf", options={"edf": {"slack_s": 2}})
    )
    report = msgspec.structs.replace(REPORT, live=live, shadow=shadow)
    service.body = msgspec.json.encode(report)

    lines = output_of(capsys, "list", "--server", service.url).splitlines()

    told = [line for line in lines if line.startswith("options")]
    assert told == ["options of mine: depth=3,share=0.5", "options of edf: slack_s=2"]
    assert lines.index(told[0]) < lines.index("") < lines.index(told[1])


def test_shadow_is_set_shown_and_taken_away(capsys, service: Service):
    assert "edf" in output_of(capsys, "shadow", "slo", "--server", service.url)
    assert "9, 1 unanswered" in output_of(capsys, "shadow", "--server", service.url)
    assert output_of(capsys, "shadow", "--off", "--server", service.url) == "no shadow\n"
    service.body = msgspec.json.encode(msgspec.structs.replace(REPORT, shadow=None))
    assert output_of(capsys, "shadow", "--server", service.url) == "no shadow\n"

    assert [asked[:2] for asked in service.asked] == [
        ("PUT", "/v1/policies/shadow"),
        ("GET", "/v1/policies"),
        ("DELETE", "/v1/policies/shadow"),
        ("GET", "/v1/policies"),
    ]
    assert service.asked[0][2]["decisions"] == {"order_admissions": ["edf"]}


def test_the_key_comes_from_flag_or_environment(
    capsys, service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", "of-environment")
    output_of(capsys, "list", "--server", service.url)
    output_of(capsys, "use", "slo", "--server", service.url, "--admin-api-key", "of-flag")

    keys = [asked[3] for asked in service.asked]
    assert keys == ["Bearer of-environment", "Bearer of-flag"]
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", "")
    output_of(capsys, "list", "--server", service.url)
    assert service.asked[-1][3] is None, "an empty variable is not set"
    monkeypatch.setenv("CADENZA_ADMIN_API_KEY", "two words")
    assert "CADENZA_ADMIN_API_KEY must be" in refusal_of(capsys, "list", "--server", service.url)
    assert "printable ASCII" in refusal_of(capsys, "use", "slo", "--admin-api-key", "ü")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_else_is_told_the_key(capsys, service: Service, status: int):
    service.status = status
    told = refusal_of(capsys, "list", "--server", service.url, "--admin-api-key", "k")
    assert f"answers with HTTP status {status}, and not as Cadenza does" in told
    assert [asked[1] for asked in service.asked] == ["/v1/policies"]


def test_a_refusal_is_told_in_the_services_words(capsys, service: Service):
    service.status, service.body = 400, b'{"error": {"message": "there is no policy \'x\'"}}'
    told = refusal_of(capsys, "use", "slo", "--server", service.url)
    assert told == "cadenza: there is no policy 'x'\n"

    service.status, service.body = 401, b'{"error": {"message": "The key is missing."}}'
    told = refusal_of(capsys, "list", "--server", service.url)
    assert told == (
        "cadenza: The key is missing. Here: --admin-api-key, or CADENZA_ADMIN_API_KEY\n"
    )


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b"<html>", "answers with HTTP status 404, and not as Cadenza does"),
        (500, b'{"error": "no"}', "answers with HTTP status 500"),
        (200, b"<html>", "is not Cadenza"),
        (200, b"[]", "is not Cadenza"),
        (200, b"{}", "is not Cadenza, or not this version"),
        (200, b'{"live": {}, "installed": 5}', "is not Cadenza, or not this version"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("list", "--json"),
        ("use", "slo"),
        ("release", "fcfs"),
        ("shadow",),
        ("shadow", "slo"),
        ("shadow", "--off"),
    ],
    ids=" ".join,
)
def test_somebody_else_who_answers(
    capsys, service: Service, status: int, body: bytes, message, command: tuple[str, ...]
):
    service.status, service.body = status, body
    assert message in refusal_of(capsys, *command, "--server", service.url)


def test_a_shadow_that_somebody_else_takes_away_at_once(capsys, service: Service):
    service.body = msgspec.json.encode(msgspec.structs.replace(REPORT, shadow=None))
    told = refusal_of(capsys, "shadow", "slo", "--server", service.url)
    assert "taken it away again" in told


def test_what_a_newer_service_says_besides_is_passed_on(capsys, service: Service):
    service.body = json.dumps({**json.loads(service.body), "news": 1}).encode()
    assert "POLICY" in output_of(capsys, "list", "--server", service.url)
    output = output_of(capsys, "list", "--json", "--server", service.url)
    assert json.loads(output)["news"] == 1


def test_nobody_who_answers(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = refusal_of(capsys, "release", "fcfs", "--server", f"http://127.0.0.1:{port}")

    assert f"nothing answers at http://127.0.0.1:{port} (Connection refused)" in told


def test_one_who_does_not_speak_http(capsys):
    def speak(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"\0\0\0\0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=speak, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        told = refusal_of(capsys, "list", "--server", url)
        thread.join()

    assert "is not Cadenza" in told


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "file:///etc/passwd", "http://", "http://a b", "http://x:y"]
)
def test_an_address_that_is_none(capsys, url: str):
    assert "is no address such as" in refusal_of(capsys, "list", "--server", url)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("use", "fair"), "there is no preset 'fair'"),
        (("use", "--policy", "ordr=fcfs"), "there is no decision 'ordr'"),
        (("use", "--policy-file", "none.toml"), "none.toml cannot be read"),
        (("shadow", "slo", "--off"), "--off takes the shadow away"),
        (("list", "--server", "http://x", "--policy", "order=edf"), "other flags do not apply"),
    ],
)
def test_what_is_wrong_is_told_without_a_service(capsys, arguments: tuple[str, ...], message: str):
    assert message in refusal_of(capsys, *arguments)
