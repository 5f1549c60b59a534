"""Clients that nobody here wrote, as far as they are light; `make clients` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.clients import openai_python, prometheus_text
from tests.clients.checks import Check, checks_of
from tests.e2e.servers import Served

pytestmark = pytest.mark.extra

ASKED = dict(checks_of(vars(openai_python)))
READ = dict(checks_of(vars(prometheus_text)))


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[OpenAI]:
    with openai_python.connect(server.http) as client:
        yield client


@pytest.mark.parametrize("check", ASKED.values(), ids=ASKED)
def test_openai_python(client: OpenAI, check: Check):
    check(client)


@pytest.mark.parametrize("check", READ.values(), ids=READ)
def test_prometheus_client(server: Served, check: Check):
    check(prometheus_text.connect(server.http))
