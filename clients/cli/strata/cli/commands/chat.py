"""``strata chat``: talks with an agent in the terminal."""

from __future__ import annotations

import sys
from enum import Enum, auto
from pathlib import Path
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.chat import images
from strata.cli.chat.approval_prompt import AskPerson, ask_on_terminal
from strata.cli.chat.images import message_with_images
from strata.cli.chat.prompt import interruptible, is_interactive, read_message
from strata.cli.chat.screens import screen_for
from strata.cli.chat.session import ChatOptions, ChatSession
from strata.cli.chat.slash import SlashCommands, is_command
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.commands.conversations import fork
from strata.cli.connection import Choice
from strata.cli.failures import (
    EXIT_FAILURE,
    UsageError,
    exit_code_of,
    reported_error,
    show_error,
)
from strata.cli.options import AgentArgument, ConversationOption, GatewayOptions, online
from strata.cli.output import console, note, safe
from strata.client.calls.agents import is_agent_id
from strata.protocol.errors import NotFoundError, StrataError
from strata.shared.blank_text import is_blank

app = typer.Typer(add_completion=False)


class Consent(Enum):
    """Whether a missing agent may be created."""

    GIVEN = auto()
    REFUSED = auto()
    ASK = auto()


@app.command()
@online
def chat(
    connection: GatewayOptions,
    agent: AgentArgument,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Send this, print the reply, and end.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option("--image", help="With --message: an image file or https URL. Repeatable."),
    ] = None,
    conversation: ConversationOption = "",
    fork_at: Annotated[
        str,
        typer.Option(
            "--fork", metavar="MESSAGE", help="Continue from this message in a new conversation."
        ),
    ] = "",
    max_steps: Annotated[
        int,
        typer.Option(
            "--max-steps", min=0, max=200, help="Maximum number of model calls of a turn."
        ),
    ] = 0,
    reasoning: Annotated[
        bool, typer.Option("--reasoning/--no-reasoning", help="Show the model's reasoning.")
    ] = True,
    usage: Annotated[
        bool, typer.Option("--usage/--no-usage", help="Show tokens and time of a turn.")
    ] = True,
    create: Annotated[
        bool, typer.Option("--create", help="Create the agent if there is none, without asking.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --message: print each event as one line of JSON."),
    ] = False,
) -> None:
    """Talk with an agent.

    Ctrl-C cancels the turn, Ctrl-D leaves, /help lists commands such as /undo and /new.

    Without a terminal each line of the input is a message or a command, and the end of the input
    ends the chat. Replies of the agent and results of commands go to standard output, everything
    else to standard error.
    """
    if as_json and message is None:
        raise UsageError("--json needs --message.")
    if image and message is None:
        raise UsageError("--image needs --message; in a chat, /image FILE sends one.")

    async def talk(client: GatewayClient) -> bool:
        without = Consent.ASK if message is None else Consent.REFUSED
        partner = await find_or_create(client, agent, consent=Consent.GIVEN if create else without)
        chosen = conversation
        if fork_at:
            chosen = (await fork(client, partner, fork_at, conversation)).id
            note(f"A new conversation; to come back to it: --conversation {chosen}")
        options = ChatOptions(partner.id, chosen, max_steps, reasoning, usage, ask=_asker())
        session = ChatSession(client, screen_for(console()), options)
        if message is None:
            return await converse(session, partner.name, SlashCommands(client, partner.id, session))
        sent = message_with_images(message, image or [])
        return await (session.stream_json(sent) if as_json else session.turn(sent))

    if not connection.run(talk):
        raise typer.Exit(EXIT_FAILURE)


def open_chat(folder: Path, agent: str) -> int:
    """Opens a chat on a terminal with an agent of a data folder, and returns the exit code.

    For ``strata run``: a missing agent is created without a question.
    """

    async def talk(client: GatewayClient) -> bool:
        partner = await find_or_create(client, agent, consent=Consent.GIVEN)
        session = ChatSession(client, screen_for(console()), ChatOptions(partner.id, ask=_asker()))
        return await converse(session, partner.name, SlashCommands(client, partner.id, session))

    try:
        return 0 if GatewayOptions(Choice(data=folder)).run(talk) else EXIT_FAILURE
    except StrataError as error:
        show_error(error)
        return exit_code_of(error)


def _asker() -> AskPerson | None:
    return ask_on_terminal if is_interactive() else None


async def find_or_create(client: GatewayClient, agent: str, *, consent: Consent) -> pb.Agent:
    """Returns the agent, and creates it with the person's consent if there is none.

    Raises:
        NotFoundError: There is no such agent, and it was not created.
    """
    try:
        return await client.agent(agent)
    except NotFoundError as error:
        if is_agent_id(agent):
            raise
        if consent is not Consent.GIVEN:
            if consent is Consent.REFUSED or not is_interactive():
                raise NotFoundError(
                    f'There is no agent "{agent}". Create it with: strata agents create {agent}',
                    reason=error.reason,
                ) from error
            with interruptible():
                if not typer.confirm(f'There is no agent "{agent}". Create it?', default=True):
                    raise
    request = pb.CreateAgentRequest(request_id=new_request_id(), name=agent)
    return (await client.agents.CreateAgent(request)).agent


async def converse(session: ChatSession, name: str, commands: SlashCommands) -> bool:
    """Sends messages and runs commands until the input ends; returns whether all runs succeeded.

    Lines that begin with a slash and a word are commands, also in a pipe. An error is printed on a
    terminal and the chat continues; without a terminal it ends the chat.
    """
    interactive = is_interactive()
    if interactive:
        note(f"You talk with {safe(name)}. Ctrl-C cancels a turn, Ctrl-D leaves, /help says more.")
    ok = True
    while (text := read_message()) is not None:
        if is_blank(text):
            continue
        try:
            has_image = is_command(text) and text.split(maxsplit=1)[0].lower() == images.COMMAND
            if is_command(text) and not has_image:
                if not await commands.run(text):
                    break
            else:
                message = images.from_command(text) if has_image else text
                try:
                    ok = await session.turn(message) and ok
                finally:
                    commands.add_run(session.last_run_id)
        except (StrataError, UnicodeEncodeError) as error:
            reported = reported_error(error)
            if not interactive or reported is None:
                raise
            show_error(reported)
        sys.stdout.flush()
    return ok or interactive
