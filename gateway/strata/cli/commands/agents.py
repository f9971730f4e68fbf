"""``strata agents``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.cli.chat.prompt import interruptible, is_interactive
from strata.cli.client import Client, first_of, new_request_id
from strata.cli.commands.agents_context import compact_conversation, show_context
from strata.cli.commands.conversations import fork_conversation, list_conversations
from strata.cli.compaction_options import (
    CompactionChoice,
    CompactionModelOption,
    CompactionModeOption,
    CompactionPromptFileOption,
    CompactionPromptOption,
    CompactionShareOption,
    SummaryCharsOption,
)
from strata.cli.failures import UsageError
from strata.cli.options import (
    AgentArgument,
    Connection,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import (
    clipped,
    print_fields,
    print_json,
    print_listing,
    safe,
    when,
)

app = typer.Typer(
    help="Create, show, change and delete agents.", no_args_is_help=True, add_completion=False
)

_DESCRIPTION_CHARS = 60

ModelOption = Annotated[
    str | None,
    typer.Option("--model", help='Handle of its chat model, "provider/model"; see strata models.'),
]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="What it is for.")]
SystemOption = Annotated[str | None, typer.Option("--system", help="Its base system prompt.")]
SystemFileOption = Annotated[
    Path | None,
    typer.Option("--system-file", help="File with its base system prompt.", exists=True),
]
TimezoneOption = Annotated[
    str | None, typer.Option("--timezone", help="IANA timezone, such as Europe/Berlin.")
]
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")]
ToolOption = Annotated[
    list[str] | None, typer.Option("--tool", help="Name of a tool; may be repeated.")
]


@app.command("list")
@online
def list_agents(
    connection: Connection,
    name: Annotated[str, typer.Option("--name", help="Only names that contain this.")] = "",
    tag: TagOption = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the agents of the project."""
    request = pb.ListAgentsRequest(name_contains=name, tags=tag or [])
    found = connection.run(
        lambda client: first_of(client.agents.ListAgents, request, "agents", limit)
    )
    print_listing(
        found,
        ["name", "id", "model", "tags", "created", "description"],
        [
            (
                agent.name,
                agent.id,
                agent.model.handle or "default",
                ", ".join(agent.tags),
                when(agent.create_time),
                clipped(agent.description, _DESCRIPTION_CHARS),
            )
            for agent in found.agents
        ],
        empty="No agents. Make one with: strata agents create NAME",
        as_json=as_json,
    )


@app.command("show")
@online
def show_agent(connection: Connection, agent: AgentArgument, as_json: JsonOption = False) -> None:
    """Show an agent."""
    _print_agent(connection.run(lambda client: client.agent(agent)), as_json=as_json)


@app.command("create")
@online
def create_agent(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    model: ModelOption = None,
    persona: Annotated[
        str | None, typer.Option("--persona", help='Text of its block "persona".')
    ] = None,
    human: Annotated[str | None, typer.Option("--human", help='Text of its block "human".')] = None,
    block: Annotated[
        list[str] | None,
        typer.Option("--block", metavar="LABEL=TEXT", help="A further block; may be repeated."),
    ] = None,
    description: DescriptionOption = None,
    system: SystemOption = None,
    system_file: SystemFileOption = None,
    tool: ToolOption = None,
    tag: TagOption = None,
    timezone: TimezoneOption = None,
    compaction_mode: CompactionModeOption = None,
    compaction_share: CompactionShareOption = None,
    compaction_model: CompactionModelOption = None,
    compaction_prompt: CompactionPromptOption = None,
    compaction_prompt_file: CompactionPromptFileOption = None,
    summary_chars: SummaryCharsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an agent with its memory blocks and tools."""
    compaction = CompactionChoice(
        compaction_mode,
        compaction_share,
        compaction_model,
        compaction_prompt,
        compaction_prompt_file,
        summary_chars,
    )
    blocks = [
        ("human", human or ""),
        ("persona", persona or ""),
        *map(_label_and_text, block or []),
    ]
    request = pb.CreateAgentRequest(
        request_id=new_request_id(),
        name=name,
        description=description or "",
        system=_system(system, system_file),
        model=pb.ModelConfig(handle=model or ""),
        blocks=[NewBlock(label=label, value=text) for label, text in blocks],
        tools=tool or [],
        tags=tag or [],
        timezone=timezone or "",
        compaction=compaction.over() if compaction else None,
    )

    async def create(client: Client) -> pb.Agent:
        return (await client.agents.CreateAgent(request)).agent

    _print_agent(connection.run(create), as_json=as_json)


@app.command("update")
@online
def update_agent(
    connection: Connection,
    agent: AgentArgument,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    model: ModelOption = None,
    description: DescriptionOption = None,
    system: SystemOption = None,
    system_file: SystemFileOption = None,
    tool: ToolOption = None,
    tag: TagOption = None,
    timezone: TimezoneOption = None,
    compaction_mode: CompactionModeOption = None,
    compaction_share: CompactionShareOption = None,
    compaction_model: CompactionModelOption = None,
    compaction_prompt: CompactionPromptOption = None,
    compaction_prompt_file: CompactionPromptFileOption = None,
    summary_chars: SummaryCharsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change an agent. Tools and tags that are given replace the present ones."""
    prompt = _system(system, system_file)
    compaction = CompactionChoice(
        compaction_mode,
        compaction_share,
        compaction_model,
        compaction_prompt,
        compaction_prompt_file,
        summary_chars,
    )
    given = (name, model, description, prompt, tool, tag, timezone)
    if not compaction and all(each is None for each in given):
        raise UsageError("Nothing to change: give at least one option.")
    request = pb.UpdateAgentRequest(
        request_id=new_request_id(),
        name=name,
        description=description,
        system=prompt,
        tools=pb.NameList(names=tool) if tool else None,
        tags=pb.NameList(names=tag) if tag else None,
        timezone=timezone,
    )

    async def update(client: Client) -> pb.Agent:
        present = await client.agent(agent)
        request.agent_id = present.id
        if model is not None:
            # The configuration is replaced whole: keep the rest of it, as it was read.
            request.model.CopyFrom(present.model)
            request.model.handle = model
            request.expected_revision = present.revision
        if compaction:
            request.compaction.CopyFrom(compaction.over(present.compaction))
            request.expected_revision = present.revision
        return (await client.agents.UpdateAgent(request)).agent

    _print_agent(connection.run(update), as_json=as_json)


@app.command("delete")
@online
def delete_agent(
    connection: Connection,
    agent: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an agent with all that it remembers."""

    async def delete(client: Client) -> str:
        found = await client.agent(agent)
        if not yes:
            if not is_interactive():
                raise UsageError("Deleting cannot be undone. Give --yes.")
            with interruptible():
                typer.confirm(
                    f"Delete {found.name} ({found.id}) and all that it remembers?", abort=True
                )
        await client.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=found.id))
        return found.name

    typer.echo(f"Deleted {safe(connection.run(delete))}.")


app.command("context")(show_context)
app.command("compact")(compact_conversation)
app.command("conversations")(list_conversations)
app.command("fork")(fork_conversation)


def _print_agent(agent: pb.Agent, *, as_json: bool) -> None:
    if as_json:
        print_json(agent)
        return
    print_fields(
        [
            ("name", agent.name),
            ("id", agent.id),
            ("description", agent.description),
            ("model", agent.model.handle or "the server's default"),
            ("tools", ", ".join(agent.tools)),
            ("tags", ", ".join(agent.tags)),
            ("timezone", agent.timezone),
            ("compaction", _compaction(agent.compaction)),
            ("conversation", agent.default_conversation_id),
            ("revision", str(agent.revision)),
            ("created", when(agent.create_time)),
            ("changed", when(agent.update_time)),
        ]
    )


def _compaction(settings: pb.CompactionSettings) -> str:
    share = settings.sliding_window_percentage
    told = {
        "mode": settings.mode,
        "share": f"{share:g}" if share else "",
        "model": settings.model,
        "characters": str(settings.clip_chars or ""),
        "prompt": "its own" if settings.prompt else "",
    }
    return ", ".join(f"{name} {value}" for name, value in told.items() if value)


def _label_and_text(given: str) -> tuple[str, str]:
    label, equals, text = given.partition("=")
    if not equals or not label:
        raise UsageError(f"--block {given!r}: write LABEL=TEXT.")
    return label, text


def _system(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise UsageError("Give --system or --system-file, not both.")
    return text if file is None else file.read_text(encoding="utf-8")
