"""Tools to test scheduling without a model: a runner whose tokens betray every mistake."""

from cadenza.testing.driver import Driver
from cadenza.testing.fake_runner import FakeRunner, oracle

__all__ = ["Driver", "FakeRunner", "oracle"]
