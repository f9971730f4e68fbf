"""``strata status``: whether Strata runs, and which services answer."""

from __future__ import annotations

import typer

from strata.api.common.v1.search_pb2 import IndexState
from strata.cli.client import GatewayClient
from strata.cli.connection import Target
from strata.cli.failures import EXIT_FAILURE
from strata.cli.health import count_agents, gateway_state, index_states, service_states
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import print_fields, print_json, print_table
from strata.protocol.errors import StrataError

app = typer.Typer(add_completion=False)


@app.command()
@online
def status(connection: GatewayOptions, as_json: JsonOption = False) -> None:
    """Show whether Strata runs, and which services answer. The exit code is 0 if all of them do."""
    target, report = _status_report(connection)
    services: dict[str, str] = report.pop("services")  # type: ignore[assignment]
    indexes: dict[str, str] = report.pop("indexes")  # type: ignore[assignment]
    if as_json:
        states = {"services": dict(services), "indexes": indexes}
        print_json({"address": target.address, **report, **states})
    else:
        print_fields([("address", target.address), *((k, str(v)) for k, v in report.items())])
        print_table(["service", "state"], services.items(), empty="")
        if indexes:
            print_table(["index", "state"], indexes.items(), empty="")
    if not report["gateway"] == "serving" or any(state != "answers" for state in services.values()):
        raise typer.Exit(EXIT_FAILURE)


def _status_report(connection: GatewayOptions) -> tuple[Target, dict[str, object]]:

    async def ask(client: GatewayClient) -> dict[str, object]:
        gateway = await gateway_state(client)
        states = await service_states(client)
        try:
            agents = await count_agents(client)
        except StrataError:
            agents = "unknown"
        return {
            "gateway": "serving" if gateway.serving else "not serving",
            "version": gateway.version,
            "project": gateway.project,
            "agents": agents,
            "services": {
                state.service: "answers" if state.answers else f"does not answer: {state.detail}"
                for state in states
            },
        }

    report = connection.run(ask)
    report["indexes"] = _indexes(connection)
    return connection.target(), report


def _indexes(connection: GatewayOptions) -> dict[str, str]:
    """Returns the state of each index; empty without an organization key.

    All projects share the indexes, so only an organization key may read their state.
    """
    try:
        states = connection.run_as_organization(index_states)
    except StrataError:
        return {}
    return {state.collection: _index_state(state) for state in states}


def _index_state(index: IndexState) -> str:
    if not index.waiting:
        return f"up to date, {index.embedding_model}"
    return f"{index.waiting} waiting, for {index.lag_seconds:.0f} s, {index.embedding_model}"
