"""Services in separate processes: when they count as ready."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strata.protocol.errors import UnavailableError
from strata.standalone.compose.services import INNER_SERVICES
from strata.standalone.compose.split import ServiceProcess


async def test_a_service_whose_port_another_process_uses_is_not_ready(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = ServiceProcess(INNER_SERVICES[0], {"port": other.getsockname()[1]}, tmp_path)
        with pytest.raises(UnavailableError, match="did not start"):
            await service.supervisor.start()


async def test_the_ready_line_of_a_former_process_is_ignored(tmp_path: Path) -> None:
    spec = INNER_SERVICES[0]
    (tmp_path / f"{spec.name}.log").write_text(f"READY {spec.name} 127.0.0.1:1\n")
    service = ServiceProcess(spec, {"port": 0}, tmp_path)
    with pytest.raises(UnavailableError, match="did not start"):
        await service.supervisor.start()
