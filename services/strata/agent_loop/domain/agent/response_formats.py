"""The response format of an agent's replies: text, JSON object or JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from strata.agent_loop.domain.model.chat import JsonReply
from strata.shared.response_formats import read_reply_schema


class ResponseFormatType(StrEnum):
    """The kinds of replies, by their wire names."""

    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of replies; see ``ResponseFormat`` in the protos.

    Attributes:
        type: The kind of replies.
        name: Name of the schema; this and the following fields are for ``json_schema`` only.
        description: Purpose of the object.
        schema_json: The schema as the client sent it. It is kept as text, since models write
            properties in this order and a JSON column does not preserve it.
        strict: Whether the provider is asked to enforce the schema.
    """

    type: ResponseFormatType = ResponseFormatType.TEXT
    name: str = ""
    description: str = ""
    schema_json: str = ""
    strict: bool = True

    @property
    def json_reply(self) -> JsonReply | None:
        """The JSON form that models are asked for; None for any text.

        Raises:
            UnusableSchemaError: The schema cannot be used, although it was accepted.
        """
        match self.type:
            case ResponseFormatType.TEXT:
                return None
            case ResponseFormatType.JSON_OBJECT:
                return JsonReply()
            case ResponseFormatType.JSON_SCHEMA:
                schema = read_reply_schema(self.schema_json)
                return JsonReply(schema, self.name, self.description, self.strict)


TEXT_FORMAT = ResponseFormat()
"""Any text."""


def response_format_to_json(value: ResponseFormat) -> dict[str, Any]:
    """Returns the stored form of a response format."""
    return asdict(value)


def response_format_from_json(value: Mapping[str, Any]) -> ResponseFormat:
    """Returns the response format of a stored form; an empty one is text."""
    kind = ResponseFormatType(value.get("type", ResponseFormatType.TEXT))
    return ResponseFormat(**{**value, "type": kind})
