"""Converts enum members between their plain form and protos, by one rule of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from google.protobuf.descriptor import EnumDescriptor

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

Member = TypeVar("Member", bound=Enum)
Number = TypeVar("Number", bound=int)

_ZERO = "UNSPECIFIED"


def numbers_by_name(wire: EnumDescriptor) -> dict[str, int]:
    """Returns the values of a proto enum by name without the prefix, such as ``USER``.

    Raises:
        ValueError: The value 0 is not ``<PREFIX>_UNSPECIFIED``, as the rules of the protos demand.
    """
    zero = wire.values_by_number[0].name
    prefix = zero.removesuffix(_ZERO)
    if prefix == zero:
        raise ValueError(f"{zero} does not end in {_ZERO}")
    return {value.name.removeprefix(prefix): value.number for value in wire.values}


def enum_name(wire: _EnumTypeWrapper[Number], value: Number) -> str:
    """Returns the name of an enum value in plain words: ``end turn``; empty if it is not set."""
    for name, number in numbers_by_name(wire.DESCRIPTOR).items():
        if number == value:
            return name.lower().replace("_", " ") if number else ""
    return str(value)


class EnumTable(Generic[Member, Number]):
    """The table of a plain enum and its proto enum: ``USER`` corresponds to ``ROLE_USER``.

    It is built once, at import. Both mappings are dictionaries, so a conversion is one lookup.
    A proto value without a member is not in `from_proto`; a newer release may send such values.

    Args:
        wire: The proto enum.
        members: The plain enum, or only the members that have a proto value.
        unspecified: The member that corresponds to the proto value 0; None if there is none.
        default: The member that the proto value 0 of a request means; it also has its own value.
        renamed: Names without prefix of proto values that are named differently than their member.

    Attributes:
        to_proto: Proto values by member.
        from_proto: Members by proto value.

    Raises:
        ValueError: A member has no proto value.
    """

    def __init__(
        self,
        wire: _EnumTypeWrapper[Number],
        members: Iterable[Member],
        *,
        unspecified: Member | None = None,
        default: Member | None = None,
        renamed: Mapping[Member, str] = MappingProxyType({}),
    ) -> None:
        numbers = numbers_by_name(wire.DESCRIPTOR)
        self.to_proto: dict[Member, Number] = {}
        for member in members:
            name = _ZERO if member is unspecified else renamed.get(member, member.name)
            if name not in numbers:
                raise ValueError(f"{member!r} has no value in the proto enum")
            self.to_proto[member] = cast("Number", numbers[name])
        self.from_proto: dict[Number, Member] = {
            number: member for member, number in self.to_proto.items()
        }
        if default is not None:
            self.from_proto[cast("Number", 0)] = default
