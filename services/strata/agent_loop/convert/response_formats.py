"""Converts response formats."""

from __future__ import annotations

from strata.agent_loop.domain.agent.response_formats import (
    TEXT_FORMAT,
    ResponseFormat,
    ResponseFormatType,
)
from strata.api.common.v1 import response_format_pb2 as pb


def response_format_from_proto(wire: pb.ResponseFormat) -> ResponseFormat:
    """Returns the domain form of a response format; an unset one is text."""
    match wire.WhichOneof("format"):
        case "json_object":
            return ResponseFormat(ResponseFormatType.JSON_OBJECT)
        case "json_schema":
            form = wire.json_schema
            return ResponseFormat(
                ResponseFormatType.JSON_SCHEMA,
                form.name,
                form.description,
                form.schema_json,
                form.strict if form.HasField("strict") else True,
            )
        case _:
            return TEXT_FORMAT


def response_format_to_proto(value: ResponseFormat) -> pb.ResponseFormat:
    """Returns a response format as a proto."""
    match value.type:
        case ResponseFormatType.TEXT:
            return pb.ResponseFormat(text=pb.TextFormat())
        case ResponseFormatType.JSON_OBJECT:
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case ResponseFormatType.JSON_SCHEMA:
            return pb.ResponseFormat(
                json_schema=pb.JsonSchemaFormat(
                    name=value.name,
                    description=value.description,
                    schema_json=value.schema_json,
                    strict=value.strict,
                )
            )
