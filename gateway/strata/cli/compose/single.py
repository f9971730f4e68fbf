"""All rooms in one process: in-process channels between them, one socket outside."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.cli.compose.local import Local
from strata.cli.compose.rooms import GATEWAY, INNER_ROOMS, RoomSpec
from strata.shared.auth import TokenVerifier
from strata.shared.inprocess import InProcessNetwork
from strata.shared.room import BackgroundTasks, Room
from strata.shared.settings import RoomSettings


async def build_rooms(local: Local, stack: AsyncExitStack) -> Room:
    """Builds every room, serves the inner ones to each other, and returns the gateway.

    Args:
        local: What the rooms stand on.
        stack: Closes the rooms, the gateway's parts first.
    """
    network = await stack.enter_async_context(InProcessNetwork(TokenVerifier(local.public_key)))
    for spec in INNER_ROOMS:
        await _open_room(spec, local, network, stack)
    gateway = await GATEWAY.build(local.gateway, network, stack)
    # Rooms call it too: an agent's tool sends messages to other agents.
    network.register(gateway, local.gateway)
    return gateway


async def _open_room(
    spec: RoomSpec, local: Local, network: InProcessNetwork, stack: AsyncExitStack
) -> None:
    settings: RoomSettings = spec.settings(**local.room_values(spec.name))
    room = await spec.build(settings, network, stack)
    network.register(room, settings)
    await stack.enter_async_context(BackgroundTasks(room))
