"""Converts dataclasses whose fields correspond to those of a proto message, one for one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Generic, TypeVar

from google.protobuf.message import Message

Value = TypeVar("Value")
Wire = TypeVar("Wire", bound=Message)


class RecordTable(Generic[Value, Wire]):
    """Converts between a dataclass and a message that have the same plain fields.

    The names are read once, at import. A field of the message that the dataclass lacks is ignored.

    Args:
        value: The dataclass. Each field is a number, a text, bytes or a flag of the message with
            the same name, not a message, an enum, or a list.
        wire: The message.
        computed: Properties of the dataclass that are fields of the message.

    Raises:
        TypeError: A field is not in the message, or is not plain.
    """

    def __init__(
        self, value: type[Value], wire: type[Wire], *, computed: Iterable[str] = ()
    ) -> None:
        names = [field.name for field in fields(value)]  # type: ignore[arg-type]
        self._names = (*names, *computed)
        by_name = wire.DESCRIPTOR.fields_by_name
        for name in self._names:
            field = by_name.get(name)
            if (
                field is None
                or field.message_type is not None
                or field.enum_type is not None
                or field.is_repeated
                or field.has_presence
            ):
                raise TypeError(f"{value.__name__}.{name} is not a plain field of {wire.__name__}")
        self._value, self._wire = value, wire
        self._of_wire = attrgetter(*names)
        self._of_value = attrgetter(*self._names)

    def from_proto(self, wire: Wire) -> Value:
        """Returns the dataclass of a message."""
        return self._value(*self._of_wire(wire))

    def to_proto(self, value: Value) -> Wire:
        """Returns the message of a dataclass."""
        return self._wire(**dict(zip(self._names, self._of_value(value), strict=False)))

    def tuple_from_proto(self, wires: Iterable[Wire]) -> tuple[Value, ...]:
        """Returns the dataclasses of messages."""
        return tuple([self.from_proto(wire) for wire in wires])

    def list_to_proto(self, values: Iterable[Value]) -> list[Wire]:
        """Returns the messages of dataclasses."""
        return [self.to_proto(value) for value in values]
