"""What kind of editor core memory notes for an agent that changes a block."""

from __future__ import annotations

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.shared.agent_types import MEMORY_AGENT_TYPES


def editor_kind(agent_type: str) -> pb.EditorKind.ValueType:
    """Returns the kind for an agent type, which is given by its wire name."""
    if agent_type in MEMORY_AGENT_TYPES:
        return pb.EDITOR_KIND_SLEEPTIME_AGENT
    return pb.EDITOR_KIND_AGENT
