"""Reads requests that are forwarded to a service unchanged."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.shared.ids import is_id


def agent_id_in(
    message: agent_pb.DeleteAgentRequest | file_pb.AttachFolderRequest, request: bytes
) -> str:
    """Returns the id of the agent that a serialized request names.

    Args:
        message: An empty message of the request's type; the request is parsed into it.
        request: The request as the client sent it.

    Returns:
        Empty if the request is malformed or names no valid id; the service refuses it.
    """
    try:
        message.ParseFromString(request)
    except DecodeError:
        return ""
    return message.agent_id if is_id(message.agent_id, "agent") else ""
