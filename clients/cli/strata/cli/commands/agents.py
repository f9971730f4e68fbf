"""``strata agents``: creates, lists, changes, shows and deletes agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.core_memory.v1.block_service_pb2 import NewBlock
from strata.api.gateway.v1.run_service_pb2 import MemoryStatus
from strata.cli.arguments import nonblank_name
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands.agents_context import compact_conversation, show_context
from strata.cli.commands.agents_memory import (
    FrequencyOption,
    MaxBufferOption,
    MinBufferOption,
    SleeptimeOption,
    ingest_files,
    run_memory_agent,
    status_fields,
    status_of,
)
from strata.cli.commands.agents_tools import show_tools
from strata.cli.commands.conversations import fork_conversation, list_conversations
from strata.cli.compaction_options import CompactionChoice
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import UsageError
from strata.cli.list_options import (
    AddTagOption,
    AddToolOption,
    ListChange,
    RemoveTagOption,
    RemoveToolOption,
    TagsOption,
    ToolsOption,
)
from strata.cli.model_names import warn_of_unchecked_model
from strata.cli.model_options import (
    FallbackModelsOption,
    MaxOutputTokensOption,
    ModelOption,
    ModelOptions,
    TemperatureOption,
)
from strata.cli.options import (
    AgentArgument,
    GatewayOptions,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import print_fields, print_json, print_listing, safe, when
from strata.cli.response_formats import ResponseFormatOption, named_format, response_format
from strata.shared.agent_types import TYPES_WITHOUT_BLOCKS, AgentType
from strata.shared.convert.enums import EnumTable
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Create, show, change and delete agents.", no_args_is_help=True, add_completion=False
)

_DESCRIPTION_CHARS = 60
_TYPES = EnumTable(pb.AgentType, AgentType)


class UserMessages(StrEnum):
    """The form in which a model gets the messages of the user."""

    RAW = "raw"
    PACKED = "packed"


SystemOption = Annotated[str | None, typer.Option("--system", help="Its base system prompt.")]
SystemFileOption = Annotated[
    Path | None,
    typer.Option("--system-file", help="File with its base system prompt.", exists=True),
]
PromptKeyOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="KEY",
        help="Key of the prompt to take as base system prompt; see strata prompts list.",
    ),
]
UserMessagesOption = Annotated[
    UserMessages | None,
    typer.Option(
        "--user-messages",
        help="Form in which its model gets user messages: the text itself (raw), or a JSON object"
        " with the time, the location and the name (packed).",
    ),
]
LocationOption = Annotated[
    str | None,
    typer.Option("--location", help="Where the user is, for packed messages; empty for nowhere."),
]
TypeOption = Annotated[
    AgentType,
    typer.Option("--type", help="Type of the agent: its loop, prompt, default tools and rules."),
]


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """Options for the settings that requests have by the same name; None for an absent option."""

    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="IANA timezone, such as Europe/Berlin.")
    ] = None
    message_buffer_autoclear: Annotated[
        bool | None,
        typer.Option(
            "--autoclear/--no-autoclear",
            help="Start each run with an empty window; earlier messages stay in recall memory.",
        ),
    ] = None
    enable_sleeptime: SleeptimeOption = None
    sleeptime_agent_frequency: FrequencyOption = None
    max_message_buffer_length: MaxBufferOption = None
    min_message_buffer_length: MinBufferOption = None
    external_id: Annotated[
        str | None,
        typer.Option("--external-id", help="Its identifier in your own system; empty for none."),
    ] = None

    @property
    def values(self) -> dict[str, Any]:
        """The settings that have an option, as arguments for a request."""
        return {name: value for name, value in asdict(self).items() if value is not None}


_NO_SETTINGS = PlainSettings()
_NO_COMPACTION = CompactionChoice()


@app.command("list")
@online
def list_agents(
    connection: GatewayOptions,
    name: Annotated[str, typer.Option("--name", help="Only names that contain this.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only with this tag; may be repeated.")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the agents of the project."""
    request = pb.ListAgentsRequest(name_contains=name, tags=tag or [])
    listing = connection.run(
        lambda client: first_of(client.agents.ListAgents, request, "agents", limit)
    )
    print_listing(
        listing,
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
            for agent in listing.agents
        ],
        empty="No agents. Make one with: strata agents create NAME",
        as_json=as_json,
    )


@app.command("show")
@online
def show_agent(
    connection: GatewayOptions, agent: AgentArgument, as_json: JsonOption = False
) -> None:
    """Show an agent."""

    async def read(client: GatewayClient) -> tuple[pb.Agent, list[MemoryStatus]]:
        present = await client.agent(agent)
        return present, await status_of(client, present)

    present, status = connection.run(read)
    _print_agent(present, status, as_json=as_json)


@app.command("create")
@online
def create_agent(
    connection: GatewayOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", callback=nonblank_name)],
    agent_type: TypeOption = AgentType.LETTA_V1,
    model: ModelOption = None,
    fallback_models: FallbackModelsOption = None,
    temperature: TemperatureOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    persona: Annotated[
        str | None, typer.Option("--persona", help='Text of its block "persona".')
    ] = None,
    human: Annotated[str | None, typer.Option("--human", help='Text of its block "human".')] = None,
    block: Annotated[
        list[str] | None,
        typer.Option("--block", metavar="LABEL=TEXT", help="A further block; may be repeated."),
    ] = None,
    system: SystemOption = None,
    system_file: SystemFileOption = None,
    prompt: PromptKeyOption = None,
    add_tool: AddToolOption = None,
    tools: ToolsOption = None,
    add_tag: AddTagOption = None,
    tags: TagsOption = None,
    user_messages: UserMessagesOption = None,
    location: LocationOption = None,
    reply_format: ResponseFormatOption = None,
    plain: PlainSettings = _NO_SETTINGS,
    compaction: CompactionChoice = _NO_COMPACTION,
    as_json: JsonOption = False,
) -> None:
    """Create an agent with its memory blocks and tools.

    It gets the tools of its type and those of --add-tool; with --tools, only those listed. A
    react_agent or workflow_agent has no memory blocks.
    """
    if prompt is not None and (system is not None or system_file is not None):
        raise UsageError("Give one of --prompt, --system and --system-file.")
    models = ModelOptions(model, fallback_models, temperature, max_output_tokens)
    if plain.message_buffer_autoclear is False and agent_type is AgentType.WORKFLOW:
        raise UsageError(
            "A workflow_agent always starts with an empty window: omit --no-autoclear."
        )
    blocks = _blocks(agent_type, human, persona, block or [])
    request = pb.CreateAgentRequest(
        request_id=new_request_id(),
        name=name,
        type=_TYPES.to_proto[agent_type],
        **plain.values,
        system=_system(system, system_file),
        system_prompt_key=prompt or "",
        model=models.over(pb.ModelConfig()),
        blocks=[NewBlock(label=label, value=text) for label, text in blocks],
        tools=ListChange("tool", add_tool, whole=tools).entries,
        include_base_tools=tools is None,
        tags=ListChange("tag", add_tag, whole=tags).entries,
        compaction=compaction.over() if compaction else None,
        packaging=_packaging(pb.MessagePackaging(), user_messages, location),
        response_format=response_format(reply_format),
    )

    async def create(client: GatewayClient) -> pb.Agent:
        for handle in models.handles:
            await warn_of_unchecked_model(client, handle)
        return (await client.agents.CreateAgent(request)).agent

    _print_agent(connection.run(create), as_json=as_json)


@app.command("update")
@online
def update_agent(
    connection: GatewayOptions,
    agent: AgentArgument,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    model: ModelOption = None,
    fallback_models: FallbackModelsOption = None,
    temperature: TemperatureOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    system: SystemOption = None,
    system_file: SystemFileOption = None,
    add_tool: AddToolOption = None,
    remove_tool: RemoveToolOption = None,
    tools: ToolsOption = None,
    add_tag: AddTagOption = None,
    remove_tag: RemoveTagOption = None,
    tags: TagsOption = None,
    user_messages: UserMessagesOption = None,
    location: LocationOption = None,
    reply_format: ResponseFormatOption = None,
    plain: PlainSettings = _NO_SETTINGS,
    compaction: CompactionChoice = _NO_COMPACTION,
    as_json: JsonOption = False,
) -> None:
    """Change an agent. Settings without an option do not change."""
    tool_change = ListChange("tool", add_tool, remove_tool, tools)
    tag_change = ListChange("tag", add_tag, remove_tag, tags)
    prompt = _system(system, system_file)
    models = ModelOptions(model, fallback_models, temperature, max_output_tokens)
    changes = (models, compaction, tool_change, tag_change, plain.values)
    options = (name, prompt, user_messages, location, reply_format)
    if not any(changes) and all(option is None for option in options):
        raise UsageError("Nothing to change: give at least one option.")
    request = pb.UpdateAgentRequest(
        request_id=new_request_id(),
        **plain.values,
        name=name,
        system=prompt,
        response_format=response_format(reply_format),
    )

    async def update(client: GatewayClient) -> pb.Agent:
        present = await client.agent(agent)
        request.agent_id = present.id
        for handle in models.handles:
            await warn_of_unchecked_model(client, handle)
        if models:
            request.model.CopyFrom(models.over(present.model))
            request.expected_revision = present.revision
        if compaction:
            request.compaction.CopyFrom(compaction.over(present.compaction))
            request.expected_revision = present.revision
        if user_messages is not None or location is not None:
            changed = _packaging(present.packaging, user_messages, location)
            request.packaging.CopyFrom(changed)
            request.expected_revision = present.revision
        # An update replaces a whole list, so it must be based on the revision that was read.
        if tool_change:
            request.tools.CopyFrom(pb.NameList(names=tool_change.over(present.tools)))
            request.expected_revision = present.revision
        if tag_change:
            request.tags.CopyFrom(pb.NameList(names=tag_change.over(present.tags)))
            request.expected_revision = present.revision
        return (await client.agents.UpdateAgent(request)).agent

    _print_agent(connection.run(update), as_json=as_json)


@app.command("delete")
@online
def delete_agent(
    connection: GatewayOptions,
    agent: AgentArgument,
    yes: YesOption = False,
) -> None:
    """Delete an agent with its whole memory."""

    async def delete(client: GatewayClient) -> str:
        target = await client.agent(agent)
        confirm(
            f"Delete {target.name} ({target.id}) with its whole memory?",
            yes=yes,
            otherwise="Deleting cannot be undone.",
        )
        await client.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=target.id))
        return target.name

    typer.echo(f"Deleted {safe(connection.run(delete))}.")


app.command("sleep")(run_memory_agent)
app.command("ingest")(ingest_files)
app.command("context")(show_context)
app.command("compact")(compact_conversation)
app.command("tools")(show_tools)
app.command("conversations")(list_conversations)
app.command("fork")(fork_conversation)


def _print_agent(agent: pb.Agent, status: Sequence[MemoryStatus] = (), *, as_json: bool) -> None:
    if as_json:
        print_json(agent)
        return
    print_fields(
        [
            ("name", agent.name),
            ("id", agent.id),
            ("type", _type_name(agent.type)),
            ("description", agent.description),
            ("model", agent.model.handle or "the server's default"),
            ("fallback models", ", ".join(agent.model.fallback_models)),
            (
                "temperature",
                f"{agent.model.temperature:g}" if agent.model.HasField("temperature") else "",
            ),
            ("output tokens", str(agent.model.max_output_tokens or "")),
            ("tools", ", ".join(agent.tools)),
            ("tags", ", ".join(agent.tags)),
            ("external id", agent.external_id),
            ("timezone", agent.timezone),
            ("user messages", "packed" if agent.packaging.pack_user_messages else ""),
            ("location", agent.packaging.location),
            ("window", "cleared before each run" if agent.message_buffer_autoclear else ""),
            ("replies", named_format(agent.response_format)),
            ("compaction", _compaction(agent.compaction)),
            ("conversation", agent.default_conversation_id),
            *status_fields(agent, status),
            ("revision", str(agent.revision)),
            ("created", when(agent.create_time)),
            ("changed", when(agent.update_time)),
        ]
    )


def _type_name(value: pb.AgentType.ValueType) -> str:
    agent_type = _TYPES.from_proto.get(value)
    return "" if agent_type is None else agent_type.value


def _compaction(settings: pb.CompactionSettings) -> str:
    share = settings.sliding_window_percentage
    values = {
        "mode": settings.mode,
        "share": f"{share:g}" if share else "",
        "model": settings.model,
        "characters": str(settings.clip_chars or ""),
        "prompt": "its own" if settings.prompt else "",
        "acknowledgement": "on" if settings.prompt_acknowledgement else "",
    }
    if settings.model_settings.HasField("temperature"):
        values["temperature"] = f"{settings.model_settings.temperature:g}"
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


def _packaging(
    present: pb.MessagePackaging, user_messages: UserMessages | None, location: str | None
) -> pb.MessagePackaging:
    """Returns the packaging of user messages, changed by the options."""
    pack = present.pack_user_messages
    if user_messages is not None:
        pack = user_messages is UserMessages.PACKED
    return pb.MessagePackaging(
        pack_user_messages=pack, location=present.location if location is None else location
    )


def _blocks(
    agent_type: AgentType, human: str | None, persona: str | None, others: list[str]
) -> list[tuple[str, str]]:
    """Returns the labels and texts of the blocks of a new agent."""
    if agent_type in TYPES_WITHOUT_BLOCKS:
        if human is not None or persona is not None or others:
            raise UsageError(
                f"A {agent_type} has no memory blocks: omit --human, --persona and --block."
            )
        return []
    further = [_label_and_text(option) for option in others]
    blocks: list[tuple[str, str]] = []
    for label, text in (("human", human), ("persona", persona)):
        is_further = any(label == other for other, _ in further)
        if is_further and text is not None:
            raise UsageError(f"Give the block {label!r} by --{label} or by --block, not both.")
        if not is_further:
            blocks.append((label, text or ""))
    return [*blocks, *further]


def _label_and_text(option: str) -> tuple[str, str]:
    label, equals, text = option.partition("=")
    if not equals or not label:
        raise UsageError(f"--block {option!r}: write LABEL=TEXT.")
    return label, text


def _system(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise UsageError("Give --system or --system-file, not both.")
    return text if file is None else file.read_text(encoding="utf-8")
