"""Converts results of ``tools/call`` to tool returns."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from strata.protocol.images import MAX_IMAGES, MAX_IMAGES_BYTES, ImageError, inspect_image
from strata.shared.json_schemas import is_longer, unstorable
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.sandbox import RunStatus
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.tool_execution.domain.tools import Output, ReturnedImage, ToolError

MAX_FAILURE = 4_000
NO_REASON = "it gave no reason."


def read_result(
    name: str, result: Mapping[str, Any], most_chars: int = FUNCTION_RETURN_CHAR_LIMIT
) -> Output:
    """Returns the output of a call: text, or a JSON value if the server sent one, and images.

    A large result takes a second: call it on a thread.

    Args:
        name: Name of the tool in the registry.
        result: The result as the server sent it, unchecked.
        most_chars: Number of characters that the model is shown. If both text and structured
            content have more, only the text is returned.

    Raises:
        ToolError: The tool failed, or the result is invalid. The message is not shortened.
    """
    content = _or_else(result.get("content"), [])
    structured = result.get("structuredContent")
    if not isinstance(content, list) or not ("content" in result or structured is not None):
        raise ToolError(f"{name} was run, but its server sent an invalid result.")
    reader = _ContentReader()
    texts = [reader.text(part) for part in content]
    text = "\n".join(text for text in texts if text)
    if result.get("isError") is True:
        # Some servers send the reason as structured content only.
        message = _clean(text) or _as_text(structured) or NO_REASON
        raise ToolError(f"Error executing function {name}: {message}", end=RunStatus.TOOL_ERROR)
    images = tuple(reader.images)
    if structured is not None and len(text) > most_chars and is_longer(structured, most_chars):
        structured = None
    reason = "" if structured is None else unstorable(structured)
    if reason and not text:
        text = f"[structured content, not shown: it {reason}]"
    if structured is None or reason:
        return Output(_clean(text), images=images)
    if not text or _same(text, structured):
        return Output(structured, images=images)
    return Output(f"{_clean(text)}\n{json.dumps(structured, ensure_ascii=False)}", images=images)


class _ContentReader:
    """Reads the parts of a result.

    Attributes:
        images: The images that the model can see, in order.
    """

    def __init__(self) -> None:
        self.images: list[ReturnedImage] = []
        self._remaining_bytes = MAX_IMAGES_BYTES

    def text(self, part: Any) -> str:
        """Returns the text of one part; for a part that cannot be shown, a note."""
        if not isinstance(part, Mapping):
            return "[an invalid part]"
        match part.get("type"):
            case "text":
                return str(_or_else(part.get("text"), ""))
            case "image":
                return self._image(part.get("mimeType"), part.get("data"))
            case "audio":
                kind = str(part.get("mimeType", "unknown type"))[:100]
                size = len(str(part.get("data", ""))) * 3 // 4
                return f"[audio, {kind}, about {size} bytes, not shown]"
            case "resource_link":
                return f"[resource {str(part.get('uri', ''))[:500]}, not read]"
            case "resource":
                resource = part.get("resource")
                return self._resource(resource if isinstance(resource, Mapping) else {})
            case other:
                return f"[content of the type {str(other)[:50]}, not shown]"

    def _resource(self, resource: Mapping[str, Any]) -> str:
        if isinstance(resource.get("text"), str):
            return str(resource["text"])
        uri = str(resource.get("uri", ""))[:500]
        if str(resource.get("mimeType", "")).startswith("image/") and "blob" in resource:
            return f"[resource {uri}] {self._image(resource['mimeType'], resource['blob'])}"
        return f"[resource {uri}, not text, not shown]"

    def _image(self, media_type: Any, encoded: Any) -> str:
        kind = str(media_type or "unknown type")[:100]
        try:
            data = base64.b64decode("".join(str(encoded).split()), validate=True)
            # The type is detected from the bytes, since the declared media type may be wrong.
            header = inspect_image(data)
        except (ImageError, binascii.Error, ValueError) as error:
            size = len(str(encoded)) * 3 // 4
            why = str(error) if isinstance(error, ImageError) else "is not valid Base64"
            return f"[image, {kind}, about {size} bytes, not shown: it {why}]"
        if len(self.images) == MAX_IMAGES or len(data) > self._remaining_bytes:
            return f"[image, {kind}, {len(data)} bytes, not shown: the images are too many]"
        self._remaining_bytes -= len(data)
        self.images.append(ReturnedImage(header, data))
        return f"[image {len(self.images)}: {header.media_type}, {header.width} x {header.height}]"


def _or_else(value: Any, empty: Any) -> Any:
    """Returns a value; `empty` for null, which servers in Go write for an empty list."""
    return empty if value is None else value


def _same(text: str, structured: Any) -> bool:
    """Returns whether text and JSON have equal content; SDKs wrap values that are not objects."""
    meant = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        meant += structured.values()
    try:
        return text in meant or parse_json(text) in meant
    except JsonTextError:
        return False


def _as_text(structured: Any) -> str:
    if structured in (None, "", [], {}) or unstorable(structured):
        return ""
    return structured if isinstance(structured, str) else json.dumps(structured, ensure_ascii=False)


def _clean(text: str) -> str:
    # NUL cannot be stored, and lone surrogates cannot be encoded.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
