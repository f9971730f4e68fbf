"""Notifications that wake a follower of a run that another gateway holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.gateway.runs.domain.runs import RunMark
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.events.run_watch import Watcher

MARK = RunMark("run-1", RunState.RUNNING, 3, "host-1:7600")


@pytest.mark.parametrize("holder_only", [False, True])
def test_a_follower_of_a_peer_is_woken_only_when_the_holder_changes(holder_only: bool) -> None:
    watcher = Watcher("project-1", "run-1", holder_only=holder_only)
    watcher.mark = MARK
    watcher.note(MARK)
    assert not watcher.changed.is_set()
    watcher.note(replace(MARK, last_sequence=4))
    assert watcher.changed.is_set() is not holder_only
    watcher.note(replace(MARK, last_sequence=4, address="host-2:7600"))
    assert watcher.changed.is_set()
