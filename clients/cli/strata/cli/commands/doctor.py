"""``strata doctor``: checks the machine, the data folder and a running server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import typer
from rich.text import Text

from strata.cli.checks import examine
from strata.cli.failures import EXIT_FAILURE
from strata.cli.findings import CheckVerdict, DoctorFinding
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import console, print_json, safe
from strata.client.settings import ClientSettings

app = typer.Typer(add_completion=False)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_INDENT = 6


@app.command()
@online
def doctor(connection: GatewayOptions, as_json: JsonOption = False) -> None:
    """Check this machine, and print how to fix what is wrong.

    It works without a running server. The exit code is 1 if a check fails.
    """
    screen = console()
    findings: list[DoctorFinding] = []

    def report(finding: DoctorFinding) -> None:
        findings.append(finding)
        if as_json:
            return
        line = Text(f"{finding.verdict:<{_INDENT}}", style=_STYLES[finding.verdict])
        line.append(f"{finding.check}: ", style="bold")
        line.append(safe(finding.text), style="default")
        screen.print(line, soft_wrap=True)
        if finding.remedy:
            screen.print(Text(" " * _INDENT + safe(finding.remedy), style="dim"), soft_wrap=True)

    asyncio.run(examine(connection.choice, ClientSettings.from_environment(), report))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.verdict is CheckVerdict.FAIL for finding in findings):
        raise typer.Exit(EXIT_FAILURE)
