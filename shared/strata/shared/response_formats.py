"""Checks of the ``response_format`` of a request, shared by the services that accept one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

from strata.api.common.v1.response_format_pb2 import JsonSchemaFormat, ResponseFormat
from strata.protocol.errors import FieldViolation
from strata.shared.json_schemas import UnusableSchemaError, read_schema

MAX_DESCRIPTION = 1_000
_MAX_SCHEMAS = 500
"""Fewer than for tools: every message can have a schema, and reading one takes up to 0.3 ms."""
_FIELD = "response_format"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@lru_cache(maxsize=128)
def read_reply_schema(text: str) -> dict[str, Any]:
    """Returns the schema of a reply, see `read_schema`. The result is cached: do not change it.

    Raises:
        UnusableSchemaError: The schema cannot be used.
    """
    return read_schema(text, most_schemas=_MAX_SCHEMAS)


def response_format_violations(request: Message) -> list[FieldViolation]:
    """Returns the violations in the ``response_format`` of a request; empty if it has none.

    Args:
        request: A message with that field.
    """
    if not request.HasField(_FIELD):
        return []
    wire: ResponseFormat = getattr(request, _FIELD)
    match wire.WhichOneof("format"):
        case None:
            return [FieldViolation(_FIELD, "must be one of text, json_object and json_schema")]
        case "json_schema":
            return _schema_violations(wire.json_schema)
        case _:
            return []


def _schema_violations(wire: JsonSchemaFormat) -> list[FieldViolation]:
    path = f"{_FIELD}.json_schema"
    violations = []
    if not _NAME.fullmatch(wire.name):
        problem = 'must be 1 to 64 letters, digits, "_" or "-"'
        violations.append(FieldViolation(f"{path}.name", problem))
    if len(wire.description) > MAX_DESCRIPTION or "\0" in wire.description:
        problem = f"must have at most {MAX_DESCRIPTION} characters, no NUL among them"
        violations.append(FieldViolation(f"{path}.description", problem))
    try:
        read_reply_schema(wire.schema_json)
    except UnusableSchemaError as error:
        violations.append(FieldViolation(f"{path}.schema_json", str(error)))
    return violations
