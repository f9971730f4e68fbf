"""Services with several databases, on which projects are placed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from callers import TokenKeys
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import FailedPreconditionError, Reason, WrongSettingError
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.context import Caller, RequestContext
from strata.shared.metric_names import DATABASE_POOL_SIZE, RPC_IN_FLIGHT
from strata.shared.metrics_endpoint import TelemetryCollector
from strata.shared.partitioned_service import build_partitions
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.server import NetworkWiring
from strata.shared.service import GrpcService, Service, Wiring
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Telemetry

FIRST, SECOND = "postgresql://first/strata", "postgresql://second/strata"


class Notes:
    """The servicer of one partition."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def Read(self, request: str, _: Any) -> str:
        return f"{request} at {self.url}"

    async def Watch(self, request: str, _: Any) -> AsyncIterator[str]:
        for number in range(2):
            yield f"{request} {number} at {self.url}"


async def build(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    async def work() -> None:
        pass

    wiring.telemetry.gauge(DATABASE_POOL_SIZE, service="notes", role="service").set(3)
    wiring.telemetry.gauge(RPC_IN_FLIGHT, method="Read").add(1)
    servicer = Notes(settings.database_url)
    return Service("notes", [GrpcService("Notes", lambda *_: None, servicer)], background=[work])


async def built(settings: ServiceSettings, telemetry: Telemetry | None = None) -> Service:
    keys: Any = TokenKeys.generate().verifier
    channels: Any = None
    wiring = NetworkWiring(keys, channels, SystemClock(), telemetry)
    async with AsyncExitStack() as stack:
        return await build_partitions(build, settings, wiring, stack)


def of(partition: str) -> RequestContext:
    return RequestContext(caller=Caller("org-1", "project-1", "key-1", partition=partition))


def two() -> ServiceSettings:
    return ServiceSettings(database_url=FIRST, partition_database_urls={"p1": SECOND})


async def test_calls_are_routed_to_the_partition_of_the_caller() -> None:
    service = await built(two())

    servicer: Any = service.services[0].servicer
    read, watch = servicer.Read, servicer.Watch
    with context.use(of("p1")):
        assert await read("a note", None) == f"a note at {SECOND}"
        assert [text async for text in watch("a note", None)] == [
            f"a note {number} at {SECOND}" for number in range(2)
        ]
    with context.use(of(DEFAULT_PARTITION)):
        assert await read("a note", None) == f"a note at {FIRST}"
    with context.use(of("p2")), pytest.raises(FailedPreconditionError) as refused:
        await read("a note", None)
    assert refused.value.reason is Reason.PARTITION_NOT_CONFIGURED
    assert refused.value.metadata == {"partition": "p2"}
    assert len(service.background) == 2


async def test_a_service_with_one_database_is_built_as_it_is() -> None:
    service = await built(ServiceSettings(database_url=FIRST))
    assert type(service.services[0].servicer) is Notes


async def test_metrics_of_several_partitions_are_distinguished() -> None:
    telemetry = Telemetry()
    await built(two(), telemetry)

    families = {family.name: family for family in TelemetryCollector(telemetry).collect()}

    pools = [sample.labels for sample in families[DATABASE_POOL_SIZE].samples]
    assert pools == [
        {"service": "notes", "role": "service", "partition": name} for name in ("default", "p1")
    ]
    [calls] = families[RPC_IN_FLIGHT].samples
    assert (calls.labels, calls.value) == ({"method": "Read"}, 2)


async def test_workers_are_for_all_partitions_or_none() -> None:
    settings = ServiceSettings(
        database_url=FIRST, worker_database_url=FIRST, partition_database_urls={"p1": SECOND}
    )
    with pytest.raises(ValueError, match="partition_worker_database_urls"):
        await built(settings)


def test_a_token_names_the_partition_or_the_default_one() -> None:
    keys = TokenKeys.generate()
    who = ("org-1", "project-1", "key-1", ("write",))
    assert keys.verifier.verify(keys.signer.mint(*who)).partition == DEFAULT_PARTITION
    placed = keys.signer.mint(*who, partition="p1")
    assert keys.verifier.verify(placed).partition == "p1"
    assert placed != keys.signer.mint(*who)


def test_settings_of_a_partition_have_its_urls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_SERVICE_DATABASE_URL", FIRST)
    monkeypatch.setenv("STRATA_SERVICE_PARTITION_DATABASE_URLS__P1", SECOND)
    monkeypatch.setenv("STRATA_SERVICE_PARTITION_WORKER_DATABASE_URLS", f'{{"p1": "{SECOND}"}}')
    settings = ServiceSettings()
    assert settings.partitions == ("default", "p1")
    placed = settings.of_partition("p1")
    assert (placed.database_url, placed.worker_database_url) == (SECOND, SECOND)
    assert (placed.partition, placed.partitions) == ("p1", ("default",))
    assert settings.of_partition("default").database_url == FIRST
    assert SECOND not in repr(settings)


@pytest.mark.parametrize(
    "values",
    [
        {"partition_database_urls": {"default": SECOND}},
        {"partition_database_urls": {"P 1": SECOND}},
        {"partition_database_urls": {"p_1": SECOND}},
        {"partition_database_urls": {"p1": FIRST}},
        {"partition_database_urls": {"p1": SECOND, "p2": SECOND}},
        {
            "partition_database_urls": {"p1": SECOND},
            "partition_worker_database_urls": {"p2": SECOND},
        },
    ],
)
def test_wrong_partitions_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(WrongSettingError, match="PARTITION_DATABASE_URLS"):
        ServiceSettings(database_url=FIRST, **values)


def test_new_projects_are_placed_where_the_gateway_has_a_database() -> None:
    with pytest.raises(WrongSettingError, match="PROJECT_PARTITIONS"):
        GatewaySettings(project_partitions=("default", "p1"))
