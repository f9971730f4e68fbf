"""A channel that picks up new replicas by resolving its host name again.

gRPC resolves a name only when a channel is created or one of its connections breaks. A new replica
behind a headless service would get its first call only after some server closed an aged
connection. This channel is therefore replaced every few seconds by a new one to the same name.
Channels with the same target and arguments share their connections: existing connections stay in
use, and new ones are opened only to new addresses.
"""

from __future__ import annotations

import asyncio
import contextvars
import ipaddress
import random
import re
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from strata.protocol.shapes import ClientMethod, UniformChannel
from strata.shared.logs import get_logger

_NAMED = re.compile(r"(?:dns:(?://[^/]*/)?)?(?P<host>[A-Za-z0-9_.-]+):\d{1,5}")
# As long as the longest stream may last.
_DRAIN_S = 960.0
_CONNECT_S = 5.0

_log = get_logger(__name__)


def names_a_host(target: str) -> bool:
    """Returns whether a gRPC target has a host name, whose addresses can change."""
    match = _NAMED.fullmatch(target)
    if match is None:
        return False
    try:
        ipaddress.ip_address(match["host"])
    except ValueError:
        return True
    return False


class RenewingChannel(UniformChannel):
    """A channel to the current addresses of a host name.

    The inner channel is replaced only while it is in use, and only by a channel that is connected:
    if the name server does not answer, the old one stays.

    Args:
        make: Makes a channel; always to the same target, with the same arguments, and with
            shared connections (``grpc.use_local_subchannel_pool`` is 0).
        every_s: Mean pause between two replacements, seconds.
    """

    def __init__(self, make: Callable[[], grpc.aio.Channel], *, every_s: float) -> None:
        self._make = make
        self._every_s = every_s
        self._current = make()
        self._used = False
        self._renewing: asyncio.Task[None] | None = None
        self._draining: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        self._closed = False

    @property
    def current(self) -> grpc.aio.Channel:
        """The channel that new calls go through."""
        self._used = True
        if self._renewing is None and not self._closed:
            # In an empty context, not in the context of the first call.
            self._renewing = asyncio.get_running_loop().create_task(
                self._keep_renewing(), context=contextvars.Context()
            )
        return self._current

    def open_method(self, method: ClientMethod) -> Any:
        """Returns a callable that makes its calls through the current channel."""
        return _Callable(self, method)

    async def close(self, grace: float | None = None) -> None:
        """Stops the replacement; closes the channel and former channels that still have calls."""
        self._closed = True
        channels = [*self._draining.values(), self._current]
        tasks = [*self._draining, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close(grace) for channel in channels))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the channel that new calls go through."""
        state: grpc.ChannelConnectivity = self._current.get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the channel that new calls go through leaves the state."""
        await self.current.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the channel that new calls go through is connected."""
        await self.current.channel_ready()

    async def _keep_renewing(self) -> None:
        while True:
            # Jitter, so that the processes of a cluster do not resolve at the same time.
            await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))  # noqa: S311
            if not self._used:
                continue
            self._used = False
            try:
                await self._renew()
            except Exception:  # noqa: BLE001 - the current channel stays until the next attempt
                _log.exception("channel not renewed")

    async def _renew(self) -> None:
        after = self._make()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await after.channel_ready()
        except BaseException as error:
            await after.close()
            if isinstance(error, TimeoutError):
                return
            raise
        before, self._current = self._current, after
        # Running calls continue; the new channel now holds the shared connections.
        draining = asyncio.get_running_loop().create_task(before.close(_DRAIN_S))
        self._draining[draining] = before
        draining.add_done_callback(self._draining.pop)


class _Callable:
    """Starts calls of one method through the current channel."""

    def __init__(self, renewing: RenewingChannel, method: ClientMethod) -> None:
        self._renewing = renewing
        self._method = method
        self._channel: grpc.aio.Channel | None = None
        self._inner: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        channel = self._renewing.current
        if channel is not self._channel:
            self._inner = self._method.open_on(channel)
            self._channel = channel
        return self._inner(*args, **kwargs)
