"""All services in one process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from strata.recall.settings import RecallSettings
from strata.shared.auth import generate_key_pair
from strata.shared.service import Service, Wiring
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Telemetry
from strata.standalone.compose import single
from strata.standalone.compose.services import ServiceSpec


async def _build(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    return Service("gateway", [])


async def test_variables_that_no_setting_of_a_service_reads_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = ServiceSpec("gateway", _build, ServiceSettings)
    monkeypatch.setattr(single, "INNER_SERVICES", ())
    monkeypatch.setattr(single, "GATEWAY", gateway)
    recall = ServiceSpec("recall", _build, RecallSettings)
    monkeypatch.setattr(single, "ALL_SERVICES", (recall, gateway))
    monkeypatch.setenv("STRATA_RECALL_REMOVED_S", "1")
    local: Any = SimpleNamespace(public_key=generate_key_pair()[1], gateway=ServiceSettings())
    async with AsyncExitStack() as stack:
        await single.build_services(local, Telemetry(), stack)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "['STRATA_RECALL_REMOVED_S']" in str(record.msg)
