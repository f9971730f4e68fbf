"""What a person can ask for within a chat: lines that begin with a slash."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import Client, new_request_id
from strata.cli.memory.blocks import attached_block, blocks_of
from strata.cli.memory.history import Names, newest_steps
from strata.cli.memory.views import print_blocks, print_changes, print_steps
from strata.cli.output import console, safe

_LOG_VERSIONS = 5

_HELP = (
    ("/memory [LABEL]", "the memory blocks as they are now"),
    ("/log [LABEL]", "who changed them lately, and what"),
    ("/undo", "undo the edits of memory that the last run made"),
    ("/help", "this list; to send a message with a slash, put a blank before it"),
)


@dataclass(slots=True)
class SlashCommands:
    """Answers lines that begin with a slash.

    Attributes:
        client: The gateway.
        agent_id: With whom the person talks.
        last_run_id: The run that `/undo` takes back; empty if there is none.
    """

    client: Client
    agent_id: str
    last_run_id: str = ""

    async def run(self, line: str) -> None:
        """Does what a line asks for.

        Raises:
            StrataError: The gateway refused.
        """
        command, _, argument = line.strip().partition(" ")
        label = argument.strip()
        match command:
            case "/memory":
                await self._memory(label)
            case "/log":
                await self._log(label)
            case "/undo" if not label:
                await self._undo()
            case "/help":
                self._help()
            case _:
                self._tell(f"There is no command {command}.")
                self._help()

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

    async def _undo(self) -> None:
        if not self.last_run_id:
            self._tell("There is no run to undo. To go back further: strata memory revert")
            return
        request = pb.RevertBlockRequest(
            request_id=new_request_id(),
            run_id=self.last_run_id,
            agent_id=self.agent_id,
            reason="undone in the chat",
        )
        done = await self.client.blocks.RevertBlock(request)
        self.last_run_id = ""
        print_changes(done.changes, dry_run=False)

    def _help(self) -> None:
        width = max(len(command) for command, _ in _HELP)
        for command, what in _HELP:
            console().print(Text(f"  {command.ljust(width)}  {what}", style="dim"))

    def _tell(self, text: str) -> None:
        console().print(Text(safe(text), style="yellow"), soft_wrap=True)
