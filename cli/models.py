"""`cadenza models`: its commands. What they do is imported inside them."""

from __future__ import annotations

from cyclopts import App

models = App(name="models", help="Tell what a model is and what it would take to serve it.")


@models.command
def show(model: str, /) -> int:
    """Tell a model's family, its parameters, the memory that it needs, and whether that is there.

    Parameters
    ----------
    model
        As of `cadenza serve`: a .gguf file, a folder, demo, or a name on the hub.
    """
    from cadenza.cli.model_report import report

    return report(model)
