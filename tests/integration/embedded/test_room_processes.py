from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strata.cli.compose.rooms import INNER_ROOMS
from strata.cli.compose.split import RoomProcess
from strata.shared.errors import UnavailableError


async def test_a_room_whose_port_somebody_else_serves_is_not_called_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        room = RoomProcess(INNER_ROOMS[0], {"port": other.getsockname()[1]}, tmp_path)
        with pytest.raises(UnavailableError, match="did not start"):
            await room.supervisor.start()


async def test_what_a_room_said_in_an_earlier_life_does_not_count(tmp_path: Path) -> None:
    spec = INNER_ROOMS[0]
    (tmp_path / f"{spec.name}.log").write_text(f"READY {spec.name} 127.0.0.1:1\n")
    room = RoomProcess(spec, {"port": 0}, tmp_path)
    with pytest.raises(UnavailableError, match="did not start"):
        await room.supervisor.start()
