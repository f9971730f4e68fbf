"""Converts message parts between protos and the JSON that recall stores.

The stored form of a part is its message as a JSON object: field names are the proto's,
values of enums their names in lower case without prefix, bytes are base64, times RFC 3339. ``type``
is the name of the part in the oneof. Two fields differ: an image has one ``url``, and
``default_decision`` of an approval request is stored as ``default_approve``. The tables of fields
are built at import from the descriptors.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import tool_pb2 as tool
from strata.protocol.images import image_id, inspect_image
from strata.recall.domain.messages import Part, StoredImage
from strata.shared.convert.enums import numbers_by_name

_Writer = Callable[[Any, list[StoredImage]], Any]
_Reader = Callable[[Any], Any]

_NEVER_STORED = frozenset({"data", "source_url", "default_decision", "response_format"})
"""Fields with their own form, or that belong to requests only."""

_ALWAYS_STORED = {
    common.TextPart: 1,
    common.ImagePart: 0,
    common.ReasoningPart: 3,
    common.ToolCallPart: 3,
    common.ToolReturnPart: 7,
    common.NestedToolCall: 5,
    common.ApprovalRequestPart: 2,
    common.ApprovalBinding: 3,
    common.TaintSource: 1,
    common.ApprovalResponsePart: 2,
    common.ApprovalDecision: 3,
    common.SummaryPart: 6,
}
"""The highest number of the fields that are stored even if empty, since the first release reads
them without a default. Other fields are stored only if they are set."""


class _MessageForm:
    """The stored form of one type of message."""

    def __init__(self, wire: type[Message], always: int) -> None:
        self._wire = wire
        self._writers: list[tuple[str, _Writer | None, bool, bool]] = []
        self._readers: dict[str, _Reader | None] = {}
        fields: Iterable[Any] = wire.DESCRIPTOR.fields
        for field in fields:
            if field.name in _NEVER_STORED:
                continue
            write, read = _value_form(field)
            self._readers[field.name] = read
            self._writers.append((field.name, write, field.number <= always, field.has_presence))

    def write(self, wire: Any, images: list[StoredImage]) -> dict[str, Any]:
        """Returns a message as JSON; adds its images that have bytes to `images`."""
        fields: dict[str, Any] = {}
        for name, write, always, has_presence in self._writers:
            if has_presence:
                if not wire.HasField(name):
                    continue
                value = getattr(wire, name)
            else:
                value = getattr(wire, name)
                if not value and not always:
                    continue
            fields[name] = value if write is None else write(value, images)
        return fields

    def read(self, fields: Mapping[str, Any]) -> Any:
        """Returns the message of its JSON; fields unknown to this release are ignored."""
        readers = self._readers
        values = {}
        for name, value in fields.items():
            if name in readers:
                read = readers[name]
                values[name] = value if read is None else read(value)
        return self._wire(**values)


class _ImageForm(_MessageForm):
    """The stored form of an image: its bytes are stored apart, and it has one URL."""

    def write(self, wire: common.ImagePart, images: list[StoredImage]) -> dict[str, Any]:
        """Returns an image as JSON; adds its bytes, if it has any, to `images`."""
        fields = {
            "media_type": wire.media_type,
            "image_id": wire.image_id,
            "width": wire.width,
            "height": wire.height,
            "size_bytes": wire.size_bytes,
            **super().write(wire, images),
            # The URL is stored even if it is empty, since the previous release reads it.
            "url": _without_nul(wire.url or wire.source_url),
        }
        if wire.data:
            header = inspect_image(wire.data)
            fields |= {
                "media_type": header.media_type,
                "image_id": image_id(wire.data),
                "width": header.width,
                "height": header.height,
                "size_bytes": len(wire.data),
            }
            images.append(StoredImage(fields["image_id"], header.media_type, wire.data))
        return fields

    def read(self, fields: Mapping[str, Any]) -> common.ImagePart:
        """Returns the image of its JSON."""
        image: common.ImagePart = super().read(fields)
        # An earlier release stored only the URL or the bytes of an image.
        image.ClearField("url")
        if image.image_id:
            image.source_url = fields.get("url", "")
        if "data" in fields:
            image.data = base64.b64decode(fields["data"])
        elif fields.get("url") and not image.image_id:
            image.url = fields["url"]
        return image


class _ApprovalRequestForm(_MessageForm):
    """The stored form of a request for approval, with the default decision as a flag."""

    def write(self, wire: common.ApprovalRequestPart, images: list[StoredImage]) -> dict[str, Any]:
        """Returns a request as JSON."""
        fields = super().write(wire, images)
        if wire.default_decision == tool.DEFAULT_DECISION_APPROVE:
            fields["default_approve"] = True
        return fields

    def read(self, fields: Mapping[str, Any]) -> common.ApprovalRequestPart:
        """Returns the request of its JSON."""
        request: common.ApprovalRequestPart = super().read(fields)
        if fields.get("default_approve"):
            request.default_decision = tool.DEFAULT_DECISION_APPROVE
        return request


_OWN_FORMS: dict[type[Message], type[_MessageForm]] = {
    common.ImagePart: _ImageForm,
    common.ApprovalRequestPart: _ApprovalRequestForm,
}


def _value_form(field: FieldDescriptor) -> tuple[_Writer | None, _Reader | None]:
    """Returns the functions that write and read a field; None if the value is stored unchanged."""
    write, read = _single_form(field)
    if not field.is_repeated:
        return write, read
    return (
        None if write is None else _write_all(write),
        None if read is None else _read_all(read),
    )


def _write_all(write: _Writer) -> _Writer:
    return lambda values, images: [write(value, images) for value in values]


def _read_all(read: _Reader) -> _Reader:
    return lambda values: [read(value) for value in values]


def _single_form(field: FieldDescriptor) -> tuple[_Writer | None, _Reader | None]:
    if field.message_type is not None:
        if field.message_type is Timestamp.DESCRIPTOR:
            return lambda value, _: value.ToJsonString(), _time
        form = _form(field.message_type)
        return form.write, form.read
    if field.enum_type is not None:
        names, numbers = _enum_names(field.enum_type)
        # A replica of a newer release may have stored a name that this one lacks.
        return lambda value, _: names.get(value, ""), lambda name: numbers.get(name, 0)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value, _: base64.b64encode(value).decode(), base64.b64decode
    if field.type == FieldDescriptor.TYPE_STRING:
        return lambda value, _: _without_nul(value), None
    return None, None


def _enum_names(enum: EnumDescriptor) -> tuple[dict[int, str], dict[str, int]]:
    names = {
        number: name.lower() if number else "" for name, number in numbers_by_name(enum).items()
    }
    return names, {name: number for number, name in names.items()}


def _form(message: Descriptor) -> _MessageForm:
    wire = GetMessageClass(message)
    return _OWN_FORMS.get(wire, _MessageForm)(wire, _ALWAYS_STORED[wire])


def _time(text: str) -> Timestamp:
    time = Timestamp()
    time.FromJsonString(text)
    return time


def _without_nul(text: str) -> str:
    # PostgreSQL cannot store NUL in text or jsonb, and output of tools may contain it.
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


_FORMS = {
    field.name: _form(field.message_type)
    for field in common.Part.DESCRIPTOR.fields
    if field.message_type is not None
}
_PROVENANCES = _enum_names(common.Provenance.DESCRIPTOR)


def provenance_to_text(value: common.Provenance.ValueType) -> str:
    """Returns ``user``, ``model``, ``memory``, ``tool``, ``web``, ``mcp`` or ``system``."""
    return _PROVENANCES[0].get(value, "")


def provenance_from_text(value: str) -> common.Provenance.ValueType:
    """Returns the enum value of a stored provenance; UNSPECIFIED if this release has none."""
    return cast("common.Provenance.ValueType", _PROVENANCES[1].get(value, 0))


def parts_to_json(parts: Iterable[common.Part]) -> tuple[tuple[Part, ...], tuple[StoredImage, ...]]:
    """Returns parts as JSON, and the images in them that have bytes.

    A part without content is left out. NUL characters are replaced.

    Raises:
        ImageError: The bytes of an image are not an accepted image.
    """
    images: list[StoredImage] = []
    stored_parts: list[Part] = []
    for part in parts:
        kind = part.WhichOneof("content")
        if kind is not None:
            stored_parts.append({"type": kind, **_FORMS[kind].write(getattr(part, kind), images)})
    return tuple(stored_parts), tuple(images)


def part_from_json(part: Part) -> common.Part:
    """Returns a stored part as a proto."""
    kind = part["type"]
    return common.Part(**{kind: _FORMS[kind].read(part)})
