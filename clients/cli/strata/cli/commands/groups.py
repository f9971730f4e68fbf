"""``strata groups``: creates, shows and changes groups of agents, and talks with them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.chat.prompt import interruptible, is_interactive, read_message
from strata.cli.chat.screens import screen_for
from strata.cli.chat.session import ChatOptions, ChatSession
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands.agents_memory import runs_after
from strata.cli.failures import EXIT_FAILURE, UsageError, show_error
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import console, note, print_fields, print_json, print_listing, safe, when
from strata.protocol.errors import StrataError
from strata.shared.blank_text import is_blank
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Let several agents answer together.", no_args_is_help=True, add_completion=False
)

_DESCRIPTION_CHARS = 60


class GroupKind(StrEnum):
    """How a group chooses the next speaker."""

    ROUND_ROBIN = "round_robin"
    DYNAMIC = "dynamic"
    SUPERVISOR = "supervisor"
    SWARM = "swarm"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice_sleeptime"


_KINDS_WITHOUT_MEMBERS = frozenset({GroupKind.SLEEPTIME, GroupKind.VOICE_SLEEPTIME})
_KINDS_WITH_ANSWERING_MANAGER = frozenset(
    {
        pb.MANAGER_TYPE_SUPERVISOR,
        pb.MANAGER_TYPE_SLEEPTIME,
        pb.MANAGER_TYPE_VOICE_SLEEPTIME,
    }
)
"""Kinds whose manager agent answers."""
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]
MembersArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="AGENT...",
        autocompletion=complete_agent,
        help="Names or ids of the members, in order. None for sleeptime and voice_sleeptime.",
        show_default=False,
    ),
]
KindOption = Annotated[
    GroupKind | None,
    typer.Option("--type", help="How the next speaker is chosen: see the guide on groups."),
]
ManagerOption = Annotated[
    str | None,
    typer.Option(
        "--manager", autocompletion=complete_agent, help="Name or id of the manager agent."
    ),
]
MaxTurnsOption = Annotated[
    int | None,
    typer.Option(
        "--max-turns", min=0, max=100, help="Maximum number of turns of one run; 0: one per member."
    ),
]
TokenOption = Annotated[
    str | None, typer.Option("--termination-token", help="Text that ends a dynamic run.")
]
BlockOption = Annotated[
    list[str] | None,
    typer.Option("--block", metavar="BLOCK", help="Id of a shared block; may be repeated."),
]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="What it is for.")]


@app.command("list")
@online
def list_groups(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            help="Only groups with this agent, by name or id.",
        ),
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the groups of the project."""

    async def read(client: GatewayClient) -> pb.ListGroupsResponse:
        request = pb.ListGroupsRequest(agent_id=await client.agent_id(agent) if agent else "")
        return await first_of(client.groups.ListGroups, request, "groups", limit)

    response = connection.run(read)
    print_listing(
        response,
        ["id", "type", "members", "created", "description"],
        [
            (
                group.id,
                _kind(group),
                ", ".join(member.name for member in group.members),
                when(group.create_time),
                clipped(group.description, _DESCRIPTION_CHARS),
            )
            for group in response.groups
        ],
        empty="No groups. Create one with: strata groups create AGENT AGENT",
        as_json=as_json,
    )


@app.command("show")
@online
def show_group(
    connection: GatewayOptions, group: GroupArgument, as_json: JsonOption = False
) -> None:
    """Show a group."""
    request = pb.GetGroupRequest(group_id=group)
    response = connection.run(lambda client: client.groups.GetGroup(request))
    _print_group(response.group, as_json=as_json)


@app.command("create")
@online
def create_group(
    connection: GatewayOptions,
    agents: MembersArgument = None,
    kind: KindOption = None,
    manager: ManagerOption = None,
    max_turns: MaxTurnsOption = None,
    termination_token: TokenOption = None,
    block: BlockOption = None,
    description: DescriptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a group of agents."""
    if not agents and kind not in _KINDS_WITHOUT_MEMBERS:
        raise UsageError("Name the members: strata groups create AGENT AGENT")

    async def create(client: GatewayClient) -> pb.CreateGroupResponse:
        config = pb.ManagerConfig(type=_type_of(kind or GroupKind.ROUND_ROBIN))
        await _configure(client, config, manager, max_turns, termination_token)
        request = pb.CreateGroupRequest(
            request_id=new_request_id(),
            description=description or "",
            manager=config,
            agent_ids=await _ids(client, agents or ()),
            shared_block_ids=block or [],
        )
        return await client.groups.CreateGroup(request)

    _print_group(connection.run(create).group, as_json=as_json)


@app.command("update")
@online
def update_group(
    connection: GatewayOptions,
    group: GroupArgument,
    member: Annotated[
        list[str] | None,
        typer.Option("--member", help="The members from now on, in order; may be repeated."),
    ] = None,
    kind: KindOption = None,
    manager: ManagerOption = None,
    max_turns: MaxTurnsOption = None,
    termination_token: TokenOption = None,
    block: BlockOption = None,
    description: DescriptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a group. Settings without an option do not change."""

    async def update(client: GatewayClient) -> pb.UpdateGroupResponse:
        before = (await client.groups.GetGroup(pb.GetGroupRequest(group_id=group))).group
        request = pb.UpdateGroupRequest(
            request_id=new_request_id(), group_id=group, expected_revision=before.revision
        )
        if description is not None:
            request.description = description
        if member:
            request.members.agent_ids.extend(await _ids(client, member))
        if block is not None:
            request.shared_blocks.block_ids.extend(block)
        if (kind, manager, max_turns, termination_token) != (None,) * 4:
            # A change of kind resets the settings to its defaults.
            if kind is None or _type_of(kind) == before.manager.type:
                request.manager.CopyFrom(before.manager)
            else:
                request.manager.type = _type_of(kind)
            # These settings belong to the manager agent, which may change here.
            request.manager.sleeptime_agent_frequency = 0
            request.manager.max_message_buffer_length = 0
            request.manager.min_message_buffer_length = 0
            await _configure(client, request.manager, manager, max_turns, termination_token)
        return await client.groups.UpdateGroup(request)

    _print_group(connection.run(update).group, as_json=as_json)


@app.command("delete")
@online
def delete_group(
    connection: GatewayOptions,
    group: GroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a group; its agents and their blocks stay."""
    if not yes:
        if not is_interactive():
            raise UsageError("Deleting cannot be undone. Give --yes.")
        with interruptible():
            typer.confirm(f"Delete {group}?", abort=True)
    request = pb.DeleteGroupRequest(group_id=group)
    connection.run(lambda client: client.groups.DeleteGroup(request))
    typer.echo(f"Deleted {safe(group)}.")


@app.command("chat")
@online
def chat_with_group(
    connection: GatewayOptions,
    group: GroupArgument,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Send this, print the replies, and end.")
    ] = None,
    max_steps: Annotated[
        int,
        typer.Option(
            "--max-steps", min=0, max=200, help="Maximum number of model calls of each turn."
        ),
    ] = 0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --message: print each event as one line of JSON."),
    ] = False,
) -> None:
    """Talk with a group: each reply is shown below the name of its agent.

    Ctrl-C cancels the run, Ctrl-D leaves. Without a terminal each line of the input is a message.
    """
    if as_json and message is None:
        raise UsageError("--json needs --message.")

    async def talk(client: GatewayClient) -> bool:
        stored_group = (await client.groups.GetGroup(pb.GetGroupRequest(group_id=group))).group
        options = ChatOptions(group_id=stored_group.id, max_steps=max_steps)
        session = ChatSession(client, screen_for(console()), options)
        if message is None:
            return await _converse(session, stored_group)
        return await (session.stream_json(message) if as_json else session.turn(message))

    if not connection.run(talk):
        raise typer.Exit(EXIT_FAILURE)


async def _converse(session: ChatSession, group: pb.Group) -> bool:
    interactive = is_interactive()
    if interactive:
        one_answers = group.manager.type in _KINDS_WITH_ANSWERING_MANAGER
        partners = [group.manager_agent] if one_answers else group.members
        names = ", ".join(safe(partner.name) for partner in partners)
        note(f"You talk with {names}. Ctrl-C cancels a run, Ctrl-D leaves.")
    ok = True
    while (text := read_message()) is not None:
        if is_blank(text):
            continue
        try:
            ok = await session.turn(text) and ok
        except StrataError as error:
            if not interactive:
                raise
            show_error(error)
        sys.stdout.flush()
    return ok or interactive


async def _ids(client: GatewayClient, agents: Sequence[str]) -> list[str]:
    return list(await asyncio.gather(*(client.agent_id(agent) for agent in agents)))


async def _configure(
    client: GatewayClient,
    config: pb.ManagerConfig,
    manager: str | None,
    max_turns: int | None,
    termination_token: str | None,
) -> None:
    if manager is not None:
        config.manager_agent_id = await client.agent_id(manager)
    if max_turns is not None:
        config.max_turns = max_turns
    if termination_token is not None:
        config.termination_token = termination_token


def _type_of(kind: GroupKind) -> pb.ManagerType.ValueType:
    return pb.ManagerType.Value(f"MANAGER_TYPE_{kind.name}")


def _kind(group: pb.Group) -> str:
    return enum_name(pb.ManagerType, group.manager.type)


def _holder(group: pb.Group) -> str:
    """Names the member that answers the next message of a swarm; empty for other kinds."""
    holders = [member for member in group.members if member.agent_id == group.holder_agent_id]
    return ", ".join(f"{member.name} ({member.agent_id})" for member in holders)


def _max_turns(group: pb.Group) -> str:
    if group.manager.type in _KINDS_WITH_ANSWERING_MANAGER:
        return ""
    return str(group.manager.max_turns or "one for each member")


def _print_group(group: pb.Group, *, as_json: bool) -> None:
    if as_json:
        print_json(group)
        return
    manager = group.manager
    members = ", ".join(f"{member.name} ({member.agent_id})" for member in group.members)
    agent = group.manager_agent
    print_fields(
        [
            ("id", group.id),
            ("type", _kind(group)),
            ("description", group.description),
            ("members", members or "none"),
            ("manager", f"{agent.name} ({agent.agent_id})" if agent.agent_id else ""),
            ("holds the conversation", _holder(group)),
            ("max turns", _max_turns(group)),
            ("termination token", manager.termination_token),
            ("memory agent runs after", runs_after(manager)),
            ("shared blocks", ", ".join(group.shared_block_ids)),
            ("revision", str(group.revision)),
            ("created", when(group.create_time)),
        ]
    )
