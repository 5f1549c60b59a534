"""Help: every flag explains itself, and asking is no failure."""

from __future__ import annotations

import ast
import inspect
import io
from contextlib import redirect_stdout

import pytest
from cyclopts import Argument

from cadenza.cli.main import app, main
from cadenza.cli.options import PolicyOptions, ServeOptions
from cadenza.policies.presets import PRESETS

OWNERS = dict.fromkeys(ServeOptions.model_fields, ServeOptions)
OWNERS |= dict.fromkeys(PolicyOptions.model_fields, PolicyOptions)
FIELDS = list(OWNERS)


def output_of(*arguments: str) -> str:
    """What the command prints on its way to status 0."""
    with redirect_stdout(io.StringIO()) as output, pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    return output.getvalue()


@pytest.fixture(scope="module")
def serve_help() -> str:
    return output_of("serve", "--help")


@pytest.fixture(scope="module")
def arguments() -> list[Argument]:
    return [*app["serve"].assemble_argument_collection(parse_docstring=True)]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_command_names_its_subcommands(flag: str):
    assert "serve" in output_of(flag)


@pytest.mark.parametrize("field", FIELDS)
def test_the_help_shows_every_flag(serve_help: str, field: str):
    assert f"--{field.replace('_', '-')}" in serve_help


@pytest.mark.parametrize("field", FIELDS)
def test_every_flag_says_what_it_does(arguments: list[Argument], field: str):
    (argument,) = [one for one in arguments if one.name == f"--{field.replace('_', '-')}"]

    assert argument.parameter.help == description(field)
    assert len(argument.parameter.help) > len(field)
    assert argument.parameter.help.endswith(".")


def test_the_help_names_every_preset():
    words = description("scheduling_policy").replace(",", "").replace(".", "").split()

    assert {*PRESETS} <= {*words}


def description(field: str) -> str:
    """The text under the field in the source."""
    (body,) = (
        node.body
        for node in ast.walk(ast.parse(inspect.getsource(OWNERS[field])))
        if isinstance(node, ast.ClassDef)
    )
    names = [getattr(getattr(node, "target", None), "id", None) for node in body]
    text = body[names.index(field) + 1]
    assert isinstance(text, ast.Expr), f"{field} has no description"
    assert isinstance(text.value, ast.Constant)
    return " ".join(str(text.value.value).split())
