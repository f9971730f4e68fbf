"""The five formats in which the model reads messages, returns and events; packed user messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.context.packaging import (
    pack_alert,
    pack_heartbeat,
    pack_login,
    pack_summary,
    pack_user_message,
    package,
)
from strata.agent_loop.context.requests import MIN_PIECE_BYTES, Offer, View, build_request
from strata.agent_loop.domain.agent.agents import MessagePackaging
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart
from strata.agent_loop.domain.model.chat import ImagePart, TextPart, ToolCall
from strata.agent_loop.domain.tools import ToolSet
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance

NOW = datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC)
ZONE = "America/Los_Angeles"
RAW = View(5_000, ZONE)
PACKED = View(5_000, ZONE, packaging=MessagePackaging(pack_user_messages=True))
IN_LISBON = View(5_000, ZONE, packaging=MessagePackaging(True, "Lisbon, Portugal"))


def user(*texts: str, **fields: Any) -> Message:
    parts = tuple(map(TextPart, texts))
    return Message("message-1", MessageRole.USER, parts, **{"create_time": NOW, **fields})


def shown(view: View, message: Message) -> str:
    """Returns the text of a message in the request."""
    [chat] = view.chat(message)
    [part] = chat.content
    assert isinstance(part, TextPart)
    return part.text


def test_user_message_has_exactly_these_bytes() -> None:
    assert pack_user_message("Olá!\n", NOW, ZONE) == (
        '{"type": "user_message", "message": "Olá!\\n", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )


def test_user_message_with_location_and_name_has_exactly_these_bytes() -> None:
    assert pack_user_message("Hi", NOW, "UTC", location="Lisbon", name="Ada") == (
        '{"type": "user_message", "message": "Hi", "time": "2026-01-20 10:13:45 PM UTC+0000",'
        ' "location": "Lisbon", "name": "Ada"}'
    )


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (ToolStatus.OK, "4", '"status": "OK",\n  "message": "4"'),
        (ToolStatus.FAILED, "No.", '"status": "Failed",\n  "message": "No."'),
        (ToolStatus.OK, {"a": 1}, '"status": "OK",\n  "message": {\n    "a": 1\n  }'),
    ],
)
def test_function_response_has_exactly_these_bytes(
    status: ToolStatus, message: Any, expected: str
) -> None:
    assert package(status, message, NOW, ZONE) == (
        "{\n  " + expected + ',\n  "time": "2026-01-20 02:13:45 PM PST-0800"\n}'
    )


def test_login_event_has_exactly_these_bytes() -> None:
    assert pack_login(NOW, ZONE) == (
        '{"type": "login", "last_login": "Never (first login)",'
        ' "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )


def test_heartbeat_has_exactly_these_bytes() -> None:
    assert pack_heartbeat("Function call failed, returning control", NOW, ZONE) == (
        '{\n  "type": "heartbeat",\n  "reason": "[This is an automated system message hidden from'
        ' the user] Function call failed, returning control",\n'
        '  "time": "2026-01-20 02:13:45 PM PST-0800"\n}'
    )


def test_system_alert_has_exactly_these_bytes() -> None:
    assert pack_alert("Disk full.", NOW, ZONE) == (
        '{"type": "system_alert", "message": "Disk full.",'
        ' "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )
    assert pack_summary("- Ada", None, ZONE) == (
        '{"type": "system_alert", "message": "Note: prior messages have been hidden from view due'
        " to conversation memory constraints.\\nThe following is a summary of the previous"
        ' messages:\\n - Ada"}'
    )


def test_time_zone_that_is_unknown_shows_utc() -> None:
    assert json.loads(pack_login(NOW, "Mars/Base"))["time"] == "2026-01-20 10:13:45 PM UTC+0000"


@given(text=st.text(), location=st.text(), name=st.text())
def test_any_text_survives_packing(text: str, location: str, name: str) -> None:
    body = json.loads(pack_user_message(text, NOW, "UTC", location=location, name=name))
    assert body.pop("type") == "user_message"
    assert body.pop("message") == text
    assert body.pop("location", "") == location
    assert body.pop("name", "") == name
    assert list(body) == ["time"]


def test_user_text_is_shown_raw_unless_the_agent_is_configured_otherwise() -> None:
    assert shown(RAW, user("Hi")) == "Hi"
    assert json.loads(shown(PACKED, user("Hi"))) == {
        "type": "user_message",
        "message": "Hi",
        "time": "2026-01-20 02:13:45 PM PST-0800",
    }


def test_packed_message_has_location_and_name_in_place_of_a_prefix() -> None:
    body = json.loads(shown(IN_LISBON, user("Hi, ", "Bo!", name="Ada")))
    assert body["message"] == "Hi, Bo!"
    assert (body["location"], body["name"]) == ("Lisbon, Portugal", "Ada")


def test_a_packed_message_without_a_time_omits_it() -> None:
    body = json.loads(shown(PACKED, user("Hi", create_time=None)))
    assert body == {"type": "user_message", "message": "Hi"}


def test_events_and_summaries_are_not_packed_again() -> None:
    heartbeat = pack_heartbeat("r", NOW, ZONE)
    hidden = user(heartbeat, provenance=(Provenance.SYSTEM,))
    assert shown(PACKED, hidden) == heartbeat
    summary = Message("message-1", MessageRole.SUMMARY, (SummaryPart("s"),), create_time=NOW)
    assert shown(PACKED, summary) == shown(RAW, summary)


@pytest.mark.parametrize("role", [MessageRole.SYSTEM, MessageRole.ASSISTANT])
def test_messages_of_other_roles_are_not_packed(role: MessageRole) -> None:
    message = Message("message-1", role, (TextPart("Hi"), ToolCall("c", "f", "{}")))
    assert PACKED.chat(message) == RAW.chat(message)


def test_images_follow_the_packed_text_and_messages_of_images_only_are_not_packed() -> None:
    image = ImagePart("image/png", data=b"x")
    mixed = Message("message-1", MessageRole.USER, (image, TextPart("See")), create_time=NOW)
    [chat] = PACKED.chat(mixed)
    text, picture = chat.content
    assert isinstance(text, TextPart)
    assert json.loads(text.text)["message"] == "See"
    assert [picture] == [part for part in RAW.chat(mixed)[0].content if part == picture]
    alone = Message("message-1", MessageRole.USER, (image,), create_time=NOW)
    assert PACKED.chat(alone) == RAW.chat(alone)


def test_packed_message_that_is_cut_to_fit_stays_json() -> None:
    system = Message("message-0", MessageRole.SYSTEM, (TextPart("s"),))
    window = [system, user('long "text"\n' * 500)]
    fitted = build_request(window, Offer(ToolSet(())), PACKED, max_bytes=1_000)
    [text] = [part for part in fitted.request.messages[1].content if isinstance(part, TextPart)]
    body = json.loads(text.text)
    assert body["type"] == "user_message"
    assert "[truncated" in body["message"]
    assert len(text.text) < 1_000 + MIN_PIECE_BYTES


def test_the_size_of_a_packed_message_counts_the_packing() -> None:
    assert PACKED.size([user("Hi")]) > RAW.size([user("Hi")])
