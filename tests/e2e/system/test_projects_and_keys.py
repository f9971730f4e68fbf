"""Organizations, projects, keys and usage from the command line, on a data folder."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from typer.testing import CliRunner

from doubles.script import say
from live import LiveSystem
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.cli.main import app

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

Run = Callable[..., Coroutine[Any, Any, Any]]


def command_line(live: LiveSystem) -> Run:
    """Runs a command on the data folder, in a thread with its own event loop."""
    runner = CliRunner(env={"STRATA_ADDRESS": "", "STRATA_API_KEY": ""})

    async def run(*arguments: str, env: dict[str, str] | None = None) -> Any:
        words = [*arguments, "--data", str(live.data)]
        return await asyncio.to_thread(runner.invoke, app, words, env=env, catch_exceptions=False)

    return run


async def test_projects_and_keys_can_be_managed_with_the_organization_key_of_the_folder(
    single_live: LiveSystem,
) -> None:
    live, system = single_live, single_live.connect()
    strata = command_line(live)
    for name in ("organization-key", "api-key"):
        assert stat.S_IMODE((live.data / "secrets" / name).stat().st_mode) == 0o600

    made = await strata("projects", "create", "shop")
    assert made.exit_code == 0, made.output
    listed = await strata("projects", "list")
    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == [
        "NAME",
        "default",
        "shop",
    ]
    assert made.stdout.strip() in listed.stdout
    taken = await strata("projects", "create", "shop")
    assert (taken.exit_code, "NAME_TAKEN" in taken.stderr) == (1, True)

    key = await strata(
        *("keys", "create", "ci", "--project", "shop"),
        *("--scope", "read", "--scope", "admin", "--expires", "90d"),
    )
    assert key.exit_code == 0, key.output
    secret = key.stdout.strip()
    assert secret.startswith("sk-strata-")
    assert "admin, read" in key.stderr
    # The key of the new project manages that project, and not the project of the folder.
    own = await strata("keys", "list", "--json", "--api-key", secret)
    [shown] = json.loads(own.stdout)["apiKeys"]
    assert (shown["name"], shown["scopes"]) == ("ci", ["admin", "read"])
    assert shown["expireTime"]
    other = await strata("keys", "list", "--project", "default", "--json")
    first = json.loads(other.stdout)["apiKeys"][0]
    refused = await strata("keys", "revoke", first["id"], "--api-key", secret)
    assert (refused.exit_code, "API_KEY_NOT_FOUND" in refused.stderr) == (1, True)
    assert (await strata("projects", "list", "--organization-key", secret)).exit_code == 1

    revoked = await strata("keys", "revoke", shown["id"], "--project", "shop")
    assert revoked.exit_code == 0, revoked.output
    after = await strata("keys", "list", "--api-key", secret)
    assert "CREDENTIALS_INVALID" in after.stderr
    await system.channel.close()


async def test_usage_and_status_work_with_the_organization_key_and_indexes_need_it(
    single_live: LiveSystem,
) -> None:
    live, system = single_live, single_live.connect()
    strata = command_line(live)
    assert (await strata("projects", "create", "counted")).exit_code == 0
    scopes = [word for scope in ("read", "write", "run", "admin") for word in ("--scope", scope)]
    made = await strata("keys", "create", "of-usage", "--project", "counted", *scopes)
    key = made.stdout.strip()
    counted = system.client(key)
    agent = await counted.make_agent()
    live.model.script(say("Hello."))
    await counted.send(agent, "Hello!")
    own = await strata("usage", "--api-key", key)
    assert own.stdout.splitlines()[0] == "runs: 1"
    of_agent = await strata("usage", "--agent", agent.id, "--api-key", key)
    assert of_agent.stdout == own.stdout
    assert (await strata("usage")).stdout.startswith("runs: ")
    all_projects = await strata("usage", "--all")
    rows = [line.split("\t")[:2] for line in all_projects.stdout.splitlines()]
    assert ["counted", "1"] in rows
    assert "default" in [name for name, *_ in rows]
    assert (await strata("usage", "--all", "--project", "default")).exit_code == 2

    status = await strata("status")
    assert status.exit_code == 0, status.output
    assert "\nmessages\t" in status.stdout
    rebuilt = await strata("reindex", "messages")
    assert rebuilt.exit_code == 0, rebuilt.output
    project_key = (live.data / "secrets" / "api-key").read_text()
    refused = await strata("reindex", "messages", "--organization-key", project_key)
    assert (refused.exit_code, "organization key" in refused.stderr) == (1, True)
    await counted.channel.close()
    await system.channel.close()


async def test_organizations_have_keys_of_their_own(single_live: LiveSystem) -> None:
    strata = command_line(single_live)
    assert (await strata("organizations", "create", "acme")).exit_code == 0
    made = await strata(
        *("organizations", "keys", "create", "ops", "--organization", "acme"),
        *("--scope", "organization.admin"),
    )
    assert made.exit_code == 0, made.output
    theirs = {"STRATA_ORGANIZATION_KEY": made.stdout.strip()}
    # If a folder is named, the variable for the organization key is ignored; the option is used.
    with_key = ("--organization-key", made.stdout.strip())
    assert (await strata("projects", "create", "theirs", *with_key)).exit_code == 0
    names = (await strata("projects", "list", *with_key)).stdout
    assert ("theirs" in names, "default" in names) == (True, False)
    assert "default" in (await strata("projects", "list", env=theirs)).stdout
    refused = await strata("organizations", "list", *with_key)
    assert (refused.exit_code, "SCOPE_MISSING" in refused.stderr) == (1, True)
    listed = await strata("organizations", "keys", "list", "--organization", "acme", "--json")
    [key] = json.loads(listed.stdout)["organizationKeys"]
    revoked = await strata("organizations", "keys", "revoke", key["id"], "--organization", "acme")
    assert revoked.exit_code == 0, revoked.output
    assert "CREDENTIALS_INVALID" in (await strata("projects", "list", *with_key)).stderr


async def test_a_folder_of_the_previous_release_gets_an_organization_key(
    single_live: LiveSystem,
) -> None:
    live, system = single_live, single_live.connect()
    agent = await system.make_agent()
    await system.channel.close()
    assert await live.stop() == 0
    secrets = live.data / "secrets"
    api_key, master_key = (secrets / "api-key").read_text(), (secrets / "master-key").read_text()
    # The state of the previous release: no organization key, one master key for both services.
    for name in ("organization-key", "tool-master-key"):
        (secrets / name).unlink()
    system = await live.start_system()
    assert (secrets / "api-key").read_text() == api_key
    assert (secrets / "master-key").read_text() == master_key
    newest, *earlier = (secrets / "tool-master-key").read_text().split()
    assert earlier == [master_key]
    assert newest != master_key
    response = await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent.id))
    assert response.agent.id == agent.id
    who = await system.admin.WhoAmI(pb.WhoAmIRequest())
    assert who.project.name == "default"
    listed = await command_line(live)("projects", "list")
    assert "default" in listed.stdout
    await system.channel.close()
