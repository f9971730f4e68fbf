"""The preferred port of the gateway is taken by another process while Strata starts."""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import MagicMock

import pytest

from strata.cli.commands import up
from strata.shared.service import ListenError


@pytest.mark.parametrize(("is_taken", "starts"), [(True, 2), (False, 1)])
def test_strata_starts_again_if_its_port_was_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch, is_taken: bool, starts: int
) -> None:
    started = []

    async def serve(_folder: Any, options: Any, _announce: Any) -> None:
        started.append(options.port)
        if len(started) == 1:
            raise ListenError("cannot listen on it")

    monkeypatch.setattr(up, "_serve", serve)
    monkeypatch.setattr(up, "DataFolder", MagicMock())
    for name in ("configure_logging", "use_one_arena"):
        monkeypatch.setattr(up, name, MagicMock())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if not is_taken:
            other.close()
        exit_code = up.run_up(None, port=port, split=False)
    assert (exit_code, len(started)) == (0 if is_taken else 2, starts)
