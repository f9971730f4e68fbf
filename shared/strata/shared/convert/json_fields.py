"""Checks of JSON that becomes a protobuf message, which `json_format` does not make."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from google.protobuf.descriptor import FieldDescriptor

from strata.shared.json_text import JsonTextError
from strata.shared.number_text import is_number

if TYPE_CHECKING:
    from google._upb._message import Descriptor as UpbDescriptor
    from google._upb._message import FieldDescriptor as UpbFieldDescriptor
    from google.protobuf.descriptor import Descriptor


# Wrapped numbers have the JSON form of the numbers.
_WRAPPED_NUMBERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Int32", "Int64", "UInt32", "UInt64", "Float", "Double")
)
_NUMBERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_FLOAT,
        FieldDescriptor.CPPTYPE_DOUBLE,
    }
)
_TIMES = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration"})
# `json_format` reads the numbers of a time with `int`, but is strict otherwise.
_OTHER_IN_TIME = re.compile(r"[^0-9A-Za-z:.+-]")
# `json_format` accepts them for fields of floating-point numbers only.
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


def check_fields(value: object, kind: Descriptor | UpbDescriptor) -> None:
    """Raises if an object has a field twice, or text in place of a number that is no number.

    A field may be given by its JSON name and by its name in the contract. `json_format` accepts
    either, and both: one value would silently replace the other. It converts text to numbers with
    `int` and `float`, which accept more than JSON, such as ``"1_0"`` for 10.

    Args:
        value: The JSON value of a message.
        kind: The descriptor of the message.

    Raises:
        JsonTextError: With the field.
    """
    # The types of protobuf itself have JSON forms of their own, some with any names.
    if not isinstance(value, dict) or kind.file.package == "google.protobuf":
        return
    for name, item in value.items():
        field = kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)
        if field is None:
            continue  # Unknown, or not text; `json_format` decides.
        if name != field.json_name and field.json_name in value:
            raise JsonTextError(
                f"the field {field.json_name} is repeated, as {field.json_name!r} and {name!r}"
            )
        inner = field.message_type
        if inner is not None and inner.full_name in _TIMES:
            for part in item if isinstance(item, list) else [item]:
                if isinstance(part, str) and _OTHER_IN_TIME.search(part):
                    raise JsonTextError(
                        f"the field {field.json_name} has {part[:40]!r}: not a time"
                    )
            continue
        if _is_number(field):
            for part in item if isinstance(item, list) else [item]:
                _check_number(part, field.json_name)
            continue
        # The keys of a map are not fields, and no request has a map of messages.
        if inner is None or inner.GetOptions().map_entry:
            continue
        for part in item if isinstance(item, list) else [item]:
            check_fields(part, inner)


def _is_number(field: FieldDescriptor | UpbFieldDescriptor) -> bool:
    inner = field.message_type
    if inner is None:
        return field.cpp_type in _NUMBERS
    return inner.full_name in _WRAPPED_NUMBERS


def _check_number(value: object, name: str) -> None:
    if isinstance(value, str) and value not in _NOT_FINITE and not is_number(value):
        raise JsonTextError(f"the field {name} has {value[:40]!r}, which is not a number")
