"""A chat session: sends messages, shows the runs, and handles Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from google.protobuf.json_format import MessageToDict
from rich.text import Text

from strata.api.common.v1 import message_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.chat.approval_prompt import AskPerson
from strata.cli.chat.screens import Screen
from strata.cli.chat.turn_view import TurnView
from strata.cli.client import GatewayClient, new_request_id
from strata.client.images import user_message
from strata.client.run_follower import BackOff, RunFollower, Update
from strata.protocol.errors import FailedPreconditionError, Reason, StrataError
from strata.shared.one_line import escaped

_CANCEL_S = 10.0


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of a chat session.

    Attributes:
        agent_id: The agent; empty for a group.
        conversation_id: The conversation; empty for the agent's default one.
        max_steps: Maximum number of model calls of a turn; 0 for the server's default.
        reasoning: Show the model's reasoning.
        usage: Show tokens and time.
        back_off: Waits between attempts to reconnect.
        ask: Asks the user about tool calls; returns None if they do not decide now; None
            if no person can be asked.
        group_id: The group that answers instead of an agent.
    """

    agent_id: str = ""
    conversation_id: str = ""
    max_steps: int = 0
    reasoning: bool = True
    usage: bool = True
    back_off: BackOff = field(default_factory=BackOff)
    ask: AskPerson | None = None
    group_id: str = ""


class ChatSession:
    """Sends messages to one agent or group, and shows the runs.

    Args:
        client: The gateway.
        screen: Output of the turns.
        options: Options of the session.

    Attributes:
        conversation_id: Conversation of the next message; empty for the agent's default one.
        last_run_id: The run of the last message; empty before the first.
    """

    def __init__(self, client: GatewayClient, screen: Screen, options: ChatOptions) -> None:
        self._client = client
        self._screen = screen
        self._options = options
        self.conversation_id = options.conversation_id
        self.last_run_id = ""

    async def turn(self, message: str | message_pb2.MessageInput) -> bool:
        """Sends a message, shows its run to the end, and returns whether the run succeeded.

        If the agent needs approvals, the person is asked, and the run that continues is shown, too.

        The first Ctrl-C cancels the run, the second stops following it.

        Raises:
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        try:
            view = await self._show_run(self._follower(message))
        except FailedPreconditionError as error:
            if error.reason is not Reason.APPROVAL_PENDING or self._options.ask is None:
                raise
            if not await self._answer_open(str(error.metadata.get("approval_id", ""))):
                raise
            view = await self._show_run(self._follower(message))
        return await self._answered(view)

    async def answer(
        self, approval_id: str, decisions: Sequence[message_pb2.ApprovalDecision]
    ) -> bool:
        """Answers a request for approval and shows the run; returns whether the run succeeded."""
        return await self._answered(await self._show_run(self._answer(approval_id, decisions)))

    async def answer_json(
        self, approval_id: str, decisions: Sequence[message_pb2.ApprovalDecision]
    ) -> bool:
        """As `answer`, but prints the events of the run as JSON, one per line."""
        return await self._print_run(self._answer(approval_id, decisions))

    async def _answered(self, view: TurnView) -> bool:
        """Asks the person until the agent needs no approval; returns whether the run succeeded."""
        while view.asked is not None and self._options.ask is not None:
            decisions = self._options.ask(view.asked)
            if decisions is None:
                self._notify(
                    "Not answered: the agent waits, and asks again with your next message."
                )
                break
            view = await self._show_run(self._answer(view.asked.approval_id, decisions))
        return view.ending is not None and view.ending.ok

    async def _answer_open(self, approval_id: str) -> bool:
        """Asks about the open request of an earlier run; returns whether the run succeeded."""
        request = pb.GetApprovalRequest(approval_id=approval_id)
        approval_request = (await self._client.runs.GetApproval(request)).approval.request
        ask = self._options.ask
        decisions = ask(approval_request) if ask is not None else None
        if decisions is None:
            return False
        return await self._answered(await self._show_run(self._answer(approval_id, decisions)))

    def _answer(
        self, approval_id: str, decisions: Sequence[message_pb2.ApprovalDecision]
    ) -> RunFollower:
        request = pb.RespondToApprovalRequest(
            request_id=new_request_id(),
            approval_id=approval_id,
            decisions=decisions,
            max_steps=self._options.max_steps,
        )
        return RunFollower(self._client.runs, request, self._options.back_off)

    async def _show_run(self, follower: RunFollower) -> TurnView:
        options = self._options
        view = TurnView(self._screen, reasoning=options.reasoning, usage=options.usage)
        clock = asyncio.get_running_loop().time
        began = clock()
        self._screen.waiting("sending")
        try:
            request_left = await self._follow(
                follower, lambda update: view.show(update, clock() - began), self._notify
            )
        finally:
            self._screen.settle()
            self.last_run_id = follower.run_id or self.last_run_id
        if request_left:
            self._notify(_left(follower.run_id))
        return view

    async def stream_json(self, message: str | message_pb2.MessageInput) -> bool:
        """Sends a message and prints the events of its run as JSON, one per line."""
        return await self._print_run(self._follower(message))

    async def _print_run(self, follower: RunFollower) -> bool:
        ok = False

        def show(update: Update) -> None:
            nonlocal ok
            if isinstance(update, RunEvent):
                line = json.dumps(MessageToDict(update), ensure_ascii=False)
                sys.stdout.write(escaped(line) + "\n")
                sys.stdout.flush()
                view.show(update)
                ok = view.ending is not None and view.ending.ok

        view = TurnView(_NoScreen())
        await self._follow(follower, show, lambda _: None)
        return ok

    def _follower(self, message: str | message_pb2.MessageInput) -> RunFollower:
        if isinstance(message, str):
            message = user_message(message)
        request = pb.SendMessageRequest(
            request_id=new_request_id(),
            agent_id=self._options.agent_id,
            group_id=self._options.group_id,
            conversation_id=self.conversation_id,
            messages=[message],
            max_steps=self._options.max_steps,
        )
        return RunFollower(self._client.runs, request, self._options.back_off)

    async def _follow(
        self,
        follower: RunFollower,
        show: Callable[[Update], None],
        notify: Callable[[str], None],
    ) -> bool:
        """Follows a run; returns True if the person left before its end."""

        async def read() -> None:
            async with aclosing(follower.updates()) as updates:
                async for update in updates:
                    show(update)

        with _Interrupts(
            asyncio.create_task(read()), self._cancel(follower, notify), notify
        ) as guard:
            return await guard.wait()

    async def _cancel(self, follower: RunFollower, notify: Callable[[str], None]) -> None:
        run_id = await follower.wait_for_run_id()
        try:
            await self._client.runs.CancelRun(pb.CancelRunRequest(run_id=run_id), timeout=_CANCEL_S)
        except StrataError as error:
            notify(f"The run could not be cancelled: {error.message}")

    def _notify(self, text: str) -> None:

        self._screen.line(Text(text, style="yellow"))


class _Interrupts:
    """Handler of Ctrl-C while a run is followed: the first cancels the run, the second leaves."""

    def __init__(
        self,
        reading: asyncio.Task[None],
        cancel: Coroutine[Any, Any, None],
        notify: Callable[[str], None],
    ) -> None:
        self._reading = reading
        self._cancel = cancel
        self._notify = notify
        self._cancelling: asyncio.Task[None] | None = None
        self._left = False
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            # Only the main thread can handle signals.
            self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            self._loop.remove_signal_handler(signal.SIGINT)

    async def wait(self) -> bool:
        """Waits for the end, and returns True if the person left before it."""
        try:
            await self._reading
        except asyncio.CancelledError:
            if not self._left:
                raise
        finally:
            await self._stop()
        return self._left

    async def _stop(self) -> None:
        self._reading.cancel()
        if self._cancelling is None:
            self._cancel.close()
        else:
            self._cancelling.cancel()
            await asyncio.gather(self._cancelling, return_exceptions=True)

    def _on_interrupt(self) -> None:
        if self._cancelling is None:
            self._notify("Cancelling; Ctrl-C again leaves at once.")
            self._cancelling = self._loop.create_task(self._cancel)
        else:
            self._left = True
            self._reading.cancel()


class _NoScreen:
    """Shows nothing."""

    def stream(self, piece: str, *, reasoning: bool = False) -> None:
        pass

    def settle(self) -> None:
        pass

    def line(self, text: object) -> None:
        pass

    def notice(self, text: object) -> None:
        pass

    def mark(self) -> None:
        pass

    def retract(self) -> bool:
        return True

    def waiting(self, label: str) -> None:
        pass


def _left(run_id: str) -> str:
    if not run_id:
        return "Left. It is not known whether the message was accepted."
    return f"Left. The run may continue; see: strata runs show {run_id}"
