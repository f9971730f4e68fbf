"""Relays nested calls of code to the client of a stream, and the answers back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.protocol.errors import (
    UnavailableError,
    invalid_field,
)
from strata.tool_execution.builtin.code_with_tools import NestedReturn


class Relay:
    """Sends nested calls to the stream and waits for the answers.

    Args:
        send: Sends a nested call.
    """

    def __init__(self, send: Callable[[pb.NestedCall], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[NestedReturn]] = {}
        self._ended = False

    async def ask(self, parent_id: str, name: str, arguments: str) -> NestedReturn:
        """See `NestedCaller.ask`."""
        if self._ended:
            raise _stream_ended()
        number = next(self._numbers)
        waiting: asyncio.Future[NestedReturn] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._send(
                pb.NestedCall(
                    number=number, parent_call_id=parent_id, name=name, arguments=arguments
                )
            )
            return await waiting
        finally:
            del self._waiting[number]

    async def read(self, messages: AsyncIterator[pb.ExecuteToolsWithCallsRequest]) -> None:
        """Reads answers until the stream ends.

        Raises:
            InvalidArgumentError: A message is not an answer.
        """
        try:
            async for message in messages:
                self._take(message)
        finally:
            self._ended = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(_stream_ended())

    def _take(self, message: pb.ExecuteToolsWithCallsRequest) -> None:
        answer = message.answer
        if answer.WhichOneof("outcome") is None:
            raise invalid_field("answer", "must be set in every message after the first")
        waiting = self._waiting.get(answer.number)
        if waiting is None or waiting.done():
            return
        failed = answer.WhichOneof("outcome") == "error"
        waiting.set_result(
            NestedReturn(error=answer.error)
            if failed
            else NestedReturn(value_json=answer.value_json)
        )


def _stream_ended() -> UnavailableError:
    return UnavailableError("The client no longer answers nested calls.")
