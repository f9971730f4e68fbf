"""Finds the first difference between a recorded run and its replay."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.run.request_digest import json_of
from strata.agent_loop.replay.recording import RequestText
from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json

_MAX_SHOWN = 2_000
_MAX_LINES = 60
# Fields that are new in each run, or assigned by the store.
_OWN_OF_MESSAGES = frozenset(
    {
        "id",
        "sequence",
        "create_time",
        "run_id",
        "step_id",
        "conversation_id",
        "agent_id",
        "client_message_id",
        "copied",
        "pinned",
    }
)
_OWN_OF_PARTS = frozenset({"approval_id", "expire_time"})
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference.

    Attributes:
        path: Its place, such as ``steps[2].request.messages[4].content[0].text``.
        summary: Description in one sentence.
        recorded: The value in the recorded run; empty for none.
        replayed: The value in this build; empty for none.
        diff: Unified diff of both, if they are texts of several lines.
    """

    path: str
    summary: str
    recorded: str = ""
    replayed: str = ""
    diff: str = ""


class DifferenceFoundError(Exception):
    """Ends a replay, since the rest of the recording does not apply after a difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.summary)
        self.difference = difference


def compare_requests(path: str, recorded: RequestText, replayed: RequestText) -> Difference | None:
    """Returns the first difference of two requests, in the parts that both have."""
    if None not in (recorded.system, replayed.system) and recorded.system != replayed.system:
        return _of_texts(
            f"{path}.system", "The system message differs.", recorded.system, replayed.system
        )
    if None not in (recorded.options, replayed.options) and recorded.options != replayed.options:
        difference = _compare_json(f"{path}.options", recorded.options, replayed.options)
        if difference is not None:
            return difference
    if recorded.messages is None or replayed.messages is None:
        return None
    for index, (one, other) in enumerate(zip(recorded.messages, replayed.messages, strict=False)):
        difference = _compare_json(f"{path}.messages[{index}]", one, other)
        if difference is not None:
            return difference
    return _compare_counts(f"{path}.messages", recorded.messages, replayed.messages)


def compare_messages(
    path: str, recorded: Sequence[Message], replayed: Sequence[Message]
) -> Difference | None:
    """Returns the first difference of messages, apart from ids and times."""
    for index, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
        difference = compare_values(f"{path}[{index}]", comparable(one), comparable(other))
        if difference is not None:
            return difference
    ones, others = ([json_of(comparable(m)) for m in side] for side in (recorded, replayed))
    return _compare_counts(path, ones, others)


def comparable(message: Message) -> Any:
    """Returns a message as a JSON value, without fields that are new in each run."""
    members = json.loads(json_of(message))
    compared_members = {
        name: value for name, value in members.items() if name not in _OWN_OF_MESSAGES
    }
    return {**compared_members, "parts": [_comparable_part(part) for part in members["parts"]]}


def compare_values(path: str, recorded: Any, replayed: Any) -> Difference | None:
    """Returns the first difference of two JSON values, in the order of the recorded value."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in (*recorded, *(name for name in replayed if name not in recorded)):
            difference = compare_values(
                f"{path}.{name}", recorded.get(name, _NOTHING), replayed.get(name, _NOTHING)
            )
            if difference is not None:
                return difference
        return None
    if isinstance(recorded, list) and isinstance(replayed, list):
        for index in range(max(len(recorded), len(replayed))):
            one, other = (
                side[index] if index < len(side) else _NOTHING for side in (recorded, replayed)
            )
            difference = compare_values(f"{path}[{index}]", one, other)
            if difference is not None:
                return difference
        return None
    if type(recorded) is type(replayed) and recorded == replayed:
        return None
    name = path.rpartition(".")[2]
    if replayed is _NOTHING:
        return Difference(path, f"This build has no {name}.", recorded=_shown(recorded))
    if recorded is _NOTHING:
        return Difference(path, f"The recorded run had no {name}.", replayed=_shown(replayed))
    if isinstance(recorded, str) and isinstance(replayed, str):
        return _of_texts(path, f"The {name} differs.", recorded, replayed)
    return Difference(path, f"The {name} differs.", _shown(recorded), _shown(replayed))


def _compare_json(path: str, recorded: str | None, replayed: str | None) -> Difference | None:
    if recorded is None or replayed is None or recorded == replayed:
        return None
    difference = compare_values(path, json.loads(recorded), json.loads(replayed))
    # The values are equal, but members are in another order.
    return difference or _of_texts(path, "The order of the members differs.", recorded, replayed)


def _compare_counts(
    path: str, recorded: Sequence[str], replayed: Sequence[str]
) -> Difference | None:
    if len(recorded) == len(replayed):
        return None
    index = min(len(recorded), len(replayed))
    one, other = (cut(side[index]) if index < len(side) else "" for side in (recorded, replayed))
    summary = f"The recorded run had {len(recorded)} here, this build has {len(replayed)}."
    return Difference(f"{path}[{index}]", summary, one, other)


def _of_texts(path: str, summary: str, recorded: str | None, replayed: str | None) -> Difference:
    one, other = recorded or "", replayed or ""
    lines = difflib.unified_diff(
        one.splitlines(), other.splitlines(), "recorded", "this build", n=2, lineterm=""
    )
    diff = "\n".join(cut(line) for line, _ in zip(lines, range(_MAX_LINES), strict=False))
    several = "\n" in one or "\n" in other
    return Difference(path, summary, _around(one, other), _around(other, one), diff * several)


def _around(text: str, other: str) -> str:
    """Returns the part of a text that starts shortly before its first difference to another."""
    if len(text) <= _MAX_SHOWN:
        return text
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    start = max(0, same - 80)
    return f"{'...' if start else ''}{cut(text[start:])}"


def cut(text: str) -> str:
    """Returns a text, truncated for display."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _comparable_part(part: dict[str, Any]) -> dict[str, Any]:
    compared_members = {name: value for name, value in part.items() if name not in _OWN_OF_PARTS}
    for name in ("text", "content"):
        if isinstance(compared_members.get(name), str) and compared_members[name].startswith("{"):
            compared_members[name] = _without_time(compared_members[name])
    return compared_members


def _without_time(text: str) -> str:
    """Returns a packed text without its time; any other text unchanged."""
    try:
        packed = parse_json(text, max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return text
    if not (isinstance(packed, dict) and isinstance(packed.get("time"), str)):
        return text
    packed["time"] = "(time)"
    return json.dumps(packed, ensure_ascii=False)
