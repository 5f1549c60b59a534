"""The protos are clean, and the code committed beside them is theirs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parents[2] / "protos"
BUF = Path(sys.executable).parent / "buf"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_the_protos_pass_lint_and_are_formatted():
    for arguments in (("lint",), ("format", "--diff", "--exit-code")):
        result = run(BUF, *arguments, PROTOS)

        assert result.returncode == 0, result.stdout + result.stderr


def test_lint_is_not_asleep(tmp_path):
    copy = copy_of_protos(tmp_path)
    proto = copy / "cadenza/v1/generation.proto"
    proto.write_text(proto.read_text().replace("string request_id", "string RequestID"))

    assert run(BUF, "lint", copy).returncode != 0


def test_what_breaks_clients_is_noticed_and_what_is_added_is_not(tmp_path):
    copy = copy_of_protos(tmp_path)
    against = ("breaking", copy, "--against", PROTOS)
    proto = copy / "cadenza/v1/admin.proto"
    before = proto.read_text()
    added = "  uint32 in_flight = 1;\n  // More.\n  uint32 more = 99;"
    proto.write_text(before.replace("  uint32 in_flight = 1;", added, 1))
    assert run(BUF, *against).returncode == 0

    for other in ("  uint32 in_flight = 7;", "  string in_flight = 1;", ""):
        proto.write_text(before.replace("  uint32 in_flight = 1;", other, 1))
        assert run(BUF, *against).returncode != 0


def test_the_generated_code_is_current():
    result = run(sys.executable, "-P", PROTOS / "generate.py", "--check")

    assert result.returncode == 0, result.stdout + result.stderr


def test_the_check_sees_a_proto_that_has_moved_on(tmp_path):
    copy = copy_of_protos(tmp_path)
    proto = copy / "cadenza/v1/generation.proto"
    proto.write_text(proto.read_text().replace("uint32 cached_tokens", "uint64 cached_tokens"))
    check = (sys.executable, "-P", copy / "generate.py", "--check")
    result = run(*check)

    assert result.returncode == 1
    assert "generation_pb2.py" in result.stdout
    assert run(*check[:-1]).returncode == 0
    assert run(*check).returncode == 0


def copy_of_protos(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROTOS, tmp_path / "protos"))
