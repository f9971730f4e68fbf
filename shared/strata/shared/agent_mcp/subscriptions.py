"""Subscriptions to the blocks of an agent.

Core memory sends no events, so the server polls for changes while there are listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError

from strata.protocol.errors import (
    NotFoundError,
    PermissionDeniedError,
    StrataError,
    UnauthenticatedError,
)
from strata.shared.agent_mcp.blocks import blocks_of
from strata.shared.agent_mcp.memory import ConnectedAgent
from strata.shared.agent_mcp.resources import uri_of
from strata.shared.agent_mcp.results import protocol_error

FIRST_PAUSE_S = 1.0
"""Pause between two polls while blocks change; it doubles while they do not."""
LONGEST_PAUSE_S = 8.0

_MAX_STREAMS = 64
# After these errors the next poll would fail, too.
_LASTING = (NotFoundError, PermissionDeniedError, UnauthenticatedError)

Revisions = Mapping[str, tuple[str, int]]
"""Id and revision of the blocks of an agent, by URI."""


class BlockChanges:
    """Polls for changes of an agent's blocks while there are listeners (a `SubscriptionBus`).

    Args:
        memory: The agent.
        first_pause_s: See `FIRST_PAUSE_S`.
    """

    def __init__(self, memory: ConnectedAgent, *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._memory = memory
        self._first_pause_s = first_pause_s
        self._bus = InMemorySubscriptionBus()
        self._listeners = 0
        self._revisions: Revisions = {}
        self._looking: asyncio.Task[None] | None = None
        self.on_refusal: Callable[[], None] = lambda: None
        """Called when the gateway refuses permanently, such as after the key was revoked."""

    async def begin(self) -> None:
        """Records the present blocks; later changes are reported to later subscribers.

        Raises:
            MCPError: Strata refuses the call or cannot be reached.
        """
        if self._looking is None:
            try:
                self._revisions = await self._read()
            except StrataError as error:
                raise protocol_error(self._memory, error) from error

    async def publish(self, event: ServerEvent) -> None:
        """Delivers an event to the listeners."""
        await self._bus.publish(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Adds a listener and returns the function that removes it."""
        unsubscribe = self._bus.subscribe(listener)
        subscribed = True
        self._listeners += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

        def leave() -> None:
            nonlocal subscribed
            if not subscribed:
                return
            subscribed = False
            unsubscribe()
            self._listeners -= 1
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

        return leave

    async def _look(self) -> None:
        pause = self._first_pause_s
        while True:
            await asyncio.sleep(pause)
            try:
                revisions = await self._read()
            except _LASTING:
                self.on_refusal()
                return
            except StrataError:
                # Strata cannot be reached; a later poll finds the changes.
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            events = _events(self._revisions, revisions)
            self._revisions = revisions
            pause = self._first_pause_s if events else min(2 * pause, LONGEST_PAUSE_S)
            for event in events:
                await self.publish(event)

    async def _read(self) -> Revisions:
        async with self._memory.connected() as client:
            blocks = await blocks_of(client, self._memory.agent_id)
        return {
            uri_of(self._memory.agent_id, block.label): (block.id, block.revision)
            for block in blocks
        }


def _events(before: Revisions, after: Revisions) -> list[ServerEvent]:
    changed = [uri for uri in {**before, **after} if before.get(uri) != after.get(uri)]
    events: list[ServerEvent] = [ResourceUpdated(uri) for uri in changed]
    if before.keys() != after.keys():
        events.append(ResourcesListChanged())
    return events


class ListenStreams:
    """Serves ``subscriptions/listen`` of the protocol from 2026-07-28 on: one request, one stream.

    Args:
        changes: The changes.
    """

    def __init__(self, changes: BlockChanges) -> None:
        self._changes = changes
        self._streams = ListenHandler(changes, max_subscriptions=_MAX_STREAMS)
        changes.on_refusal = self._streams.close

    async def listen(
        self, context: ServerRequestContext, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Sends the events that the client has subscribed to until it disconnects.

        Raises:
            MCPError: Strata refuses the call or cannot be reached.
        """
        await self._changes.begin()
        return await self._streams(context, params)


class ConnectionSubscriptions:
    """Serves ``resources/subscribe`` of earlier protocol versions, for a single connection.

    Args:
        changes: The changes.
    """

    def __init__(self, changes: BlockChanges) -> None:
        self._changes = changes
        self._leave: dict[str, Callable[[], None]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def subscribe(
        self, context: ServerRequestContext, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Reports changes of a resource from now on.

        Raises:
            MCPError: There are too many subscriptions, or Strata refuses the call or cannot be
              reached.
        """
        if params.uri not in self._leave:
            if len(self._leave) >= _MAX_STREAMS:
                raise MCPError(types.INVALID_REQUEST, f"At most {_MAX_STREAMS} subscriptions.")
            await self._changes.begin()
            self._leave[params.uri] = self._changes.subscribe(
                lambda event: self._report(context.session, params.uri, event)
            )
        return types.EmptyResult()

    async def unsubscribe(
        self, _: ServerRequestContext, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Ends the reports."""
        leave = self._leave.pop(params.uri, None)
        if leave is not None:
            leave()
        return types.EmptyResult()

    def _report(self, session: ServerSession, uri: str, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri == uri:
            sending = asyncio.create_task(session.send_resource_updated(uri))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
