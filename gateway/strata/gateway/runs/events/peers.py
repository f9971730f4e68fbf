"""Clients of other gateways, for following the runs that they hold."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_follow_service_pb2 as pb
from strata.api.gateway.v1 import run_follow_service_pb2_grpc as pb_grpc
from strata.protocol.errors import UnavailableError
from strata.shared.channels import ChannelFactory

_MAX_PEERS = 64
# Maximum seconds until a peer accepts a stream.
_ACCEPT_S = 1.0


class Peers:
    """Streams runs from other gateways, with a cached channel to each.

    Args:
        own_address: Address of this gateway, which is not a peer.
    """

    def __init__(self, own_address: str) -> None:
        self._own_address = own_address
        self._channels: OrderedDict[str, tuple[ChannelFactory, grpc.aio.Channel]] = OrderedDict()

    def knows(self, address: str) -> bool:
        """Whether an address belongs to another gateway."""
        return bool(address) and address != self._own_address

    async def follow(
        self, address: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Yields the events of a run from the gateway at an address.

        Raises:
            StrataError: It cannot be reached, or does not hold the run.
        """
        stub = pb_grpc.RunFollowServiceStub(await self._channel(address))
        request = pb.FollowRunRequest(run_id=run_id, after_sequence=after, stream_tokens=tokens)
        call: Any = stub.FollowRun(request)
        try:
            try:
                async with asyncio.timeout(_ACCEPT_S):
                    await call.initial_metadata()
            except TimeoutError:
                raise UnavailableError("The gateway of the run does not answer.") from None
            async for response in call:
                yield response.event
        finally:
            call.cancel()

    async def close(self) -> None:
        """Closes all channels."""
        for factory, _ in self._channels.values():
            await factory.close()
        self._channels.clear()

    async def _channel(self, address: str) -> grpc.aio.Channel:
        cached = self._channels.get(address)
        if cached is None:
            factory = ChannelFactory()
            cached = self._channels[address] = (factory, factory.channel(address))
        self._channels.move_to_end(address)
        if len(self._channels) > _MAX_PEERS:
            _, (factory, _) = self._channels.popitem(last=False)
            await factory.close()
        return cached[1]
