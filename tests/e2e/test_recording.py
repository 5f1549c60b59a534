"""What a real service has recorded, replayed under the policy that it served with and another."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadenza.cli.main import main
from tests.e2e.conftest import Serve
from tests.e2e.servers import Served
from tests.e2e.test_serving import until

MANY, FEW = 10, 2  # requests of the tenant that floods the service, and of the one after it
TOKENS = 12


def ask(served: Served, tenant: str, number: int) -> None:
    body = {
        "prompt": [*range(100 + number, 140 + number)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    headers = {"x-gateway-inference-fairness-id": tenant}
    answer = httpx.post(f"{served.http}/v1/completions", json=body, headers=headers, timeout=100)
    assert answer.status_code == 200, answer.text


def load(served: Served) -> None:
    """A flood, and a few of another tenant once it queues."""
    with ThreadPoolExecutor(MANY + FEW) as pool:
        sent = [pool.submit(ask, served, "many", number) for number in range(MANY)]
        until(served, lambda now: now["cadenza:num_requests_waiting"] >= MANY - 3)
        sent += [pool.submit(ask, served, "few", MANY + number) for number in range(FEW)]
        for each in sent:
            each.result()


def cli(*arguments: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert not left.value.code


def p99_ttft_s(profile: dict[str, Any], tenant: str) -> float:
    [own] = [each for each in profile["fairness"]["tenants"] if each["tenant"] == tenant]
    return float(own["p99_ttft_s"])


@pytest.mark.extra
def test_a_recording_tells_what_the_shadow_would_have_done(serve: Serve, tmp_path: Path):
    recording, machine, told = (tmp_path / name for name in ("run", "machine.json", "told.json"))
    limits = ("--max-num-seqs", "2", "--num-blocks", "512", "--max-model-len", "512")
    served = serve(*limits, "--threads", "1", "--record", str(recording))
    shadow = httpx.put(f"{served.http}/v1/policies/shadow", json={"preset": "fair-share"})
    assert shadow.status_code == 200, shadow.text
    load(served)
    compared = httpx.get(f"{served.http}/v1/policies").json()["shadow"]["comparisons"]
    little = "synthetic:requests=3,prompt=20,output=3"
    cli("simulate", little, "--like", served.http, "--json", str(told))
    of_the_service = json.loads(told.read_text())["limits"]
    assert served.stop() == 0

    cli("calibrate", f"{recording}.steps", "--output", str(machine))
    profiles = ("--profile", "fcfs", "--profile", "fair-share")
    cli("simulate", str(recording), "--machine", str(machine), *profiles, "--json", str(told))
    figures = json.loads(told.read_text())
    fcfs, fair = figures["profiles"]

    assert figures["recorded"]["requests"] == fcfs["whole"] == MANY + FEW
    assert figures["limits"] == of_the_service
    assert (of_the_service["max_num_seqs"], of_the_service["num_blocks"]) == (2, 512)
    assert fcfs["e2e_s"]["mean"] == pytest.approx(figures["recorded"]["e2e_s"]["mean"], rel=0.5)
    # The shadow said that somebody else would have come first, and that is who gains
    [order] = [each for each in compared if each["hook"] == "order_admissions"]
    assert order["first_differed"] > 0
    assert p99_ttft_s(fair, "few") < 0.7 * p99_ttft_s(fcfs, "few")
