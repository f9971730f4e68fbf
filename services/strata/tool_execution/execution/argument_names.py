"""Translates request fields of the services into the argument names that models see.

Errors of a service name its own request fields (``passage.text``). The model that called a tool
knows only the arguments of the tool (``content``). A test traces every argument of every built-in
tool to the request fields that it fills, and fails if one of them is missing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from strata.protocol.errors import StrataError
from strata.shared.tool_arguments import INVALID

# Request field -> argument. If several arguments are listed, the first one that was passed counts.
# A field with the name of its argument needs no entry. The rest of a path (``[0]``, ``.file_name``)
# is kept.
_MESSAGE = {"messages[0].parts[0].text.text": "message", "agent_id": "other_agent_id"}
_BOTH_TAGS = "match_all or match_some"
_FIELDS: Mapping[str, Mapping[str, str | Sequence[str]]] = {
    "archival_memory_insert": {"passage.text": "content", "passage.tags": "tags"},
    "archival_memory_search": {"start_time": "start_datetime", "end_time": "end_datetime"},
    "conversation_search": {"start_time": "start_date", "end_time": "end_date"},
    "core_memory_append": {"append.content": "content"},
    "core_memory_replace": {
        "replace.old_content": "old_content",
        "replace.new_content": "new_content",
    },
    "expand_summary": {
        "from_sequence": "first_number",
        "page_size": "limit",
        "start_time": "start_date",
    },
    "memory": {
        "label": ("path", "old_path"),
        "create.description": "description",
        "create.file_text": "file_text",
        "insert.insert_line": "insert_line",
        "insert.new_string": "insert_text",
        "rename.description": "description",
        "rename.new_label": "new_path",
        "string_replace.old_string": "old_str",
        "string_replace.new_string": "new_str",
    },
    "memory_apply_patch": {"patch.patch": "patch"},
    "memory_insert": {"insert.new_string": "new_str", "insert.insert_line": "insert_line"},
    "memory_replace": {
        "string_replace.old_string": "old_str",
        "string_replace.new_string": "new_str",
    },
    "memory_rethink": {"rethink.new_memory": "new_memory"},
    "rethink_user_memory": {"rethink.new_memory": "new_memory"},
    "store_memories": {"passages": "memories"},
    "open_files": {"windows": "file_requests"},
    "search_memory": {
        "query": "convo_keyword_queries",
        "start_time": "start_minutes_ago",
        "end_time": "end_minutes_ago",
    },
    "send_message_to_agent_and_wait_for_reply": _MESSAGE,
    "send_message_to_agent_async": _MESSAGE,
    "send_message_to_all_agents_in_group": _MESSAGE,
    "send_message_to_agents_matching_tags": {
        **_MESSAGE,
        "tags": _BOTH_TAGS,
    },
}


def argument_of(tool: str, field: str, arguments: Mapping[str, Any]) -> str:
    """Returns the argument that fills a request field, or the field itself if no argument does.

    Args:
        tool: Name of the built-in tool.
        field: Path of the field in the request, such as ``passage.tags[1]``.
        arguments: Arguments of the call.
    """
    fields = _FIELDS.get(tool, {})
    longest = max(
        (request_field for request_field in fields if _is_part(field, request_field)),
        key=len,
        default=None,
    )
    if longest is None:
        return field
    names = fields[longest]
    candidates = [names] if isinstance(names, str) else names
    name = next((candidate for candidate in candidates if arguments.get(candidate)), candidates[0])
    # Both arguments are merged into one list, so an index in it fits neither argument.
    return name if name == _BOTH_TAGS else name + field[len(longest) :]


def in_argument_names(tool: str, error: StrataError, arguments: Mapping[str, Any]) -> str:
    """Returns the message of an error with argument names instead of request fields.

    Args:
        tool: Name of the built-in tool.
        error: The error of the service.
        arguments: Arguments of the call.
    """
    violations = [
        (violation.field, argument_of(tool, violation.field, arguments), violation.description)
        for violation in error.violations
    ]
    if not violations:
        return error.message
    names = {
        request_field: argument_of(tool, request_field, arguments)
        for request_field in _FIELDS.get(tool, {})
    }
    names |= {field: name for field, name, _ in violations}
    if all(f"{field} {description}" in error.message for field, _, description in violations):
        problems = (f"'{name}' {_renamed(text, names)}" for _, name, text in violations)
        return f"{INVALID} {tool}: {'; '.join(dict.fromkeys(problems))}."
    return _renamed(error.message, names)


def _is_part(field: str, request_field: str) -> bool:
    return field == request_field or field.startswith((f"{request_field}.", f"{request_field}["))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    changed = {field: name for field, name in names.items() if field != name}
    if not changed:
        return text
    # The longest field first; the lookarounds keep a field from matching inside another name.
    fields = "|".join(re.escape(field) for field in sorted(changed, key=len, reverse=True))
    # A plain word such as "label" is as likely prose as the name of a field: leave it.
    return re.sub(
        rf"(?<![\w.])(?:{fields})(?![\w.])",
        lambda match: changed[match.group()] if _is_name(match.group()) else match.group(),
        text,
    )


def _is_name(word: str) -> bool:
    return not word.isalpha()
