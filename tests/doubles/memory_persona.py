"""A scripted agent that uses its memory, for manual runs and benchmarks.

Rules, by how the last user message begins:
    remember X     to core memory, with whichever edit tool is offered
    archive X      to archival memory
    search X       in archival memory
    recall X       in the conversation
Anything else is echoed. After a tool has answered, its answer is quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doubles.script import ModelCall, Reply, Step, call, say

_EDITS: tuple[tuple[str, str], ...] = (
    ("core_memory_append", "content"),
    ("memory_insert", "new_str"),
)
_QUERIES = {"search": "archival_memory_search", "recall": "conversation_search"}


def answer(request: ModelCall) -> Step:
    """The answer to one request."""
    if request.answered:
        return say(f"Done. The tool said: {' / '.join(request.answered)}")
    verb, _, rest = request.last_text.strip().partition(" ")
    return _act(verb.lower(), rest.strip(), request.tool_names) or say(
        f"You said: {request.last_text.strip()}"
    )


def _act(verb: str, rest: str, tools: list[str]) -> Reply | None:
    if verb == "remember":
        for tool, argument in _EDITS:
            if tool in tools:
                return _call(tool, {"label": "human", argument: rest})
    if verb == "archive" and "archival_memory_insert" in tools:
        return _call("archival_memory_insert", {"content": rest})
    if verb in _QUERIES and _QUERIES[verb] in tools:
        return _call(_QUERIES[verb], {"query": rest})
    return None


def _call(tool: str, arguments: Mapping[str, Any]) -> Reply:
    return call(tool, arguments)
