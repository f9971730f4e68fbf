"""``strata agents sleep`` and ``ingest``, and the memory agent in ``strata agents show``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.client import GatewayClient, all_of
from strata.cli.failures import UsageError
from strata.cli.options import AgentArgument, ConversationOption, GatewayOptions, JsonOption, online
from strata.cli.output import note, print_fields, print_json, when
from strata.shared.convert.enums import enum_name

# A run of a memory agent may wait for other runs, and for a slow model.
_RUN_S = 900.0

SleeptimeOption = Annotated[
    bool | None,
    typer.Option(
        "--sleeptime/--no-sleeptime",
        help="Whether a memory agent edits its memory in the background.",
        show_default=False,
    ),
]
FrequencyOption = Annotated[
    int | None,
    typer.Option(
        "--sleeptime-frequency",
        min=1,
        max=1000,
        help="Its memory agent runs after the first turn and then after this number of turns (5).",
        show_default=False,
    ),
]
MaxBufferOption = Annotated[
    int | None,
    typer.Option(
        "--max-buffer",
        min=2,
        max=1000,
        help="For a voice agent: messages in its window above which the oldest are archived (30).",
        show_default=False,
    ),
]
MinBufferOption = Annotated[
    int | None,
    typer.Option(
        "--min-buffer",
        min=1,
        max=1000,
        help="For a voice agent: messages that stay in its window then (15).",
        show_default=False,
    ),
]


@online
def run_memory_agent(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end of the run.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Run the memory agent of an agent now, over the messages since its last run.

    For a voice agent it reads the messages that can be removed from the window.
    """

    async def start(client: GatewayClient) -> tuple[pb.Run | None, list[run_event_pb2.RunEvent]]:
        present = await client.agent(agent)
        if not present.enable_sleeptime:
            raise UsageError(
                f"{present.name} has no memory agent. Give it one with:"
                f" strata agents update {present.name} --sleeptime"
            )
        request = pb.StartMemoryRunRequest(agent_id=present.id, conversation_id=conversation)
        response = await client.runs.StartMemoryRun(request)
        if not response.HasField("run"):
            return None, []
        events: list[run_event_pb2.RunEvent] = []
        if wait:
            follow = pb.StreamRunRequest(run_id=response.run.id, stream_tokens=False)
            stream = client.runs.StreamRun(follow, timeout=_RUN_S)
            events.extend([streamed.event async for streamed in stream])
        run = await client.runs.GetRun(pb.GetRunRequest(run_id=response.run.id))
        return run.run, events

    run, events = connection.run(start)
    if run is None:
        if as_json:
            print_json({})
        else:
            typer.echo("Its memory agent has read all messages.")
        return
    if as_json:
        print_json(run)
        return
    edits = [
        (edit.label, edit.operation)
        for event in events
        for edit in event.tool_finished.memory_edits
    ]
    state = enum_name(pb.RunState, run.state)
    print_fields(
        [
            ("run", run.id),
            ("memory agent", run.agent_id),
            ("state", state),
            ("error", run.error.message),
            ("changed", ", ".join(dict.fromkeys(f"{label} ({how})" for label, how in edits))),
        ]
    )
    if edits:
        note(f"Undo with: strata memory revert {run.agent_id} --run {run.id}")


@online
def ingest_files(
    connection: GatewayOptions, agent: AgentArgument, as_json: JsonOption = False
) -> None:
    """Read new files of attached folders into memory blocks, in the background."""

    async def ingest(client: GatewayClient) -> pb.IngestFilesResponse:
        present = await client.agent(agent)
        return await client.runs.IngestFiles(pb.IngestFilesRequest(agent_id=present.id))

    ingested = connection.run(ingest)
    if as_json:
        print_json(ingested)
        return
    started = ", ".join(f"{file.file_name} (block {file.block_label})" for file in ingested.started)
    print_fields(
        [
            ("started now", started),
            ("being read", str(ingested.open_files)),
            ("waiting", str(ingested.waiting_files)),
            ("read", str(ingested.done_files)),
            ("left out", str(ingested.skipped_files)),
        ]
    )


async def status_of(client: GatewayClient, agent: agent_pb.Agent) -> list[pb.MemoryStatus]:
    """Returns the progress of an agent's memory agent; empty without a call if there is none."""
    if not (agent.memory_agent_id or agent.tends_agent_id):
        return []
    request = pb.GetMemoryStatusRequest(agent_id=agent.id)
    status = await all_of(client.runs.GetMemoryStatus, request, "conversations")
    return list(status.conversations)


def status_fields(
    agent: agent_pb.Agent, statuses: Sequence[pb.MemoryStatus]
) -> list[tuple[str, str]]:
    """Returns the fields that show a memory agent and its state."""
    fields = [
        ("memory agent", agent.memory_agent_id),
        ("runs after", runs_after(agent)),
        ("tends", agent.tends_agent_id),
    ]
    fields += [
        (f"memory of {status.file_name or status.conversation_id}", _line(status))
        for status in statuses
    ]
    return fields


def runs_after(settings: agent_pb.Agent | group_pb.ManagerConfig) -> str:
    """Returns when a memory agent runs, as text; empty if there is none."""
    if settings.max_message_buffer_length:
        return (
            f"more than {settings.max_message_buffer_length} messages in the window;"
            f" {settings.min_message_buffer_length} are left"
        )
    number = settings.sleeptime_agent_frequency
    return f"every {number} turns" if number > 1 else "every turn" if number else ""


def _line(status: pb.MemoryStatus) -> str:
    unit = "line(s)" if status.file_id else "message(s)"
    parts = [f"{status.pending_messages} {unit} not read"]
    if status.file_id:
        parts.append(f"block {status.block_label}")
    if status.run_open:
        parts.append(f"{status.run_id} queued or under way")
    if status.failures:
        parts.append(f"failed {status.failures} time(s), last with {status.last_error}")
        if status.HasField("next_run_time"):
            parts.append(f"next try at {when(status.next_run_time)}")
    return "; ".join(parts)
