"""A policy's `Options`, read from text or TOML values and checked field by field."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cadenza.policies.errors import ProfileError, quoted, reason_of, said, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of a policy's options, for people."""

    name: str
    type: str
    default: Any  # dataclasses.MISSING: must be given

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


def options_of(cls: type) -> tuple[Option, ...]:
    """The options that a policy class takes, in their order; none if it has no `Options`.

    Raises:
        ProfileError: an annotation cannot be read, or a default cannot be made.
    """
    options = getattr(cls, "Options", None)
    if options is None:
        return ()
    hints = _hints(options)
    return tuple(
        Option(name=field.name, type=_spelt(hints[field.name]), default=_default(options, field))
        for field in dataclasses.fields(options)
        if field.init
    )


def read_options(policy: str, cls: type, given: Mapping[str, Any]) -> object | None:
    """The `Options` of `cls` with these values; None if it takes none.

    Raises:
        ProfileError: options that it does not have or that cannot have these values, all of them.
    """
    options = getattr(cls, "Options", None)
    if options is None and given:
        raise ProfileError(f"policy {policy!r} takes no options, and was given {', '.join(given)}")
    return None if options is None else _read(policy, options, options_of(cls), given)


def build_policy(policy: str, cls: type, options: object | None) -> object:
    """An instance of `cls`, which gets its options if it has any.

    Raises:
        ProfileError: the constructor fails.
    """
    try:
        return cls() if options is None else cls(options)
    except (Exception, SystemExit) as error:
        raise ProfileError(f"policy {policy!r} cannot be used: {reason_of(error)}") from error


def _read(
    policy: str, options: type, known: tuple[Option, ...], given: Mapping[str, Any]
) -> object:
    hints = _hints(options)
    names = [option.name for option in known]
    faults, values = [], {}
    for name, value in given.items():
        if name not in names:
            faults.append(f"policy {policy!r}: " + unknown("option", name, names))
            continue
        try:
            # Not strict: numbers and booleans may come as text from the command line
            values[name] = msgspec.convert(value, hints[name], strict=False)
        except msgspec.ValidationError:
            wanted = _spelt(hints[name])
            faults.append(f"policy {policy!r}: {name} must be {wanted}, and is {quoted(value)}")
    missing = [option for option in known if option.is_required and option.name not in given]
    faults += [
        f"policy {policy!r} needs the option {option.name}, of type {option.type}"
        for option in missing
    ]
    if faults:
        raise ProfileError(*faults)
    try:
        built: object = options(**values)
    except (Exception, SystemExit) as error:
        # By a ValueError they say what is wrong with them; anything else is a mistake in them
        reason = said(error) if isinstance(error, ValueError) else reason_of(error)
        raise ProfileError(f"policy {policy!r} refuses its options: {reason}") from error
    return built


def _hints(options: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(options)
    except Exception as error:
        raise ProfileError(
            f"the annotations of {options.__qualname__} cannot be read: {error}"
        ) from error


def _default(options: type, field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is dataclasses.MISSING:
        return field.default
    try:
        return field.default_factory()
    except (Exception, SystemExit) as error:
        raise ProfileError(
            f"the default of {options.__qualname__}.{field.name} cannot be made: {reason_of(error)}"
        ) from error


def _spelt(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
