"""The option ``--response-format``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from strata.api.common.v1 import response_format_pb2 as pb
from strata.cli.failures import UsageError
from strata.shared.json_text import JsonTextError, parse_json

ResponseFormatOption = Annotated[
    str | None,
    typer.Option(
        "--response-format",
        metavar="FORMAT",
        help="Format of replies: text, json_object, or the path of a file with a JSON schema.",
    ),
]

_MAX_NAME = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


def response_format(value: str | None) -> pb.ResponseFormat | None:
    """Returns the format for the value of the option; None without the option.

    A file contains a JSON schema, which is named after the file, or an object with `type` and
    `json_schema` as in OpenAI's API.

    Raises:
        UsageError: The value is neither a format nor a file with JSON.
    """
    match value:
        case None:
            return None
        case "text":
            return pb.ResponseFormat(text=pb.TextFormat())
        case "json_object":
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(json_schema=_read(Path(value)))


def named_format(value: pb.ResponseFormat) -> str:
    """Returns a short description of a format; empty for text."""
    match value.WhichOneof("format"):
        case "json_object":
            return "json_object"
        case "json_schema":
            return f"json_schema {value.json_schema.name}"
        case _:
            return ""


def _read(file: Path) -> pb.JsonSchemaFormat:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(
            "--response-format is text, json_object or a file with a JSON schema;"
            f" {file} cannot be read: {problem}."
        ) from None
    try:
        content = parse_json(text)
    except JsonTextError as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    wrapped = content.get("json_schema") if isinstance(content, dict) else None
    if isinstance(wrapped, dict) and "schema" in wrapped:
        return _of_openai(wrapped)
    name = _ILLEGAL.sub("_", file.stem)[:_MAX_NAME] or "reply"
    return pb.JsonSchemaFormat(name=name, schema_json=text)


def _of_openai(wrapped: dict[str, Any]) -> pb.JsonSchemaFormat:
    strict = wrapped.get("strict")
    return pb.JsonSchemaFormat(
        name=str(wrapped.get("name", "reply")),
        description=str(wrapped.get("description", "")),
        schema_json=json.dumps(wrapped["schema"], ensure_ascii=False),
        strict=strict if isinstance(strict, bool) else None,
    )
