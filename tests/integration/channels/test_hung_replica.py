"""A replica that hangs (SIGSTOP) keeps its connections and answers nothing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.channels.conftest import stub_to
from strata.protocol.errors import Reason, UnavailableError
from strata.shared.channels import ChannelFactory, ChannelOptions

SCRIPT = Path(__file__).with_name("echo_process.py")


class Replicas:
    """Two replicas of a service, behind one target."""

    def __init__(self, effects: Path) -> None:
        self.effects_file = effects
        self.processes: list[subprocess.Popen[str]] = []
        self.addresses: list[str] = []

    @property
    def target(self) -> str:
        return "ipv4:" + ",".join(self.addresses)

    def pids(self) -> set[int]:
        return {process.pid for process in self.processes}

    def effects(self) -> list[str]:
        return self.effects_file.read_text().splitlines() if self.effects_file.exists() else []

    @contextmanager
    def hung(self, index: int) -> Iterator[int]:
        """Suspends a replica for the block; yields the process id of the other."""
        process = self.processes[index]
        process.send_signal(signal.SIGSTOP)
        try:
            yield self.processes[1 - index].pid
        finally:
            process.send_signal(signal.SIGCONT)


@pytest.fixture
async def replicas(echo: Any, keys: Any, tmp_path: Path) -> AsyncIterator[Replicas]:
    key_file = tmp_path / "public.pem"
    key_file.write_text(keys.public)
    made = Replicas(tmp_path / "effects")
    generated = str(Path(echo.pb.__file__).parent)
    try:
        for _ in range(2):
            made.processes.append(
                subprocess.Popen(
                    [sys.executable, SCRIPT, generated, key_file, made.effects_file],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in made.processes:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            made.addresses.append(line.split()[2])
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.communicate()


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    # A second instead of five, to shorten the test; the services send the same pings.
    made = ChannelFactory(ChannelOptions(attempt_s=1.0, local_subchannels=True))
    yield made
    await made.close()


async def connected_stub(replicas: Replicas, factory: ChannelFactory, echo: Any) -> Any:
    """Returns a stub that is connected to both replicas."""
    stub = stub_to(replicas.target, factory, echo)
    answered: set[int] = set()
    while answered != replicas.pids():
        answered.add((await stub.Echo(echo.pb.Note())).number)
    return stub


async def test_repeatable_calls_are_sent_to_the_other_replica(
    replicas: Replicas, factory: ChannelFactory, echo: Any, keys: Any
) -> None:
    with keys.signed_in():
        stub = await connected_stub(replicas, factory, echo)
        with replicas.hung(0) as alive:
            # The replica hangs until these calls end, so each of them must have moved to another
            # replica.
            answers = await asyncio.gather(
                *(stub.Echo(echo.pb.Note(text=str(number))) for number in range(30))
            )
            assert [answer.text for answer in answers] == [str(number) for number in range(30)]
            assert {answer.number for answer in answers} == {alive}


async def test_an_edit_is_repeated_with_its_key_and_none_is_lost(
    replicas: Replicas, factory: ChannelFactory, echo: Any, keys: Any
) -> None:
    texts = [f"edit-{number}" for number in range(20)]
    with keys.signed_in():
        stub = await connected_stub(replicas, factory, echo)
        with replicas.hung(1) as alive:
            answers = await asyncio.gather(
                *(stub.Replace(echo.pb.Note(text=text)) for text in texts)
            )
            assert {answer.number for answer in answers} == {alive}
            assert sorted(replicas.effects()) == sorted(texts)


async def test_unrepeatable_calls_end_unavailable_and_run_at_most_once(
    replicas: Replicas, factory: ChannelFactory, echo: Any, keys: Any
) -> None:
    note = echo.pb.Note
    with keys.signed_in():
        stub = await connected_stub(replicas, factory, echo)
        with replicas.hung(0):
            calls = [stub.Change(note(text=str(number))) for number in range(10)]
            streams = [stub.Count(note(text=str(number))).read() for number in range(10)]
            ends = await asyncio.gather(*calls, *streams, return_exceptions=True)
            failed = [end for end in ends if isinstance(end, BaseException)]
            # The calls on the hung replica ended while it hung.
            assert failed
            for end in failed:
                assert isinstance(end, UnavailableError)
                assert end.reason is Reason.DEPENDENCY_UNAVAILABLE
            # From then on calls use the other replica. gRPC ends the calls of a connection a moment
            # before it closes the connection, so a call that begins in between is lost too.
            answered = number = 0
            while answered < 10:
                number += 1
                try:
                    await stub.Change(note(text=f"later-{number}"))
                except UnavailableError as error:
                    assert error.lost
                    answered = 0
                else:
                    answered += 1
        effects = replicas.effects()
        assert len(effects) == len(set(effects))


async def test_cancelling_a_call_that_is_repeated_ends_it(
    replicas: Replicas, factory: ChannelFactory, echo: Any, keys: Any
) -> None:
    with keys.signed_in():
        stub = await connected_stub(replicas, factory, echo)
        with replicas.hung(0), replicas.hung(1):
            call = stub.Echo(echo.pb.Note())
            waiting = asyncio.ensure_future(call)
            await asyncio.sleep(1.5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert call.cancelled()
            other = stub.Echo(echo.pb.Note())
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
