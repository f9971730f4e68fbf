"""Sandboxes of each user and isolation level that the machine supports."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from integration.sandbox.jails import ROOT, SETUPS, Worker, readable
from strata.shared.sandbox import Isolation
from strata.tool_runner.sandbox.program import landlock


@pytest.fixture(scope="module", params=list(SETUPS))
def jail(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A sandbox of each user and level; a level that the machine lacks is skipped."""
    other_user, restricted = SETUPS[request.param]
    if other_user and os.geteuid() != 0:
        pytest.skip("only root can start the service as another user; this one is unprivileged")
    if other_user and not readable(ROOT):
        pytest.skip("the repository cannot be read by another user")
    if restricted and not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    worker = Worker(other_user=other_user, restricted=restricted)
    try:
        wanted = Isolation.LANDLOCK if restricted else Isolation.NAMESPACES
        if worker.level is not wanted and not restricted:
            pytest.skip(f"this machine gives no namespaces: {worker.words}")
        assert worker.level is wanted, worker.words
        yield worker
    finally:
        worker.close()
