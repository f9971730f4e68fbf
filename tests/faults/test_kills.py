"""Processes are killed, stopped and suspended at random moments of every kind of turn.

Which turns there are, and what is under way when a process dies, says `faults.turns`; how it dies
says `faults.inflicting`: services and the vector engine are killed, stopped and hung (SIGSTOP),
PostgreSQL also refuses writes as read-only and as full. With two replicas of every service the
clocks of the second ones are wrong. When all turns have ended, `faults.comparison` asserts for
each agent:

- Streams: every numbered event that a client saw is, byte for byte and in order, what `StreamRun`
  returns afterwards, without gaps, with one end; so it is for a second client that joined in the
  middle, with two replicas often at the other gateway. The text that both end with is the stored
  text; text that was withdrawn is gone.
- Rows: `GetRun` has the state, the stop reason, the usage and the last sequence of the last event;
  a message that was sent again under its request id started no second run.
- Purchases: the model was asked exactly once for each stored reply, and once for each compaction,
  unless a fault of the agent loop came during the run.
- Usage: it is the sum of the stored replies if nothing else was bought; else it is more by at
  least what the client saw of replies that were withdrawn, unless the gateway or PostgreSQL had a
  fault, too.
- Effects: a call whose return is OK had its effect once, FAILED not at all, UNKNOWN at most once:
  of a tool outside, of edits of a block, of inserts of passages. A call that was denied had none.
  The return of a client's tool is the one that the client sent.
- Log: the conversation holds the messages of the runs, as their events had them, once, in order,
  each call with its return.
- Files: each upload that was acknowledged is listed once with its bytes' hash, and was prepared.
- Approvals: none is left open.

Not compared: deltas of reasoning and of tool calls, and how long anything took.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from faults.cluster import Cluster
from faults.inflicting import inflict, prepare_full_disk
from faults.live import Live, ModelThread
from faults.turns import Persona, working
from faults.victims import PROCESSES
from prepared_folder import copy_prepared_folder


@pytest.fixture
def persona() -> Persona:
    """A model for this test only, whose requests can be counted."""
    return Persona()


@pytest.fixture
def model_url(persona: Persona) -> Iterator[str]:
    """Where it answers."""
    with ModelThread(persona.answer) as thread:
        yield thread.url


@pytest_asyncio.fixture
async def split(open_folder: Path, prepared_folder: Path, model_url: str) -> AsyncIterator[Live]:
    """A running Strata with one process for each service."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    live = Live(open_folder / "data", model_url, split=True)
    await live.start()
    yield live
    await live.stop_whole()


@pytest.fixture
def marks(open_folder: Path) -> Path:
    """A folder that programs of any user may write to."""
    folder = open_folder / "marks"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest_asyncio.fixture
async def cluster(
    request: pytest.FixtureRequest, open_folder: Path, prepared_folder: Path, model_url: str
) -> AsyncIterator[Cluster]:
    """Two replicas of every service; the parameter is the error of the clock of the second ones."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    live = Cluster(open_folder / "data", model_url, skew_s=request.param)
    await live.start()
    yield live
    await live.stop_whole(patience=60)


async def through(
    faults: int, live: Live, addresses: Sequence[str], persona: Persona, marks: Path
) -> None:
    """Makes turns during faults, and compares the results at the end."""
    try:
        await prepare_full_disk(live)
        async with working(addresses, live.key, persona, marks) as load:
            try:
                await load.further()
                await inflict(load, live, faults, replicas=len(addresses))
                await load.further()
            finally:
                sys.stdout.write(load.latest())
    except BaseException:
        sys.stdout.write(live.incidents())
        raise


@pytest.mark.timeout(900)
async def test_a_fault_of_every_process_leaves_no_deviation(
    split: Live, persona: Persona, marks: Path
) -> None:
    await through(len(PROCESSES), split, [split.runtime.address], persona, marks)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [30.0], indirect=True, ids=["clock 30 s ahead"])
async def test_three_faults_of_two_replicas_leave_no_deviation(
    cluster: Cluster, persona: Persona, marks: Path
) -> None:
    await through(3, cluster, cluster.addresses, persona, marks)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
async def test_hundred_and_fifty_faults_leave_no_deviation(
    split: Live, persona: Persona, marks: Path
) -> None:
    await through(150, split, [split.runtime.address], persona, marks)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "cluster", [45.0, -45.0], indirect=True, ids=["clock 45 s ahead", "clock 45 s behind"]
)
async def test_seventy_five_faults_of_two_replicas_leave_no_deviation(
    cluster: Cluster, persona: Persona, marks: Path
) -> None:
    await through(75, cluster, cluster.addresses, persona, marks)
