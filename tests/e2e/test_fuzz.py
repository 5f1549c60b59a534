"""Random and hostile calls to the real model: its sampler sees whatever validation lets pass."""

from __future__ import annotations

import grpc
import pytest
import uvloop

from tests.e2e.conftest import Serve
from tests.service.rpc.fuzzing import Service, call_at_random


@pytest.mark.extra
@pytest.mark.timeout(400)
def test_random_and_hostile_calls_are_answered_and_harm_nobody(serve: Serve, tell):
    # So short a context that requests without max_tokens end soon
    server = serve("--max-model-len", "48", "--num-blocks", "64", "--threads", "1")

    async def main() -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            service = Service(channel)
            await call_at_random(service, 0, 48, at_once=12)
            tell(f"{dict(service.seen)}")

    uvloop.run(main())
    assert server.stop() == 0
