"""Processes are killed, stopped and suspended at random moments of every kind of turn.

`faults.turns` defines the kinds of turns and the operations during which processes die.
`faults.inflicting` defines the faults: services and the vector engine are killed, stopped and
suspended (SIGSTOP); PostgreSQL also refuses writes, as read-only or with a full disk. With two
replicas of every service, the clocks of the second replicas are wrong. When all turns have ended,
`faults.comparison` asserts for each agent:

- Streams: the numbered events that a client received equal, byte for byte and in order, those that
  `StreamRun` returns afterwards, without gaps and with one terminal event. The same holds for a
  second client that joined during the run (with two replicas, often at the other gateway). Both
  clients end with the stored text; text that was withdrawn is removed.
- Rows: `GetRun` returns the state, stop reason, usage and last sequence of the terminal event. A
  message that was sent again with its request id started no second run.
- Purchases (requests to the model): the model got one request for each stored reply and one for
  each compaction, unless the agent loop had a fault during the run.
- Usage: it is the sum over the stored replies if nothing else was requested. Otherwise it is
  greater, at least by the withdrawn text that the client received, unless the gateway or PostgreSQL
  had a fault during the run.
- Effects: a call whose return is OK had one effect, FAILED none, UNKNOWN at most one. This covers a
  tool with effects outside Strata, edits of a block and inserts of passages. A denied call had no
  effect. The return of a client's tool is the one that the client sent.
- Log: the conversation holds the messages of the runs, equal to those in their events, once, in
  order, each call with its return.
- Files: each acknowledged upload is listed once, with the hash of its bytes, and was prepared.
- Approvals: none is left open.

Deltas of reasoning and of tool calls are not compared, nor are durations.
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
    """A model for one test, so that its requests can be counted."""
    return Persona()


@pytest.fixture
def model_url(persona: Persona) -> Iterator[str]:
    """The base URL of the model."""
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
    """Two replicas of every service; the parameter is the clock error of the second ones, in s."""
    copy_prepared_folder(prepared_folder, open_folder / "data")
    live = Cluster(open_folder / "data", model_url, skew_s=request.param)
    await live.start()
    yield live
    await live.stop_whole(patience=60)


async def through(
    faults: int, live: Live, addresses: Sequence[str], persona: Persona, marks: Path
) -> None:
    """Causes `faults` faults during turns, and compares the results at the end."""
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
