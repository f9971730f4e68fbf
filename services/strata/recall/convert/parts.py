"""Converts message parts between protos and the JSON that recall stores."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import tool_pb2 as tool
from strata.protocol.images import image_id, inspect_image
from strata.recall.domain.messages import Image, Part

_STATUS = {
    common.TOOL_STATUS_UNSPECIFIED: "",
    common.TOOL_STATUS_OK: "ok",
    common.TOOL_STATUS_FAILED: "failed",
    common.TOOL_STATUS_UNKNOWN: "unknown",
}
_DETAILS = {
    common.IMAGE_DETAIL_UNSPECIFIED: "",
    common.IMAGE_DETAIL_LOW: "low",
    common.IMAGE_DETAIL_HIGH: "high",
}
_DETAILS_BACK = {name: value for value, name in _DETAILS.items()}
_STATUS_BACK = {name: value for value, name in _STATUS.items()}
_PROVENANCE_PREFIX = "PROVENANCE_"


def provenance_to_text(value: common.Provenance.ValueType) -> str:
    """Returns ``user``, ``model``, ``memory``, ``tool``, ``web``, ``mcp`` or ``system``."""
    if value not in common.Provenance.values():
        return ""
    name = common.Provenance.Name(value).removeprefix(_PROVENANCE_PREFIX)
    return "" if name == "UNSPECIFIED" else name.lower()


def provenance_from_text(value: str) -> common.Provenance.ValueType:
    """Returns the enum value of a stored provenance."""
    name = _PROVENANCE_PREFIX + (value.upper() or "UNSPECIFIED")
    return common.Provenance.Value(name)


def parts_to_json(parts: Iterable[common.Part]) -> tuple[tuple[Part, ...], tuple[Image, ...]]:
    """Returns parts as JSON, and the images in them that have bytes.

    A part without content is left out.

    Raises:
        ImageError: The bytes of an image are not an accepted image.
    """
    images: list[Image] = []
    stored = [_part_to_json(part, images) for part in parts]
    return tuple(part for part in stored if part is not None), tuple(images)


def _part_to_json(part: common.Part, images: list[Image]) -> Part | None:
    match part.WhichOneof("content"):
        case None:
            return None
        case "image":
            return {"type": "image", **_image_to_json(part.image, images)}
        case "tool_return":
            return {"type": "tool_return", **_return_to_json(part.tool_return, images)}
        case kind:
            return {"type": kind, **_TO_JSON[kind](getattr(part, kind))}


def part_from_json(part: Part) -> common.Part:
    """Returns a stored part as a proto."""
    kind = part["type"]
    return common.Part(**{kind: _FROM_JSON[kind](part)})


def _image_to_json(image: common.ImagePart, images: list[Image]) -> Part:
    # The URL is stored even if it is empty, since the previous release reads it.
    stored: dict[str, Any] = {
        "media_type": image.media_type,
        "url": image.url or image.source_url,
        "image_id": image.image_id,
        "width": image.width,
        "height": image.height,
        "size_bytes": image.size_bytes,
    }
    if image.data:
        header = inspect_image(image.data)
        stored |= {
            "media_type": header.media_type,
            "image_id": image_id(image.data),
            "width": header.width,
            "height": header.height,
            "size_bytes": len(image.data),
        }
        images.append(Image(stored["image_id"], header.media_type, image.data))
    if image.alt_text:
        stored["alt_text"] = image.alt_text
    if image.detail:
        stored["detail"] = _DETAILS.get(image.detail, "")
    return stored


def _image_from_json(part: Part) -> common.ImagePart:
    # An earlier release stored only the URL or the bytes of an image.
    url, fetched = part.get("url", ""), bool(part.get("image_id"))
    image = common.ImagePart(
        media_type=part["media_type"],
        source_url=url if fetched else "",
        image_id=part.get("image_id", ""),
        width=part.get("width", 0),
        height=part.get("height", 0),
        size_bytes=part.get("size_bytes", 0),
        alt_text=part.get("alt_text", ""),
        detail=_DETAILS_BACK[part.get("detail", "")],
    )
    if "data" in part:
        image.data = base64.b64decode(part["data"])
    elif url and not fetched:
        image.url = url
    return image


def _call_to_json(call: common.ToolCallPart) -> Part:
    stored: dict[str, Any] = {
        "tool_call_id": call.tool_call_id,
        "name": call.name,
        "arguments": call.arguments,
    }
    if call.HasField("request_heartbeat"):
        stored["request_heartbeat"] = call.request_heartbeat
    return stored


def _call_from_json(part: Part) -> common.ToolCallPart:
    return common.ToolCallPart(
        tool_call_id=part["tool_call_id"],
        name=part["name"],
        arguments=part["arguments"],
        request_heartbeat=part.get("request_heartbeat"),
    )


def _return_to_json(value: common.ToolReturnPart, images: list[Image]) -> Part:
    stored: dict[str, Any] = {
        "tool_call_id": value.tool_call_id,
        "name": value.name,
        "status": _STATUS.get(value.status, ""),
        "content": value.content,
        "stdout": list(value.stdout),
        "stderr": list(value.stderr),
        "provenance": provenance_to_text(value.provenance),
    }
    if value.taint:
        stored["taint"] = [provenance_to_text(label) for label in value.taint]
    if value.nested_calls:
        stored["nested_calls"] = [_nested_to_json(call) for call in value.nested_calls]
    if value.returned_by:
        stored["returned_by"] = value.returned_by
    if value.images:
        stored["images"] = [_image_to_json(image, images) for image in value.images]
    return stored


def _nested_to_json(call: common.NestedToolCall) -> Part:
    return {
        "tool_call_id": call.tool_call_id,
        "name": call.name,
        "arguments": call.arguments,
        "status": _STATUS.get(call.status, ""),
        "refused": call.refused,
    }


def _nested_from_json(call: Part) -> common.NestedToolCall:
    return common.NestedToolCall(**{**call, "status": _STATUS_BACK[call["status"]]})


def _return_from_json(part: Part) -> common.ToolReturnPart:
    return common.ToolReturnPart(
        tool_call_id=part["tool_call_id"],
        name=part["name"],
        status=_STATUS_BACK[part["status"]],
        content=part["content"],
        stdout=part["stdout"],
        stderr=part["stderr"],
        provenance=provenance_from_text(part["provenance"]),
        taint=[provenance_from_text(label) for label in part.get("taint", ())],
        nested_calls=[_nested_from_json(call) for call in part.get("nested_calls", ())],
        returned_by=part.get("returned_by", ""),
        images=[_image_from_json(image) for image in part.get("images", ())],
    )


def _request_to_json(value: common.ApprovalRequestPart) -> Part:
    stored: dict[str, Any] = {
        "approval_id": value.approval_id,
        "tool_calls": [_call_to_json(call) for call in value.tool_calls],
    }
    if value.HasField("expire_time"):
        stored["expire_time"] = value.expire_time.ToJsonString()
    if value.waiting_calls:
        stored["waiting_calls"] = [_call_to_json(call) for call in value.waiting_calls]
    if value.bindings:
        stored["bindings"] = [_binding_to_json(bound) for bound in value.bindings]
    if value.taint:
        stored["taint"] = [_source_to_json(source) for source in value.taint]
    if value.default_decision == tool.DEFAULT_DECISION_APPROVE:
        stored["default_approve"] = True
    return stored


def _binding_to_json(bound: common.ApprovalBinding) -> Part:
    stored: dict[str, Any] = {
        "tool_call_id": bound.tool_call_id,
        "tool_version": bound.tool_version,
        "arguments_hash": bound.arguments_hash,
    }
    if bound.by_client:
        stored["by_client"] = True
    return stored


def _source_to_json(value: common.TaintSource) -> Part:
    places = {
        "message_id": value.message_id,
        "tool_name": value.tool_name,
        "tool_call_id": value.tool_call_id,
        "block_label": value.block_label,
    }
    filled = {name: text for name, text in places.items() if text}
    return {"label": provenance_to_text(value.label), **filled}


def _source_from_json(part: Part) -> common.TaintSource:
    places = {name: text for name, text in part.items() if name != "label"}
    return common.TaintSource(label=provenance_from_text(part["label"]), **places)


def _request_from_json(part: Part) -> common.ApprovalRequestPart:
    request = common.ApprovalRequestPart(
        approval_id=part["approval_id"],
        tool_calls=[_call_from_json(call) for call in part["tool_calls"]],
        waiting_calls=[_call_from_json(call) for call in part.get("waiting_calls", ())],
        bindings=[common.ApprovalBinding(**bound) for bound in part.get("bindings", ())],
        taint=[_source_from_json(source) for source in part.get("taint", ())],
    )
    if part.get("default_approve"):
        request.default_decision = tool.DEFAULT_DECISION_APPROVE
    if "expire_time" in part:
        expires = Timestamp()
        expires.FromJsonString(part["expire_time"])
        request.expire_time.CopyFrom(expires)
    return request


def _decision_to_json(value: common.ApprovalDecision) -> Part:
    stored: dict[str, Any] = {
        "tool_call_id": value.tool_call_id,
        "approve": value.approve,
        "reason": value.reason,
    }
    if value.HasField("client_return"):
        stored["client_return"] = value.client_return
    if value.client_status:
        stored["client_status"] = _STATUS.get(value.client_status, "")
    if value.arguments_hash:
        stored["arguments_hash"] = value.arguments_hash
    if value.client_taint:
        stored["client_taint"] = [provenance_to_text(label) for label in value.client_taint]
    return stored


def _response_to_json(value: common.ApprovalResponsePart) -> Part:
    stored: dict[str, Any] = {
        "approval_id": value.approval_id,
        "decisions": [_decision_to_json(decision) for decision in value.decisions],
    }
    if value.by_default:
        stored["by_default"] = True
    if value.answered_by:
        stored["answered_by"] = value.answered_by
    return stored


def _response_from_json(part: Part) -> common.ApprovalResponsePart:
    return common.ApprovalResponsePart(
        approval_id=part["approval_id"],
        decisions=[_decision_from_json(decision) for decision in part["decisions"]],
        by_default=part.get("by_default", False),
        answered_by=part.get("answered_by", ""),
    )


def _decision_from_json(part: Part) -> common.ApprovalDecision:
    status = _STATUS_BACK[part.get("client_status", "")]
    taint = [provenance_from_text(label) for label in part.get("client_taint", ())]
    rest = {key: value for key, value in part.items() if not key.startswith("client_")}
    return common.ApprovalDecision(
        client_status=status,
        client_taint=taint,
        client_return=part.get("client_return"),
        **rest,
    )


def _summary_to_json(value: common.SummaryPart) -> Part:
    return {
        "text": value.text,
        "first_sequence": value.first_sequence,
        "last_sequence": value.last_sequence,
        "message_count": value.message_count,
        "first_message_id": value.first_message_id,
        "last_message_id": value.last_message_id,
    }


def _reasoning_to_json(value: common.ReasoningPart) -> Part:
    return {
        "text": value.text,
        "signature": value.signature,
        "redacted": base64.b64encode(value.redacted).decode(),
    }


_TO_JSON: dict[str, Callable[[Any], Part]] = {
    "text": lambda value: {"text": value.text},
    "reasoning": _reasoning_to_json,
    "tool_call": _call_to_json,
    "approval_request": _request_to_json,
    "approval_response": _response_to_json,
    "summary": _summary_to_json,
}

_FROM_JSON: dict[str, Callable[[Part], Any]] = {
    "text": lambda part: common.TextPart(text=part["text"]),
    "image": _image_from_json,
    "reasoning": lambda part: common.ReasoningPart(
        text=part["text"],
        signature=part["signature"],
        redacted=base64.b64decode(part["redacted"]),
    ),
    "tool_call": _call_from_json,
    "tool_return": _return_from_json,
    "approval_request": _request_from_json,
    "approval_response": _response_from_json,
    "summary": lambda part: common.SummaryPart(
        text=part["text"],
        first_sequence=part["first_sequence"],
        last_sequence=part["last_sequence"],
        message_count=part["message_count"],
        first_message_id=part.get("first_message_id", ""),
        last_message_id=part.get("last_message_id", ""),
    ),
}
