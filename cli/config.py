"""Where the options of `cadenza serve` come from: flags, then `CADENZA_*`, then a YAML file.

What comes first wins, option by option. Every value is checked, wherever it comes from, and a fault
says where that is.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pydantic
from cyclopts import Parameter
from pydantic.fields import FieldInfo

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServeOptions

PREFIX = "CADENZA_"
FILE_VARIABLE = "CADENZA_CONFIG"
SECRETS = frozenset({"admin_api_key"})
_UNQUOTED = SECRETS | {"otlp_traces_endpoint"}  # which may be wrong for a secret in it
DEFAULT = "default"

# Read elsewhere; not options
_OTHER_VARIABLES = frozenset({"CADENZA_PLUGINS", "CADENZA_TRACE_PLUGINS", FILE_VARIABLE})
_MAX_FILE_BYTES = 1 << 20
# What Python makes of wrong values, and the YAML reader lets through
_LET_THROUGH = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
_FIELDS = ServeOptions.model_fields
# Every name of an option, as of flags but with _, and its field
_NAMES = {
    flag.removeprefix("--").replace("-", "_"): name
    for name, field in _FIELDS.items()
    for each in field.metadata
    if isinstance(each, Parameter)
    for flag in each.name or ()
} | {name: name for name in _FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The options in force, and where each comes from: a flag, a variable, a file, or DEFAULT."""

    options: ServeOptions
    sources: Mapping[str, str]
    warnings: Sequence[str] = ()

    def shown(self) -> dict[str, Any]:
        """Every option as JSON may have it, secrets blotted out."""
        values = self.options.model_dump(mode="json")
        return {
            name: "(secret)" if name in SECRETS and value is not None else value
            for name, value in values.items()
        }


def resolve(
    flags: ServeOptions, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Resolved:
    """Put the options together.

    Args:
        flags: as the command line says, with only those set that it has.
        file: that of `--config`; None: the one that CADENZA_CONFIG names, if any.
        environment: variables. An empty one counts as not set.

    Raises:
        UsageError: the file cannot be used, or a value of any source is wrong.
    """
    given: dict[str, Any] = {}
    sources: dict[str, str] = {}
    named = environment.get(FILE_VARIABLE)
    if file is None and named:
        file = Path(named)
    if file is not None:
        for name, value in _of_file(file).items():
            given[name], sources[name] = value, f"{name} in {file}"
    for name, variable in _variables():
        if value := environment.get(variable):
            if sources.get(name, "").startswith(PREFIX):
                raise UsageError(f"{sources[name]} and {variable} are the same option")
            given[name], sources[name] = _split(name, value), variable
    for name in flags.model_fields_set:
        given[name], sources[name] = getattr(flags, name), flag_of(name)
    try:
        options = ServeOptions.model_validate(given)
    except pydantic.ValidationError as error:
        raise UsageError(told(error, sources)) from error
    every = {name: sources.get(name, DEFAULT) for name in _FIELDS}
    return Resolved(options=options, sources=every, warnings=[*_typos(environment)])


def schema() -> dict[str, Any]:
    """JSON Schema of the YAML file, with names as they are written with `_`."""
    whole = ServeOptions.model_json_schema()
    known = whole["properties"]
    whole["properties"] = {
        spelling: known[name] for spelling, name in _NAMES.items() if name not in SECRETS
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "cadenza serve",
    }


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def told(error: pydantic.ValidationError, sources: Mapping[str, str] | None = None) -> str:
    """What is wrong, in one sentence for each fault; `sources` None: it came from flags."""
    return " ".join(_sentence(fault, sources) for fault in error.errors(include_url=False))


def _sentence(fault: Any, sources: Mapping[str, str] | None) -> str:
    name = str(fault["loc"][0])
    where = flag_of(name) if sources is None else sources.get(name, name)
    value = "" if name in _UNQUOTED else f' "{_quoted(fault["input"])}"'
    hint = ""
    if value and re.match(r"[a-z]+://", str(fault["input"])) and where.startswith(PREFIX):
        hint = " Kubernetes sets such variables for a service of that name: name it otherwise."
    return f"Invalid value{value} for {where}. {_reason(fault, _FIELDS[name])}{hint}"


def _quoted(value: object, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _reason(fault: Any, field: FieldInfo) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] in _OUT_OF_RANGE:
        return _range(field)
    message = str(fault["msg"]).replace("Input should be", "Must be")
    return message if message.endswith(".") else f"{message}."


_OUT_OF_RANGE = frozenset(
    {"greater_than_equal", "less_than_equal", "less_than", "finite_number", "int_parsing_size"}
)


def _range(field: FieldInfo) -> str:
    bounds = {
        bound: getattr(each, bound)
        for each in field.metadata
        for bound in ("ge", "le", "lt")
        if hasattr(each, bound)
    }
    low = bounds["ge"]
    if "lt" in bounds:
        return f"Must be at least {low} and less than {bounds['lt']}."
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind = f"{extra['kind']} " if "kind" in extra else ""
    unit = f" {extra['unit']}" if "unit" in extra else ""
    return f"Must be {kind}from {low} to {bounds['le']}{unit}."


def _variables() -> Iterator[tuple[str, str]]:
    """Fields, and what may set them; a field with two names has two."""
    for spelling, name in _NAMES.items():
        yield name, PREFIX + spelling.upper()


def _split(name: str, value: str) -> str | list[str]:
    """Several values of one variable stand between spaces."""
    return value.split() if tuple in _kinds(_FIELDS[name].annotation) else value


def _kinds(annotation: Any) -> set[Any]:
    return {getattr(annotation, "__origin__", None), *get_args(annotation)}


def _typos(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that are nearly those of an option. Others may be anybody's."""
    known = {variable for _, variable in _variables()} | _OTHER_VARIABLES
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if near := difflib.get_close_matches(variable, known, 1, 0.85):
            yield f"{variable} is not read; did you mean {near[0]}?"


def _of_file(path: Path) -> dict[str, Any]:
    """The options of a YAML file, by the names of fields."""
    import yaml  # type: ignore[import-untyped]

    try:
        content = yaml.load(_read(path), Loader=_loader(yaml))
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it is no YAML"
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path} cannot be read: {problem}{line}") from error
    except RecursionError as error:
        raise UsageError(f"{path} cannot be read: it is nested too deeply") from error
    except _LET_THROUGH as error:
        raise UsageError(f"{path} cannot be read: it is no YAML") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold options, such as `port: 8000`")
    options = {}
    for key, value in content.items():
        spelling = str(key).replace("-", "_")
        _refuse_key(path, spelling)
        name = _NAMES[spelling]
        if name in options:
            raise UsageError(f"{path} has {name} twice")
        if value is not None:
            options[name] = value
    return options


def _refuse_key(path: Path, name: str) -> None:
    if name in SECRETS:
        variable = PREFIX + name.upper()
        raise UsageError(f"{path} has {name}, which belongs into {variable}, not into a file")
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, 1)
        raise UsageError(
            f"{path} has {name}, which is no option"
            + (f"; did you mean {near[0]}?" if near else "")
        )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: it is not UTF-8") from error


def _loader(yaml: Any) -> Any:
    """YAML's safe loader, without aliases, which can stand for more than memory holds.

    A key that comes twice is refused, of which YAML takes the last. A value that is not what its
    tag or its form says is told with its line.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.composer.ComposerError(None, None, "aliases are not taken", mark)
            return super().compose_node(parent, index)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except _LET_THROUGH as error:
                problem = f"this is no {node.tag.rpartition(':')[2]}"  # but may be a secret
                mark = node.start_mark
                raise yaml.constructor.ConstructorError(None, None, problem, mark) from error

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if not isinstance(key, yaml.ScalarNode):
                    problem = "a key must be one word"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                if key.value in seen:
                    problem = f"{key.value} comes twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
