"""JSON Schema in few words, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


def ref(name: str) -> Schema:
    """A schema among the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def integer(low: int, high: int, **more: Any) -> Schema:
    """An integer from `low` to `high`."""
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def number(low: float, high: float, *, above: bool = False, **more: Any) -> Schema:
    """A number from `low`, or above it, to `high`."""
    return {
        "type": "number",
        "exclusiveMinimum" if above else "minimum": low,
        "maximum": high,
        **more,
    }


def text(max_chars: int | None = None, *, empty: bool = True) -> Schema:
    """A string of at most so many characters."""
    schema = dict(TEXT)
    if max_chars is not None:
        schema["maxLength"] = max_chars
    if not empty:
        schema["minLength"] = 1
    return schema


def items(each: Schema, most: int | None = None, *, least: int = 0) -> Schema:
    """A list."""
    schema: Schema = {"type": "array", "items": each}
    if most is not None:
        schema["maxItems"] = most
    if least:
        schema["minItems"] = least
    return schema


def either(*schemas: Schema) -> Schema:
    """Any of several."""
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return either(schema, {"type": "null"})


def only(*values: Any) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def mapping(each: Schema, most: int | None = None) -> Schema:
    """An object whose keys are anything."""
    schema: Schema = {"type": "object", "additionalProperties": each}
    if most is not None:
        schema["maxProperties"] = most
    return schema


def told(**properties: Schema) -> Schema:
    """An object that we answer with: all of these, and nothing else."""
    return {**closed(**properties), "required": list(properties)}


def taken(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """An object that clients send. Null stands for the default; unknown fields are ignored."""
    return {
        "type": "object",
        "properties": {
            name: schema if name in required else nullable(schema)
            for name, schema in properties.items()
        },
        **({"required": list(required)} if required else {}),
    }


def closed(**properties: Schema) -> Schema:
    """An object with no fields but these, each of which may be missing."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def explained(schema: Schema, description: str) -> Schema:
    """The schema with words for people."""
    return {**schema, "description": description}
