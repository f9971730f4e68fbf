"""One call: its request sent, answer and output read with a bound on every byte, its end seen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable
from dataclasses import asdict

from strata.shared.json_text import PACKED_JSON_DEPTH, JsonTextError, parse_json
from strata.tool_execution.domain.sandbox import ASK, Limits, Proxy, Run, RunResult, RunStatus
from strata.tool_execution.sandbox import frames, outcome
from strata.tool_execution.sandbox.forkserver import Child, Exit
from strata.tool_execution.sandbox.outcome import Verdict

# How a message begins that asks something and is not the answer to the call.
_ASKS = b'{"ask":'
# Around the value of an answer.
_ENVELOPE = 16_384
_CHUNK = 1 << 16
# A message begins with its length.
_HEAD = 4
# Parsing more than this is done beside the loop.
_LARGE = 1 << 18
# Output is read and thrown away up to so many times its limit: who prints too much is cut, who
# prints for ever is ended.
_FLOOD = 8
_EXIT_S = 5.0
# Time that a process has to leave after its answer, before it is ended.
_LEAVE_S = 0.02
# Time that a process has, once it is gone, to have its answer read: it is in the socket already.
_LAST_WORDS_S = 1.0


class _Output:
    """One of the two outputs."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.kept = bytearray()
        self.total = 0
        self._limit = limit

    @property
    def cut(self) -> bool:
        return self.total > self._limit

    @property
    def flooding(self) -> bool:
        return self.total > self._limit * _FLOOD + _CHUNK

    def read(self) -> bool:
        """Reads what is there, once; False at its end."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.total += len(data)
        self.kept += data[: max(self._limit - len(self.kept), 0)]
        return bool(data)

    def drain(self) -> None:
        """Reads what an ended process left in the pipe."""
        while not self.flooding:
            before = self.total
            if not self.read() or self.total == before:
                return


class Call:
    """A run in a jailed process.

    Args:
        child: The process.
        run: What it is to do.
        proxy: Through which it reaches its hosts; None for a call without.
    """

    def __init__(self, child: Child, run: Run, proxy: Proxy | None = None) -> None:
        self._child = child
        self._proxy = proxy
        self._run = run
        self._loop = asyncio.get_running_loop()
        limits = run.limits
        self._outputs = [
            _Output(child.output, limits.output_bytes),
            _Output(child.errors, limits.output_bytes),
        ]
        self._flood: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> RunResult:
        """Runs it to its end; when cancelled, returns after the process has ended.

        When it returns or raises, no process of the call is left.
        """
        began = time.monotonic()
        child = self._child
        for output in self._outputs:
            self._loop.add_reader(output.descriptor, self._read, output)
        talk = asyncio.ensure_future(self._talk())
        verdict = None
        try:
            verdict = await self._wait(talk)
        finally:
            talk.cancel()
            try:
                end = await self._end(answered=verdict is not None and talk.done())
            finally:
                if self._proxy is not None:
                    await self._proxy.close()
        if verdict is None:
            verdict = outcome.ended(end, self._run.limits)
        for output in self._outputs:
            output.drain()
        return RunResult(
            verdict.status,
            value_json=verdict.value_json,
            failure=verdict.failure,
            detail=verdict.detail or self._cut_words(),
            stdout=outcome.decode(bytes(self._outputs[0].kept)),
            stderr=outcome.decode(bytes(self._outputs[1].kept)),
            isolation=child.server.isolation,
            wall_seconds=time.monotonic() - began,
            cpu_seconds=end.cpu_seconds,
            peak_bytes=end.peak_bytes,
        )

    def _cut_words(self) -> str:
        cut = [
            name
            for name, output in zip(
                ("Standard output", "Standard error"), self._outputs, strict=True
            )
            if output.cut
        ]
        limit = outcome.size(self._run.limits.output_bytes)
        return " ".join(f"{name} was cut at {limit}." for name in cut)

    def _read(self, output: _Output) -> None:
        if not output.read():
            self._loop.remove_reader(output.descriptor)
        elif output.flooding:
            self._loop.remove_reader(output.descriptor)
            if not self._flood.done():
                self._flood.set_result(None)

    async def _wait(self, talk: asyncio.Future[Verdict | None]) -> Verdict | None:
        """Returns what came of it, or None if the process ended without a word."""
        limits = self._run.limits
        exited = self._child.exited
        waiting: set[asyncio.Future[object]] = {talk, exited, self._flood}  # type: ignore[arg-type]
        await asyncio.wait(
            waiting, timeout=limits.wall_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if exited.done() and not talk.done():
            # Its answer may still be in the socket.
            await asyncio.wait({talk}, timeout=_LAST_WORDS_S)
        if talk.done():
            return talk.result() or await self._silent()
        if self._flood.done():
            words = f"It printed more than {_FLOOD} times {outcome.size(limits.output_bytes)}."
            return Verdict(RunStatus.OUTPUT, detail=words)
        if exited.done():
            return None
        words = f"It did not end within {limits.wall_seconds:.3g} seconds."
        return Verdict(RunStatus.TIMEOUT, detail=words)

    async def _silent(self) -> Verdict | None:
        """Returns what to say of a process that hung up: None if it has ended, as most do."""
        await asyncio.wait({self._child.exited}, timeout=_LAST_WORDS_S)
        if self._child.exited.done():
            return None
        return Verdict(RunStatus.KILLED, detail="It closed its connection without an answer.")

    async def _end(self, *, answered: bool) -> Exit:
        """Ends the process whatever it does, and waits until it has."""
        child = self._child
        for output in self._outputs:
            self._loop.remove_reader(output.descriptor)
        try:
            if answered:
                # It is about to end by itself; a kill would only be one more to wait for.
                await asyncio.wait({child.exited}, timeout=_LEAVE_S)
        finally:
            child.server.kill(child)
        if child.exited.done():
            return child.exited.result()
        waiting = asyncio.ensure_future(asyncio.wait({child.exited}, timeout=_EXIT_S))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise
        if child.exited.done():
            return child.exited.result()
        return Exit(-9, reason="its end was not heard of")

    async def _talk(self) -> Verdict | None:
        """Sends the request and reads the answer; None if the process ends before."""
        try:
            return await self._converse()
        except OSError:
            return None

    async def _converse(self) -> Verdict | None:
        body = self._request()
        connection = self._child.connection
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A process that could not be locked in may have ended by now: it has said why before.
            await self._loop.sock_sendall(connection, body)
        first = await (self._connected(self._proxy) if self._proxy else self._frame(_ENVELOPE))
        if first is None:
            return None
        if first != b'{"locked":true}':
            words = first.decode("utf-8", "replace")[:500]
            return Verdict(RunStatus.REFUSED, detail=f"The call could not be locked in: {words}")
        limits = self._run.limits
        # A character of the value takes up to six bytes when it is escaped; ours are not.
        most = limits.result_bytes + _ENVELOPE
        answer = await self._frame(most)
        while answer and self._run.answerer is not None and answer.startswith(_ASKS):
            try:
                asked = json.dumps(parse_json(answer)["ask"])
            except JsonTextError:
                # The process sends what it likes; this is judged as the answer that it is not.
                break
            told, answer = await self._answered(self._run.answerer(asked), most)
            if not told:
                break
        if answer is None:
            return None
        if not answer:
            return outcome.too_large(limits)
        if len(answer) > _LARGE:
            return await asyncio.to_thread(outcome.judge, answer, limits)
        return outcome.judge(answer, limits)

    async def _answered(self, answering: Awaitable[str], most: int) -> tuple[bool, bytes | None]:
        """Answers a question; returns whether somebody waited for that, and what came next.

        Code that was interrupted while it waited goes on: what it says then is its last word.
        """
        answer = asyncio.ensure_future(answering)
        following = asyncio.ensure_future(self._frame(most))
        try:
            await asyncio.wait({answer, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return False, following.result()
            told = frames.packed(answer.result())
            await self._loop.sock_sendall(self._child.connection, told)
            return True, await following
        finally:
            answer.cancel()
            following.cancel()
            await asyncio.gather(answer, following, return_exceptions=True)

    async def _connected(self, proxy: Proxy) -> bytes | None:
        """Has the proxy serve on the socket that the call passes out; returns what comes next."""
        head, listener = await self._listener()
        if listener is None:
            # Why there is none.
            length = struct.unpack(">I", head)[0] if len(head) == _HEAD else _ENVELOPE + 1
            return None if length > _ENVELOPE else await self._exactly(length)
        try:
            await self._exactly(struct.unpack(">I", head)[0])
        except BaseException:
            listener.close()
            raise
        await proxy.serve(listener)
        return await self._frame(_ENVELOPE)

    async def _listener(self) -> tuple[bytes, socket.socket | None]:
        """Returns the length of the first message, and the socket that came with it."""
        connection = self._child.connection
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        # Nothing of the tool has run yet: what comes was sent by the jail.
        head, passed, _, _ = socket.recv_fds(connection, _HEAD, 1, socket.MSG_CMSG_CLOEXEC)
        return head, socket.socket(fileno=passed[0]) if passed else None

    def _request(self) -> bytes:
        run = self._run
        request = {
            "source": run.source,
            "function": run.function,
            "arguments": json.loads(run.arguments_json or "{}"),
            "environment": dict(run.environment),
            "result_bytes": run.limits.result_bytes,
            "asks": ASK if run.answerer is not None else "",
        }
        return frames.framed(request)

    async def _frame(self, most: int) -> bytes | None:
        """Returns a message: None at the end of the stream, empty if it is longer than `most`."""
        head = await self._exactly(4)
        if head is None:
            return None
        (length,) = struct.unpack(">I", head)
        return b"" if length > most else await self._exactly(length)

    async def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = await self._loop.sock_recv(
                self._child.connection, min(_CHUNK, count - len(parts))
            )
            if not part:
                return None
            parts += part
        return bytes(parts)


def check(run: Run) -> str:
    """Returns why a request cannot be made, in words; empty if it can.

    Only what the jail itself cannot take: the rest of it is the tool's to fail with.
    """
    for name, value in run.environment.items():
        if not name or "=" in name or "\0" in name + value or not _is_text(name + value):
            return f"{name!r} cannot be an environment variable."
    try:
        arguments = parse_json(run.arguments_json or "{}", max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return "The arguments are no JSON."
    if not isinstance(arguments, dict):
        return "The arguments are no JSON object."
    return _check_limits(run.limits)


def _is_text(text: str) -> bool:
    """Whether it is free of halves of surrogate pairs, which no environment can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_limits(limits: Limits) -> str:
    for name, value in asdict(limits).items():
        if value <= 0:
            return f"The limit {name} must be more than nothing."
    return ""
