"""Slash commands of the chat."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rich.text import Text

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.chat.session import ChatSession
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.context_picture import picture
from strata.cli.failures import UsageError
from strata.cli.memory.history import Names, newest_steps
from strata.cli.memory.views import print_blocks, print_changes, print_steps
from strata.cli.model_names import warn_of_unchecked_model
from strata.cli.output import console, error_console, safe
from strata.shared.agent_mcp.blocks import attached_block, blocks_of
from strata.shared.number_text import is_whole_number

_LOG_VERSIONS = 5
# Versions that are searched for runs of earlier chats.
_UNDO_VERSIONS = 100

_HELP = (
    ("/memory [LABEL]", "show the memory blocks"),
    ("/log [LABEL]", "show their last changes, with authors"),
    (
        "/undo [COUNT]",
        "undo the memory edits of the last run; repeat it to go further back",
    ),
    ("/image FILE [TEXT]", "send an image with a text"),
    ("/context", "show what fills the context window"),
    ("/model [HANDLE]", "show the model of the agent, or change it"),
    ("/new [TITLE]", "start a new conversation with the same memory"),
    ("/quit, /exit", "leave the chat, like Ctrl-D"),
    ("/help", "show this list; to send a message that starts with a slash, put a space before it"),
    ("... \\", "a line that ends in a backslash continues on the next line"),
)


# A path such as /etc/hosts is not a command.
_COMMAND = re.compile(r"/[a-z]+(?=\s|$)", re.IGNORECASE)


def is_command(line: str) -> bool:
    """Whether a line is a slash command: it starts with a slash and a word."""
    return _COMMAND.match(line) is not None


_AS_MESSAGE = "To send the line as a message, put a space before it."


@dataclass(slots=True)
class SlashCommands:
    """Runs slash commands.

    Attributes:
        client: The gateway.
        agent_id: The agent of the chat.
        session: The conversation.
        undone: Runs whose edits were undone, or that made none.
        runs: Runs of this chat, oldest first.
    """

    client: GatewayClient
    agent_id: str
    session: ChatSession
    undone: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)

    def add_run(self, run_id: str) -> None:
        """Stores a run for `/undo`."""
        if run_id and run_id not in self.runs:
            self.runs.append(run_id)

    async def run(self, line: str) -> bool:
        """Runs the command of a line; returns False if it ends the chat.

        Results go to standard output; without a terminal, remarks go to standard error.

        Raises:
            UsageError: There is no such command, or it has no such argument.
            StrataError: The gateway refused.
        """
        command, *rest = line.split(maxsplit=1)
        argument = rest[0].strip() if rest else ""
        match command.lower():
            case "/quit" | "/exit" if not argument:
                return False
            case "/memory":
                await self._memory(argument)
            case "/log":
                await self._log(argument)
            case "/undo" if not argument or (is_whole_number(argument) and int(argument)):
                await self._undo(int(argument or 1))
            case "/context" if not argument:
                await self._context()
            case "/model":
                await self._model(argument)
            case "/new":
                await self._new(argument)
            case "/help":
                self._help()
            case "/undo":
                raise UsageError(
                    f"/undo takes a number of runs, such as /undo 2, not {argument!r}."
                )
            case "/quit" | "/exit" | "/context":
                raise UsageError(f"{command} takes no argument. {_AS_MESSAGE}")
            case _:
                raise UsageError(
                    f"There is no command {command}. /help lists the commands. {_AS_MESSAGE}"
                )
        return True

    async def _memory(self, label: str) -> None:
        if label:
            print_blocks([await attached_block(self.client, self.agent_id, label)])
        else:
            print_blocks(await blocks_of(self.client, self.agent_id))

    async def _log(self, label: str) -> None:
        steps = await newest_steps(self.client, self.agent_id, label, _LOG_VERSIONS)
        names = Names(self.client)
        await names.learn(step.version.origin.agent_id for step in steps)
        print_steps(steps, names)

    async def _undo(self, count: int) -> None:
        for _ in range(count):
            run_id = await self._newest_run()
            if not run_id:
                self._notify("There is no run to undo. To go back further: strata memory revert")
                return
            request = pb.RevertBlockRequest(
                request_id=new_request_id(),
                run_id=run_id,
                agent_id=self.agent_id,
                reason="undone in the chat",
            )
            response = await self.client.blocks.RevertBlock(request)
            self.undone.add(run_id)
            if response.changes:
                print_changes(response.changes, dry_run=False)
            else:
                self._notify("That run changed no memory; /undo again goes back further.")

    async def _newest_run(self) -> str:
        """Returns the newest run that is not undone, of this chat or of an earlier one."""
        for run_id in reversed(self.runs):
            if run_id not in self.undone:
                return run_id
        steps = await newest_steps(self.client, self.agent_id, "", _UNDO_VERSIONS)
        run_ids = (step.version.origin.run_id for step in steps)
        return next((run_id for run_id in run_ids if run_id and run_id not in self.undone), "")

    async def _context(self) -> None:
        request = agent_pb.GetContextWindowRequest(
            agent_id=self.agent_id, conversation_id=self.session.conversation_id
        )
        window = await self.client.agents.GetContextWindow(request)
        for line in picture(window, console().width):
            console().print(line, soft_wrap=True)

    async def _model(self, handle: str) -> None:
        agent = await self.client.agent(self.agent_id)
        if not handle:
            handle = agent.model.handle or "The default model of the server"
            console().print(Text(safe(f"{handle} answers."), style="yellow"), soft_wrap=True)
            return
        await warn_of_unchecked_model(self.client, handle)
        request = agent_pb.UpdateAgentRequest(
            request_id=new_request_id(), agent_id=agent.id, expected_revision=agent.revision
        )
        # The update replaces the whole configuration, so send the other settings as they were.
        request.model.CopyFrom(agent.model)
        request.model.handle = handle
        await self.client.agents.UpdateAgent(request)
        self._notify(f"{handle} answers from now on.")

    async def _new(self, title: str) -> None:
        request = agent_pb.CreateConversationRequest(
            request_id=new_request_id(), agent_id=self.agent_id, title=title
        )
        conversation = (await self.client.agents.CreateConversation(request)).conversation
        self.session.conversation_id = conversation.id
        self._notify(f"A new conversation; to come back to it: --conversation {conversation.id}")

    def _help(self) -> None:
        width = max(len(command) for command, _ in _HELP)
        for command, what in _HELP:
            line = Text(f"  {command.ljust(width)}  {what}", style="dim")
            console().print(line, soft_wrap=True)

    def _notify(self, text: str) -> None:
        screen = console()
        if not screen.is_terminal:
            screen = error_console()
        screen.print(Text(safe(text), style="yellow"), soft_wrap=True)
