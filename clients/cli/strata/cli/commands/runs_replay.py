"""``strata runs record`` and ``replay``: records a run, and replays it with this build."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import note, print_fields, print_json, print_text
from strata.protocol.errors import InvalidArgumentError

# The agent loop takes long to import, and other commands of runs do not need it.

STDOUT = Path("-")
_EMPTY = "(nothing)"


@online
def record_run(
    connection: GatewayOptions,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help='The file to write; "-" for standard output. RUN.recording.json if not given.',
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write everything that a run received, sent and stored to a file, for a replay."""
    path = output or Path(f"{run}.recording.json")
    if path != STDOUT and path.exists() and not force:
        raise UsageError(f"{path} exists; replace it with --force.")

    async def read(client: GatewayClient) -> bytes:
        request = pb.RecordRunRequest(run_id=run)
        return b"".join([response.piece async for response in client.runs.RecordRun(request)])

    data = connection.run(read)
    if path == STDOUT:
        sys.stdout.buffer.write(data + b"\n")
        return
    try:
        path.write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    note(f"{len(data):,} bytes written to {path}. Replay it with: strata runs replay {path}")
    for line in _notes(data):
        note(line)


def replay_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recording.")],
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded run with this build, and show the first difference.

    It needs no server, network or key, and runs no tool. The exit code is 0 if this build sends
    and stores the same, 1 if it does not, and 2 if the file cannot be read.
    """
    from strata.agent_loop.convert.recordings import (  # noqa: PLC0415 - start-up
        recording_from_json,
    )
    from strata.agent_loop.replay.replay import replay  # noqa: PLC0415 - start-up
    from strata.shared.release import release  # noqa: PLC0415 - start-up

    try:
        recording = recording_from_json(_read(file))
    except InvalidArgumentError as error:
        raise UsageError(f"{file}: {error.message}") from error
    replayed = asyncio.run(replay(recording))
    difference = replayed.difference
    if as_json:
        report: dict[str, object] = {
            "run_id": recording.turn.run_id,
            "recorded_by": recording.build,
            "replayed_by": release(),
            "same": difference is None,
            "steps": len(recording.steps),
            "steps_replayed": replayed.steps,
            "not_compared": list(replayed.unknown),
            "notes": list(recording.notes),
        }
        if difference is not None:
            report["difference"] = {
                "path": difference.path,
                "summary": difference.summary,
                "recorded": difference.recorded,
                "replayed": difference.replayed,
                "diff": difference.diff,
            }
        print_json(report)
    else:
        for line in recording.notes:
            note(line)
        steps = f"{replayed.steps} of {len(recording.steps)} steps"
        if difference is None:
            print_text(f"Same: {steps} were replayed, and this build sends and stores the same.")
        else:
            print_text(f"Differs after {steps}: {difference.summary}")
            fields = [("where", difference.path)]
            if difference.diff:
                fields.append(("difference", f"\n{difference.diff}"))
            else:
                fields.append(("recorded", difference.recorded or _EMPTY))
                fields.append(("this build", difference.replayed or _EMPTY))
            print_fields(fields)
        if replayed.unknown:
            note(f"Not compared, because the recording lacks it: {', '.join(replayed.unknown)}")
    if difference is not None:
        raise typer.Exit(EXIT_FAILURE)


def _read(file: Path) -> bytes:
    from strata.agent_loop.replay.recording import MAX_RECORDING_BYTES  # noqa: PLC0415 - start-up

    try:
        if file == STDOUT:
            return sys.stdin.buffer.read(MAX_RECORDING_BYTES + 1)
        if not stat.S_ISREG(file.stat().st_mode):
            raise UsageError(f"{file} is not a file.")
        with file.open("rb") as opened:
            return opened.read(MAX_RECORDING_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _notes(data: bytes) -> list[str]:
    from strata.agent_loop.convert.recordings import (  # noqa: PLC0415 - start-up
        recording_from_json,
    )

    try:
        return list(recording_from_json(data).notes)
    except InvalidArgumentError as error:
        # The server is of another release than this command.
        return [error.message]
