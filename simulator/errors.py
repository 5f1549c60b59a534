"""What is wrong with something that was given to the simulator."""

from __future__ import annotations


class SimulatorError(ValueError):
    """A trace, a machine or a limit cannot be used. The sentence is for whoever gave it."""
