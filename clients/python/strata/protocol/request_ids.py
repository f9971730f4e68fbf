"""Decides which requests may be repeated: if the method has a ``request_id``, only with one.

Without it a repetition is another request: a second conversation, a text that is appended twice, or
a name that the first one has taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata.protocol.connections import repeatable_methods

FIELD = "request_id"
_LENGTH_DELIMITED = 2
# Bytes of a value, by wire type; of a varint (0) and of a group it is not constant.
_SIZES = {1: 8, 5: 4}


def request_id_numbers(services: Iterable[ServiceDescriptor]) -> dict[str, int]:
    """Returns the number of the field ``request_id`` of repeatable methods, by path."""
    numbers: dict[str, int] = {}
    for path, method in repeatable_methods(services):
        field = method.input_type.fields_by_name.get(FIELD)
        if field is not None:
            numbers[path] = field.number
    return numbers


def has_request_id(request: Message | bytes, number: int) -> bool:
    """Returns whether a request has a request id that is not empty.

    Args:
        request: The request, or its serialised form; what is malformed has none.
        number: Number of its field ``request_id``.
    """
    if not isinstance(request, bytes):
        value: Any = getattr(request, FIELD)
        return bool(value)
    try:
        return _has_text(request, number)
    except IndexError:
        return False


def _has_text(data: bytes, number: int) -> bool:
    position, has_text = 0, False
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            _, position = _varint(data, position)
        elif kind == _LENGTH_DELIMITED:
            size, position = _varint(data, position)
            if tag >> 3 == number:
                # The last value of a field wins.
                has_text = size > 0
            position += size
        elif kind in _SIZES:
            position += _SIZES[kind]
        else:
            return False
    return has_text


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
