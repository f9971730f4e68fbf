"""Payloads of runs that the gateway starts itself: serialised requests to agent_loop."""

from __future__ import annotations

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.gateway.runs.domain.memory_agents import MemoryMark, MemoryRun


def memory_payload(mark: MemoryMark, run: MemoryRun) -> bytes:
    """Returns the payload of a run of a memory agent.

    Args:
        mark: The mark of the conversation, or of the file.
        run: The run, with the range that it reads.
    """
    request = turn_pb.ExecuteRunRequest(agent_id=run.agent_id, conversation_id=run.conversation_id)
    if mark.file_id:
        request.document.agent_id = mark.agent_id
        request.document.file_id = mark.file_id
        request.document.content_hash = mark.content_hash
        request.document.after_line, request.document.until_line = run.after, run.until
    else:
        request.transcript.agent_id = mark.agent_id
        request.transcript.conversation_id = mark.conversation_id
        request.transcript.after_sequence = run.after
        request.transcript.until_sequence = run.until
    return request.SerializeToString(deterministic=True)
