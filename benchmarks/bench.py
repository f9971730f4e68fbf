"""The shared state of the suites: the running system, a client, the floors and the report."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import Client
from benchmarks.floors import CommitFloor, HopFloor, ModelFloor, SdkFloor
from benchmarks.processes import Child, usage
from benchmarks.report import Report
from benchmarks.system import System

_KEPT_WITHIN = "keep this request, please"


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of measurements.

    Attributes:
        cold_starts: Starts in an empty data folder.
        warm_starts: Starts in a used one.
        turns: Turns of each kind.
        long_windows: Numbers of messages in the long windows.
        calls: Single calls of each kind.
        passages: Passages in the archive that is searched.
        indexed_bytes: Size of the document that is indexed.
        load_s: Seconds of each load test.
        rounds: Blocks of each of several alternating cases.
        settle_s: Seconds before memory is read after a start.
        idle_s: Seconds before memory is read after use; longer than unused connections stay open.
    """

    cold_starts: int = 3
    warm_starts: int = 5
    turns: int = 200
    long_windows: tuple[int, ...] = (200, 1000)
    calls: int = 200
    passages: int = 300
    indexed_bytes: int = 1_000_000
    load_s: float = 10.0
    rounds: int = 4
    settle_s: float = 5.0
    idle_s: float = 75.0


QUICK = Effort(
    cold_starts=1,
    warm_starts=2,
    turns=40,
    long_windows=(60,),
    calls=50,
    passages=60,
    indexed_bytes=100_000,
    load_s=3.0,
    rounds=1,
    settle_s=2.0,
)


class Model:
    """The model double that answers at once, in its own process."""

    def __init__(self, child: Child, url: str, request_file: Path) -> None:
        self.url = url
        self._child = child
        self._request_file = request_file

    @classmethod
    async def start(cls, folder: Path, stack: AsyncExitStack) -> Model:
        """Starts it."""
        request_file = folder / "request.json"
        child = Child(
            ["-m", "benchmarks.model_double", str(request_file)], {}, folder / "model.log"
        )
        stack.push_async_callback(child.stop)
        return cls(child, await child.line("URL"), request_file)

    def cpu_ms(self) -> float:
        """Returns the processor time that its process has used, in milliseconds."""
        return sum(usage(self._child.pid).cpu_ms.values())

    async def request_of(self, client: Client, agent_id: str, text: str = "") -> bytes:
        """Makes one more turn of the agent; returns the request that the model got.

        Args:
            client: Sends the message.
            agent_id: The agent.
            text: Text of the message.
        """
        await client.turn(agent_id, f"{_KEPT_WITHIN} {text}")
        return self._request_file.read_bytes()


@dataclass(slots=True)
class Floors:
    """The floors of a turn."""

    commit: CommitFloor
    hop: HopFloor
    model: ModelFloor
    sdk: SdkFloor

    @classmethod
    async def open(
        cls, system: System, model: Model, folder: Path, stack: AsyncExitStack
    ) -> Floors:
        """Opens the floors."""
        url = system.database_url
        return cls(
            await CommitFloor.open(url("postgres"), url("benchmarks"), stack),
            await HopFloor.open(folder, stack),
            ModelFloor.open(model.url, stack),
            SdkFloor.open(model.url, stack),
        )

    async def measure(self, count: int) -> None:
        """Measures commit and hop; samples are added during the whole run."""
        await self.commit.measure(count)
        await self.hop.measure(count)


@dataclass(slots=True)
class Bench:
    """One run of the benchmarks."""

    effort: Effort
    report: Report
    system: System
    model: Model
    client: Client
    floors: Floors
