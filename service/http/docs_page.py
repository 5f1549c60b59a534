"""The OpenAPI document as a page for people: without scripts, and fetching nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import msgspec

from cadenza.service.http.schema import Schema

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{border-bottom:1px solid #ccc;margin-top:2.5rem}h3{margin-top:2rem}
code{background:#f3f3f3;padding:.1em .3em}table{border-collapse:collapse;width:100%}
td,th{border:1px solid #ddd;padding:.25rem .5rem;text-align:left;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code{background:#2a2a2a}
td,th{border-color:#444}a{color:#8cf}}
"""


def render(told: dict[str, Any]) -> str:
    """The document as HTML."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Cadenza HTTP API</title><style>{_STYLE}</style></head><body>",
        f"<h1>Cadenza HTTP API {escape(told['info']['version'])}</h1>",
        '<p>For programs: <a href="/openapi.json">/openapi.json</a>.</p>',
    ]
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append(_section(method, path, operation))
    for tag, sections in by_tag.items():
        parts += [f"<h2>{escape(tag)}</h2>", *sections]
    parts.append("<h2>Schemas</h2>")
    parts += [_table(*named) for named in told["components"]["schemas"].items()]
    return "".join([*parts, "</body></html>"])


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<h3><code>{method.upper()} {escape(path)}</code></h3>"]
    parts.append(f"<p>{escape(operation['summary'])}</p>")
    if "requestBody" in operation:
        parts.append(f"<p>Body: {_shown_content(operation['requestBody'])}</p>")
    if headers := [p["name"] for p in operation.get("parameters", ()) if p["in"] == "header"]:
        parts.append(
            f"<p>Headers: {', '.join(f'<code>{escape(name)}</code>' for name in headers)}</p>"
        )
    rows = [
        (escape(status), escape(response["description"]), _shown_content(response))
        for status, response in operation["responses"].items()
    ]
    return "".join([*parts, _rows(("Status", "Meaning", "Body"), rows)])


def _shown_content(holder: dict[str, Any]) -> str:
    return ", ".join(
        f"{_shown(content['schema'])} ({escape(kind)})"
        for kind, content in holder.get("content", {}).items()
    )


def _table(name: str, schema: Schema) -> str:
    rows = [
        (
            f"<code>{escape(field)}</code>{'*' if field in schema.get('required', ()) else ''}",
            _shown(each),
            escape(each.get("description", "")),
        )
        for field, each in schema.get("properties", {}).items()
    ]
    heading = (
        f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>'
    )
    return heading + _rows(("Field, * required", "Type", ""), rows)


def _shown(schema: Schema) -> str:
    """A schema in a few words of HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_shown, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(_encoded(value))}</code>" for value in schema["enum"])
    kinds = schema.get("type", "anything")
    shown = escape(" or ".join(kinds) if isinstance(kinds, list) else kinds)
    if "items" in schema:
        shown += f" of {_shown(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        shown += f" of {_shown(schema['additionalProperties'])}"
    facts = [f"{key} {_encoded(schema[key])}" for key in _FACTS if key in schema]
    return f"{shown} ({escape(', '.join(facts))})" if facts else shown


_FACTS = (
    *("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("maxProperties", "default"),
)


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    if not lines:
        return ""
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{''.join(lines)}</table>"
