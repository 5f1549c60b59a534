"""`cadenza completion`: what a shell needs to complete subcommands and flags."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from cadenza.cli.output import write


def write_completion(app: App, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Write a script that completes what `app` takes; it starts nothing when it completes."""
    write(app.generate_completion(shell=shell))
    return 0
