"""The card of an agent, with which A2A clients find and call it."""

from __future__ import annotations

from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.types import a2a_pb2 as a2a
from google.protobuf import json_format

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.gateway.http.a2a.inputs import INPUT_MODES, OUTPUT_MODES
from strata.shared.release import release

VERSIONS = ("1.0", "0.3")
"""Versions of the protocol that are served."""

_SCHEME = "apiKey"
_BINDING = "JSONRPC"
_SKILL = "conversation"


def agent_card(agent: agent_service_pb2.Agent, url: str) -> dict[str, Any]:
    """Returns the card of an agent, with the fields of both versions.

    Args:
        agent: The agent.
        url: Where requests go.
    """
    description = agent.description or f"The agent {agent.name}, which remembers conversations."
    bearer = a2a.SecurityScheme(
        http_auth_security_scheme=a2a.HTTPAuthSecurityScheme(
            scheme="Bearer", description="An API key of the project."
        )
    )
    card = a2a.AgentCard(
        name=agent.name,
        description=description,
        version=f"{release()}+{agent.revision}",
        supported_interfaces=[
            a2a.AgentInterface(url=url, protocol_binding=_BINDING, protocol_version=version)
            for version in VERSIONS
        ],
        capabilities=a2a.AgentCapabilities(
            streaming=True, push_notifications=False, extended_agent_card=False
        ),
        security_schemes={_SCHEME: bearer},
        security_requirements=[a2a.SecurityRequirement(schemes={_SCHEME: a2a.StringList()})],
        default_input_modes=INPUT_MODES,
        default_output_modes=OUTPUT_MODES,
        skills=[
            a2a.AgentSkill(
                id=_SKILL,
                name=agent.name,
                description=description,
                tags=agent.tags or [_SKILL],
            )
        ],
    )
    former = conversions.to_compat_agent_card(card).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return _merged(json_format.MessageToDict(card), former)


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of two objects; objects are merged, for other fields `one` wins."""
    merged = {**other, **one}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            merged[name] = _merged(one[name], other[name])
    return merged
