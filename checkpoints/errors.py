"""The one error of this package."""

from __future__ import annotations


class CheckpointError(Exception):
    """A model cannot be found, read or used. Its text is one plain sentence for an operator."""
