"""From the result of ``tools/call`` to what a model is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata.tool_execution.domain.tools import ToolError
from strata.tool_execution.schema.problems import unstorable

MAX_FAILURE = 4_000


def read_result(name: str, result: Mapping[str, Any]) -> Any:
    """Returns the value of a call: text, or a JSON value if the server gave one.

    Args:
        name: The tool, as the model knows it.
        result: As it came, of any form.

    Raises:
        ToolError: The tool failed, or the result is none.
    """
    content = result.get("content", [])
    structured = result.get("structuredContent")
    if not isinstance(content, list) or not ("content" in result or structured is not None):
        raise ToolError(f"{name} was run, but what its server answered is no result.")
    texts = [_text(part) for part in content]
    text = "\n".join(each for each in texts if each)
    if result.get("isError") is True:
        said = _clean(text) or "it gave no reason."
        raise ToolError(f"Error executing function {name}: {said[:MAX_FAILURE]}")
    if structured is None or unstorable(structured):
        return _clean(text)
    if not text or _same(text, structured):
        return structured
    return f"{_clean(text)}\n{json.dumps(structured, ensure_ascii=False)}"


def _text(part: Any) -> str:
    """What a model is told of one part; what it cannot be shown is named."""
    if not isinstance(part, Mapping):
        return "[a part that is no content]"
    match part.get("type"):
        case "text":
            return str(part.get("text", ""))
        case "image" | "audio" as kind:
            kind_of = str(part.get("mimeType", "unknown type"))[:100]
            size = len(str(part.get("data", ""))) * 3 // 4
            return f"[{kind}, {kind_of}, about {size} bytes, not shown]"
        case "resource_link":
            return f"[resource {str(part.get('uri', ''))[:500]}, not read]"
        case "resource":
            resource = part.get("resource")
            held = resource if isinstance(resource, Mapping) else {}
            if isinstance(held.get("text"), str):
                return str(held["text"])
            return f"[resource {str(held.get('uri', ''))[:500]}, not text, not shown]"
        case other:
            return f"[content of the type {str(other)[:50]}, not shown]"


def _same(text: str, structured: Any) -> bool:
    """Whether the text says what the JSON says; SDKs wrap what is no object."""
    meant = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        meant += structured.values()
    try:
        return text in meant or json.loads(text) in meant
    except (ValueError, RecursionError):
        return False


def _clean(text: str) -> str:
    # NUL cannot be stored, half a character not be sent.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
