"""``strata reindex``: rebuilds vector indexes while searches continue."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from strata.api.common.v1 import search_pb2 as pb
from strata.cli.client import GatewayClient
from strata.cli.failures import EXIT_FAILURE
from strata.cli.indexes import COLLECTIONS, ArchiveIndex, WholeIndex, index_of
from strata.cli.options import GatewayOptions, JsonOption, OrganizationKeyOption, online
from strata.cli.output import error_console, print_fields, print_json, when
from strata.shared.convert.enums import enum_name

app = typer.Typer(add_completion=False)

_POLL_S = 0.5
_OPEN_PHASES = (pb.REINDEX_PHASE_BUILDING, pb.REINDEX_PHASE_CHECKING)


@app.command()
@online
def reindex(
    connection: GatewayOptions,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="passages, files, messages, or name or id of an archive."
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="The new embedding model. Default: the current one.")
    ] = "",
    status: Annotated[bool, typer.Option("--status", help="Only show its progress.")] = False,
    rollback: Annotated[
        bool,
        typer.Option("--rollback", help="Switch back to the old index, or cancel the rebuild."),
    ] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="Drop the old index now instead of after the grace period."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the new index serves.")
    ] = True,
    partition: Annotated[
        str,
        typer.Option(
            "--partition",
            metavar="NAME",
            help="The partition whose passages, files or messages are meant.",
            show_default="default",
        ),
    ] = "",
    organization_key: OrganizationKeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Rebuild an index while it serves, optionally with another embedding model.

    All projects of a partition share the indexes passages, files and messages: rebuilding them
    needs an organization key with the scope installation.admin. An archive belongs to one project.

    The new index is filled while the old one serves. It replaces the old one after a check that it
    finds stored texts equally well. Until it is finished, --rollback switches back. Interrupting
    this command does not interrupt the rebuild. The exit code is 1 if the check fails.
    """
    if sum((status, rollback, finish, bool(model))) > 1:
        raise typer.BadParameter("choose one of --model, --status, --rollback and --finish")

    async def work(client: GatewayClient) -> pb.Reindex:
        index = await index_of(client, what, partition)
        if status:
            return await index.latest()
        if rollback:
            return await index.roll_back()
        if finish:
            return await index.finish()
        job = await index.start(model)
        return await _watch(index, job, quiet=as_json) if wait else job

    if what in COLLECTIONS:
        job = connection.run_as_organization(work, organization_key)
    else:
        job = connection.run(work)
    _show(job, as_json=as_json)
    if job.phase == pb.REINDEX_PHASE_FAILED:
        raise typer.Exit(EXIT_FAILURE)


async def _watch(index: WholeIndex | ArchiveIndex, job: pb.Reindex, *, quiet: bool) -> pb.Reindex:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = error_console()
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task("building", total=job.total or 1)
        while True:
            _draw(bar, task, job)
            if job.phase not in _OPEN_PHASES:
                return job
            await asyncio.sleep(_POLL_S)
            job = await index.latest()


def _draw(bar: Progress, task: TaskID, job: pb.Reindex) -> None:
    phase = enum_name(pb.ReindexPhase, job.phase)
    bar.update(task, description=phase, completed=min(job.done, job.total or 1))


def _show(job: pb.Reindex, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    fields = [
        ("index", job.archive_id or job.collection),
        ("phase", enum_name(pb.ReindexPhase, job.phase)),
        ("model", _models(job)),
        ("copied", f"{job.done} of {job.total}"),
    ]
    if job.checked:
        hits = f"{job.found_by_new} of {job.checked} texts found again"
        fields.append(("check", f"{hits}, {job.found_by_old} by the old index"))
    if job.note:
        fields.append(("why", job.note))
    fields.append(("since", when(job.phase_time)))
    print_fields(fields)


def _models(job: pb.Reindex) -> str:
    return (
        job.new_model if job.new_model == job.old_model else f"{job.old_model} to {job.new_model}"
    )
