"""Converts and validates the plain fields of agents by one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from google.protobuf.descriptor import FieldDescriptor

from strata.agent_loop.domain.agent.agents import Agent, AgentPatch
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import FieldViolation

Check = Callable[[str, Any], list[FieldViolation]]
"""Returns the violations in the value of a field; the first argument is the field's name."""

_WIRE_TYPES = {
    str: FieldDescriptor.TYPE_STRING,
    bool: FieldDescriptor.TYPE_BOOL,
    int: FieldDescriptor.TYPE_INT32,
}


class PlainFields:
    """The fields that agents and the requests about them have by the same name and type.

    `Agent`, its proto and `CreateAgentRequest` have each of them as a text, a flag or a number;
    `AgentPatch` and `UpdateAgentRequest` have it as an optional value, where unset means unchanged.

    Args:
        checks: The check of each field, by name; None if every value is valid.

    Raises:
        TypeError: One of the five types lacks a field, or has it with another type.
    """

    def __init__(self, checks: Mapping[str, Check | None]) -> None:
        self._checks = dict(checks)
        for name in checks:
            _check_declared(name)

    def values(self, source: Agent | pb.Agent | pb.CreateAgentRequest) -> dict[str, Any]:
        """Returns the values of all fields, as arguments for `Agent` or its proto."""
        return {name: getattr(source, name) for name in self._checks}

    def changes(self, request: pb.UpdateAgentRequest) -> dict[str, Any]:
        """Returns the values of the fields that are set, as arguments for `AgentPatch`."""
        return {
            name: getattr(request, name)
            for name in self._checks
            if request.HasField(name)  # type: ignore[arg-type]
        }

    def violations(
        self, request: pb.CreateAgentRequest | pb.UpdateAgentRequest
    ) -> list[FieldViolation]:
        """Returns the violations in all fields."""
        return [
            violation
            for name, check in self._checks.items()
            if check is not None
            for violation in check(name, getattr(request, name))
        ]


def _check_declared(name: str) -> None:
    """Raises `TypeError` if one of the five types does not declare the field as it must."""
    plain = get_type_hints(Agent).get(name)
    if plain not in _WIRE_TYPES:
        raise TypeError(f"Agent.{name} must be a str, a bool or an int")
    if get_type_hints(AgentPatch).get(name) != plain | None:
        raise TypeError(f"AgentPatch.{name} must be a {plain.__name__} or None")
    for message in (pb.Agent, pb.CreateAgentRequest, pb.UpdateAgentRequest):
        field = message.DESCRIPTOR.fields_by_name.get(name)
        optional = message is pb.UpdateAgentRequest
        if (
            field is None
            or field.is_repeated
            or field.type != _WIRE_TYPES[plain]
            or field.has_presence is not optional
        ):
            kind = f"{'optional ' if optional else ''}{plain.__name__}"
            raise TypeError(f"{message.DESCRIPTOR.name}.{name} must be declared as {kind}")
