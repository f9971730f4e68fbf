"""``--external-id`` of ``strata agents create`` and ``update``."""

from __future__ import annotations

from command_line import Run
from e2e.cli.scripted import ScriptedGateway


async def test_external_id_is_set_shown_and_removed(gateway: ScriptedGateway, strata: Run) -> None:
    created = await strata("agents", "create", "al", "--external-id", "crm/4711")
    assert created.code == 0, created
    assert gateway.agents.created[0].external_id == "crm/4711"
    agent = gateway.agents.add("bo")
    done = await strata("agents", "update", "bo", "--external-id", "erp-1")
    assert "external id: erp-1" in done.out
    assert agent.external_id == "erp-1"
    done = await strata("agents", "update", "bo", "--external-id", "")
    assert agent.external_id == ""
    assert "external id" not in done.out
