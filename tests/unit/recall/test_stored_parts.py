"""The stored form of parts, which rows of earlier builds have."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import tool_pb2
from strata.recall.convert.parts import part_from_json, parts_to_json, provenance_from_text

CALL = {"tool_call_id": "call-1", "name": "look", "arguments": '{"a": 1}'}
WIRE_CALL = common.ToolCallPart(tool_call_id="call-1", name="look", arguments='{"a": 1}')
IMAGE = {
    "media_type": "image/png",
    "url": "https://example.com/a.png",
    "image_id": "0f" * 32,
    "width": 3,
    "height": 2,
    "size_bytes": 70,
}
WIRE_IMAGE = common.ImagePart(
    media_type="image/png",
    source_url="https://example.com/a.png",
    image_id="0f" * 32,
    width=3,
    height=2,
    size_bytes=70,
)

CURRENT: list[tuple[dict[str, Any], common.Part]] = [
    ({"type": "text", "text": ""}, common.Part(text=common.TextPart())),
    ({"type": "text", "text": "hi"}, common.Part(text=common.TextPart(text="hi"))),
    ({"type": "image", **IMAGE}, common.Part(image=WIRE_IMAGE)),
    (
        {"type": "image", **IMAGE, "url": "", "alt_text": "A dog.", "detail": "high"},
        common.Part(
            image=common.ImagePart(
                media_type="image/png",
                image_id="0f" * 32,
                width=3,
                height=2,
                size_bytes=70,
                alt_text="A dog.",
                detail=common.IMAGE_DETAIL_HIGH,
            )
        ),
    ),
    (
        {"type": "reasoning", "text": "Hm.", "signature": "", "redacted": "AP8="},
        common.Part(reasoning=common.ReasoningPart(text="Hm.", redacted=b"\0\xff")),
    ),
    ({"type": "tool_call", **CALL}, common.Part(tool_call=WIRE_CALL)),
    (
        {"type": "tool_call", **CALL, "request_heartbeat": False},
        common.Part(
            tool_call=common.ToolCallPart(
                tool_call_id="call-1", name="look", arguments='{"a": 1}', request_heartbeat=False
            )
        ),
    ),
    (
        {
            "type": "tool_return",
            "tool_call_id": "call-1",
            "name": "look",
            "status": "",
            "content": "",
            "stdout": [],
            "stderr": [],
            "provenance": "",
        },
        common.Part(tool_return=common.ToolReturnPart(tool_call_id="call-1", name="look")),
    ),
    (
        {
            "type": "tool_return",
            "tool_call_id": "call-1",
            "name": "look",
            "status": "unknown",
            "content": "{}",
            "stdout": ["one", "two"],
            "stderr": ["three"],
            "provenance": "tool",
            "taint": ["web", "mcp"],
            "nested_calls": [
                {
                    "tool_call_id": "call-1/1",
                    "name": "see",
                    "arguments": "{}",
                    "status": "failed",
                    "refused": False,
                }
            ],
            "returned_by": "key-1",
            "images": [IMAGE],
        },
        common.Part(
            tool_return=common.ToolReturnPart(
                tool_call_id="call-1",
                name="look",
                status=common.TOOL_STATUS_UNKNOWN,
                content="{}",
                stdout=["one", "two"],
                stderr=["three"],
                provenance=common.PROVENANCE_TOOL,
                taint=[common.PROVENANCE_WEB, common.PROVENANCE_MCP],
                nested_calls=[
                    common.NestedToolCall(
                        tool_call_id="call-1/1",
                        name="see",
                        arguments="{}",
                        status=common.TOOL_STATUS_FAILED,
                    )
                ],
                returned_by="key-1",
                images=[WIRE_IMAGE],
            )
        ),
    ),
    (
        {
            "type": "approval_request",
            "approval_id": "approval-1",
            "tool_calls": [CALL],
            "waiting_calls": [CALL],
            "bindings": [
                {
                    "tool_call_id": "call-1",
                    "tool_version": "3",
                    "arguments_hash": "ab",
                    "by_client": True,
                },
                {"tool_call_id": "call-2", "tool_version": "", "arguments_hash": ""},
            ],
            "expire_time": "2026-07-01T12:00:00.250Z",
            "taint": [{"label": "web", "block_label": "human"}],
            "default_approve": True,
        },
        common.Part(
            approval_request=common.ApprovalRequestPart(
                approval_id="approval-1",
                tool_calls=[WIRE_CALL],
                waiting_calls=[WIRE_CALL],
                bindings=[
                    common.ApprovalBinding(
                        tool_call_id="call-1",
                        tool_version="3",
                        arguments_hash="ab",
                        by_client=True,
                    ),
                    common.ApprovalBinding(tool_call_id="call-2"),
                ],
                expire_time=Timestamp(seconds=1782907200, nanos=250_000_000),
                taint=[common.TaintSource(label=common.PROVENANCE_WEB, block_label="human")],
                default_decision=tool_pb2.DEFAULT_DECISION_APPROVE,
            )
        ),
    ),
    (
        {
            "type": "approval_response",
            "approval_id": "approval-1",
            "decisions": [
                {
                    "tool_call_id": "call-1",
                    "approve": False,
                    "reason": "",
                    "client_return": "",
                    "client_status": "failed",
                    "arguments_hash": "ab",
                    "client_taint": ["mcp"],
                },
                {"tool_call_id": "call-2", "approve": True, "reason": "fine"},
            ],
            "by_default": True,
            "answered_by": "key-1",
        },
        common.Part(
            approval_response=common.ApprovalResponsePart(
                approval_id="approval-1",
                decisions=[
                    common.ApprovalDecision(
                        tool_call_id="call-1",
                        client_return="",
                        client_status=common.TOOL_STATUS_FAILED,
                        arguments_hash="ab",
                        client_taint=[common.PROVENANCE_MCP],
                    ),
                    common.ApprovalDecision(tool_call_id="call-2", approve=True, reason="fine"),
                ],
                by_default=True,
                answered_by="key-1",
            )
        ),
    ),
    (
        {
            "type": "summary",
            "text": "They met.",
            "first_sequence": 1,
            "last_sequence": 2**40,
            "message_count": 3,
            "first_message_id": "message-1",
            "last_message_id": "",
        },
        common.Part(
            summary=common.SummaryPart(
                text="They met.",
                first_sequence=1,
                last_sequence=2**40,
                message_count=3,
                first_message_id="message-1",
            )
        ),
    ),
]
"""Parts as earlier builds stored them, and as this one does."""

OLDER: list[tuple[dict[str, Any], common.Part]] = [
    (
        {"type": "image", "media_type": "image/png", "url": "https://example.com/a.png"},
        common.Part(
            image=common.ImagePart(media_type="image/png", url="https://example.com/a.png")
        ),
    ),
    (
        {"type": "image", "media_type": "image/png", "url": "", "data": "AP8="},
        common.Part(image=common.ImagePart(media_type="image/png", data=b"\0\xff")),
    ),
    (
        {
            "type": "summary",
            "text": "They met.",
            "first_sequence": 1,
            "last_sequence": 2,
            "message_count": 3,
        },
        common.Part(
            summary=common.SummaryPart(
                text="They met.", first_sequence=1, last_sequence=2, message_count=3
            )
        ),
    ),
    (
        {"type": "text", "text": "hi", "language": "en"},
        common.Part(text=common.TextPart(text="hi")),
    ),
]
"""Parts that other builds stored, which this one does not write any more, or not yet."""


@pytest.mark.parametrize(("stored", "wire"), CURRENT)
def test_stored_form_is_that_of_earlier_builds(stored: dict[str, Any], wire: common.Part) -> None:
    assert parts_to_json([wire]) == ((stored,), ())
    assert part_from_json(stored) == wire


@pytest.mark.parametrize(("stored", "wire"), OLDER)
def test_stored_forms_of_other_builds_are_read(stored: dict[str, Any], wire: common.Part) -> None:
    assert part_from_json(stored) == wire


def test_every_type_of_part_has_a_stored_form() -> None:
    kinds = {stored["type"] for stored, _ in CURRENT}
    assert kinds == set(common.Part.DESCRIPTOR.fields_by_name)


def test_request_fields_of_an_approval_request_are_not_stored() -> None:
    request = common.ApprovalRequestPart(approval_id="approval-1")
    request.response_format.SetInParent()
    [stored], _ = parts_to_json([common.Part(approval_request=request)])
    assert stored == {"type": "approval_request", "approval_id": "approval-1", "tool_calls": []}


def test_names_that_a_newer_release_stored_are_read_as_unspecified() -> None:
    stored = {"type": "tool_return", **CALL, "status": "postponed", "taint": ["web", "radio"]}
    part = part_from_json(stored)
    assert part.tool_return.status == common.TOOL_STATUS_UNSPECIFIED
    assert list(part.tool_return.taint) == [
        common.PROVENANCE_WEB,
        common.PROVENANCE_UNSPECIFIED,
    ]
    assert provenance_from_text("radio") == common.PROVENANCE_UNSPECIFIED
