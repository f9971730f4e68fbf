"""The kind of editor that core memory records when an agent changes a block."""

from __future__ import annotations

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.shared.agent_types import MEMORY_AGENT_TYPES


def editor_kind(agent_type: str) -> pb.EditorKind.ValueType:
    """Returns the editor kind of an agent type (its wire name, such as ``letta_v1_agent``)."""
    if agent_type in MEMORY_AGENT_TYPES:
        return pb.EDITOR_KIND_SLEEPTIME_AGENT
    return pb.EDITOR_KIND_AGENT
