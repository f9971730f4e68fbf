"""Tools that edit memory blocks, through core memory's public service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.tool_execution.domain.tools import Call, Caller, MemoryEdit, Output

Arguments = dict[str, Any]


def _append(arguments: Arguments) -> dict[str, Any]:
    return {"append": pb.AppendEdit(content=arguments["content"])}


def _replace(arguments: Arguments) -> dict[str, Any]:
    return {
        "replace": pb.ReplaceEdit(
            old_content=arguments["old_content"], new_content=arguments["new_content"]
        )
    }


def _string_replace(arguments: Arguments) -> dict[str, Any]:
    return {
        "string_replace": pb.StringReplaceEdit(
            old_string=arguments["old_str"], new_string=arguments["new_str"]
        )
    }


def _insert(arguments: Arguments) -> dict[str, Any]:
    return {
        "insert": pb.InsertEdit(
            new_string=arguments["new_str"], insert_line=arguments.get("insert_line")
        )
    }


def _rethink(arguments: Arguments) -> dict[str, Any]:
    return {"rethink": pb.RethinkEdit(new_memory=arguments["new_memory"])}


_EDITS: dict[str, Callable[[Arguments], dict[str, Any]]] = {
    "core_memory_append": _append,
    "core_memory_replace": _replace,
    "memory_replace": _string_replace,
    "memory_insert": _insert,
    "memory_rethink": _rethink,
}


class MemoryTools:
    """Runs the memory tools. The key of a call makes each edit happen once."""

    names = frozenset(_EDITS)

    def __init__(self, blocks: pb_grpc.BlockServiceStub) -> None:
        self._blocks = blocks

    async def run(self, call: Call, arguments: Arguments, caller: Caller) -> Output:
        """Applies one edit.

        Raises:
            StrataError: Core memory refused; its message is written for the model.
        """
        response = await self._blocks.EditBlock(
            pb.EditBlockRequest(
                request_id=call.key,
                agent_id=caller.agent_id,
                label=arguments["label"],
                origin=pb.EditOrigin(
                    agent_id=caller.agent_id,
                    run_id=caller.run_id,
                    step_id=caller.step_id,
                    tool_call_id=call.id,
                    model=caller.model,
                ),
                **_EDITS[call.name](arguments),
            )
        )
        edit = MemoryEdit(
            block_id=response.block.id,
            label=response.block.label,
            revision=response.block.revision,
            diff=response.diff,
        )
        return Output(response.message, memory_edits=(edit,) if response.diff else ())
