"""``strata status``."""

from __future__ import annotations

import typer

from strata.cli.client import Client
from strata.cli.connection import Target
from strata.cli.failures import EXIT_FAILURE
from strata.cli.health import count_agents, gateway_state, room_states
from strata.cli.options import Connection, JsonOption, online
from strata.cli.output import print_fields, print_json, print_table
from strata.shared.errors import StrataError

app = typer.Typer(add_completion=False)


@app.command()
@online
def status(connection: Connection, as_json: JsonOption = False) -> None:
    """Tell whether Strata runs, and which rooms answer. The exit code is 0 if all is well."""
    target, report = _ask(connection)
    rooms: dict[str, str] = report.pop("rooms")  # type: ignore[assignment]
    if as_json:
        print_json({"address": target.address, **report, "rooms": dict(rooms)})
    else:
        print_fields([("address", target.address), *((k, str(v)) for k, v in report.items())])
        print_table(["room", "state"], rooms.items(), empty="")
    if not report["gateway"] == "serving" or any(state != "answers" for state in rooms.values()):
        raise typer.Exit(EXIT_FAILURE)


def _ask(connection: Connection) -> tuple[Target, dict[str, object]]:

    async def ask(client: Client) -> dict[str, object]:
        gateway = await gateway_state(client)
        states = await room_states(client)
        try:
            agents = await count_agents(client)
        except StrataError:
            agents = "unknown"
        return {
            "gateway": "serving" if gateway.serving else "not serving",
            "version": gateway.version,
            "project": gateway.project,
            "agents": agents,
            "rooms": {
                each.room: "answers" if each.answers else f"does not answer: {each.detail}"
                for each in states
            },
        }

    return connection.target(), connection.run(ask)
