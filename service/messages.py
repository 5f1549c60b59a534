"""Chat messages as a template may see them: known fields only, text only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest

# OpenAI renamed "system" for newer models; templates know the old name
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MAX_PARTS = 1024
MAX_NAME_CHARS = 64


def check_messages(value: Any, max_messages: int) -> list[dict[str, Any]]:
    """OpenAI chat messages with every content as one string. Unknown fields are left out.

    Text parts are joined with newlines, as vLLM does. An assistant's null content is empty text.

    Raises:
        InvalidRequest: names the part, such as `messages[1].content`.
    """
    messages = fields.items(value, "messages", max_messages)
    if not messages:
        raise InvalidRequest("messages must not be empty.", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} must be an object.", field)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise InvalidRequest(f"{field}.role must be one of {known}.", f"{field}.role")
    if value.get("tool_calls") or value.get("function_call"):
        raise InvalidRequest("Tool calls are not supported.", f"{field}.tool_calls")
    message = {"role": ROLES[role], "content": _content(value.get("content"), role, field)}
    if value.get("name") is not None:
        name_field = f"{field}.name"
        message["name"] = fields.string(value["name"], name_field, max_chars=MAX_NAME_CHARS)
    return message


def _content(value: Any, role: str, field: str) -> str:
    field = f"{field}.content"
    if value is None:
        if role == "assistant":
            return ""
        raise InvalidRequest(f"{field} is missing.", field)
    if isinstance(value, str):
        return fields.string(value, field)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        parts = fields.items(value, field, MAX_PARTS)
        return "\n".join(_part(part, f"{field}[{i}]") for i, part in enumerate(parts))
    raise InvalidRequest(f"{field} must be a string or a list of text parts.", field)


def _part(value: Any, field: str) -> str:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} must be an object.", field)
    if value.get("type") != "text":
        raise InvalidRequest(f"{field}.type must be 'text'; only text is supported.", field)
    return fields.string(value.get("text"), f"{field}.text")
