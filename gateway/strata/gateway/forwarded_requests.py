"""Reads requests that are forwarded to a service unchanged."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.shared.ids import is_id


def agent_id_in(
    kind: type[agent_pb.DeleteAgentRequest | file_pb.AttachFolderRequest], request: bytes
) -> str:
    """Returns the id of the agent that a serialized request names.

    Args:
        kind: Type of the request.
        request: The request as the client sent it.

    Returns:
        Empty if the request is malformed or names no valid id; the service refuses it.
    """
    try:
        agent_id = kind.FromString(request).agent_id
    except DecodeError:
        return ""
    return agent_id if is_id(agent_id, "agent") else ""
