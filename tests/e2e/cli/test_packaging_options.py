"""``strata agents create`` and ``update`` with ``--user-messages`` and ``--location``."""

from __future__ import annotations

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.agent_loop.v1.agent_service_pb2 import MessagePackaging


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), MessagePackaging()),
        (("--user-messages", "packed"), MessagePackaging(pack_user_messages=True)),
        (
            ("--user-messages", "packed", "--location", "Lisbon"),
            MessagePackaging(pack_user_messages=True, location="Lisbon"),
        ),
    ],
)
async def test_agent_is_created_with_the_packaging_of_the_options(
    gateway: ScriptedGateway, strata: Run, options: tuple[str, ...], expected: MessagePackaging
) -> None:
    done = await strata("agents", "create", "bo", *options)
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert request.packaging == expected


async def test_update_changes_one_setting_and_keeps_the_other(
    gateway: ScriptedGateway, strata: Run
) -> None:
    agent = gateway.agents.add("bo")
    for options, expected in [
        (("--location", "Lisbon"), MessagePackaging(location="Lisbon")),
        (
            ("--user-messages", "packed"),
            MessagePackaging(pack_user_messages=True, location="Lisbon"),
        ),
        (("--location", ""), MessagePackaging(pack_user_messages=True)),
        (("--description", "d"), MessagePackaging(pack_user_messages=True)),
        (("--user-messages", "raw"), MessagePackaging()),
    ]:
        done = await strata("agents", "update", "bo", *options)
        assert done.code == 0, done
        assert agent.packaging == expected


async def test_show_prints_that_messages_are_packaged(
    gateway: ScriptedGateway, strata: Run
) -> None:
    agent = gateway.agents.add("bo")
    assert "packed" not in (await strata("agents", "show", "bo")).out
    agent.packaging.pack_user_messages = True
    assert "user messages: packed" in (await strata("agents", "show", "bo")).out


async def test_other_format_is_wrong_usage(gateway: ScriptedGateway, strata: Run) -> None:
    done = await strata("agents", "create", "bo", "--user-messages", "xml")
    assert done.code == 2
    assert gateway.agents.created == []
