"""As much of JSON Schema as the OpenAPI document uses, to hold answers against it."""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref"),
    *("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems"),
    *("maxProperties", "description", "default", "title"),
}


class Document:
    """An OpenAPI document."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in schema:
            return schema
        return self.told["components"]["schemas"][schema["$ref"].rpartition("/")[2]]

    def faults(self, value: Any, schema: dict[str, Any], where: str = "body") -> list[str]:
        """What is wrong with a value."""
        schema = self.resolve(schema)
        assert set(schema) <= _KNOWN, f"{where}: this test does not know {set(schema) - _KNOWN}"
        if "anyOf" in schema:
            tries = [self.faults(value, each, where) for each in schema["anyOf"]]
            return [] if [] in tries else [f"{where}: none of {tries}"]
        if "enum" in schema:
            return [] if value in schema["enum"] else [f"{where}: {value!r} is none of the values"]
        if "type" in schema and not _is_of(value, schema["type"]):
            return [f"{where}: {value!r} is no {schema['type']}"]
        if isinstance(value, dict):
            return self._object_faults(value, schema, where)
        if isinstance(value, list):
            each = schema.get("items", {})
            return [
                fault
                for index, element in enumerate(value)
                for fault in self.faults(element, each, f"{where}[{index}]")
            ]
        return []

    def _object_faults(
        self, value: dict[str, Any], schema: dict[str, Any], where: str
    ) -> list[str]:
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        faults = [f"{where}.{name} is missing" for name in {*schema.get("required", ())} - {*value}]
        for name, each in value.items():
            if name in known:
                faults += self.faults(each, known[name], f"{where}.{name}")
            elif isinstance(more, dict):
                faults += self.faults(each, more, f"{where}.{name}")
            elif more is False:
                faults.append(f"{where}.{name} is not documented")
        return faults

    def operation(self, method: str, path: str) -> tuple[str, dict[str, Any]] | None:
        """The pattern of a path, and its operation."""
        for pattern, methods in self.told["paths"].items():
            # the longest pattern that fits; literal ones have no braces
            expression = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(pattern))
            if re.fullmatch(expression, path) and method.lower() in methods:
                return pattern, methods[method.lower()]
        return None


def _is_of(value: Any, kinds: str | list[str]) -> bool:
    wanted = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):
        return "boolean" in wanted
    return any(isinstance(value, _TYPES[kind]) for kind in wanted)
