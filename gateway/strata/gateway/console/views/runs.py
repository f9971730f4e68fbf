"""Runs: list, timeline, stored events, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response

from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.gateway.console.views.agent_names import names_of
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import NotFoundError

_PAGE = 50
_OPEN = (pb.RUN_STATE_QUEUED, pb.RUN_STATE_RUNNING, pb.RUN_STATE_CANCELLING)
_FILTERS = {
    "open": _OPEN,
    "completed": (pb.RUN_STATE_COMPLETED,),
    "failed": (pb.RUN_STATE_FAILED,),
    "cancelled": (pb.RUN_STATE_CANCELLED,),
}
_SCALE = 1000
"""Units of a bar from one end to the other."""
_MIN_WIDTH = 4.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart, in thousandths of the whole.

    Attributes:
        kind: The kind of the span, see `pb.RunSpan`.
        start: Where it begins.
        width: How wide it is.
    """

    kind: str
    start: float
    width: float


async def list_runs(visit: Visit) -> Response:
    """Lists runs of all agents, newest first."""
    return await _listing(visit, "runs/list.html", pb.ListRunsRequest())


async def list_runs_of_agent(visit: Visit) -> Response:
    """Lists runs of one agent, newest first."""
    agent = await agent_of(visit)
    request = pb.ListRunsRequest(agent_id=agent.id)
    return await _listing(visit, "runs/of_agent.html", request, agent=agent)


async def _listing(
    visit: Visit, template: str, request: pb.ListRunsRequest, **values: Any
) -> Response:
    state = visit.query("state")
    request.states.extend(_FILTERS.get(state, ()))
    request.page_size = _PAGE
    request.page_token = visit.query("page")
    listing = await visit.services.runs.ListRuns(request)
    return visit.page(
        "runs/rows.html" if visit.by_htmx else template,
        runs=listing.runs,
        next_page=listing.next_page_token,
        state=state,
        filters=list(_FILTERS),
        names=await names_of(visit, (run.agent_id for run in listing.runs)),
        with_agent=not request.agent_id,
        **values,
    )


async def show_run(visit: Visit) -> Response:
    """Shows what a run did, and where its time, its tokens and its money went."""
    run_id = visit.argument("run_id")
    explained = pb.ExplainRunResponse()
    without_events = ""
    try:
        explained = await visit.services.runs.ExplainRun(pb.ExplainRunRequest(run_id=run_id))
    except NotFoundError as error:
        # The run itself may be stored for longer than its events.
        run = (await visit.services.runs.GetRun(pb.GetRunRequest(run_id=run_id))).run
        explained.run.CopyFrom(run)
        without_events = error.message
    run = explained.run
    return visit.page(
        "runs/progress.html" if visit.by_htmx else "runs/run.html",
        run=run,
        explained=explained,
        without_events=without_events,
        is_open=run.state in _OPEN,
        spans=list(zip(explained.spans, span_bars(explained), strict=True)),
        parts=part_bars(explained.parts),
        names=await names_of(visit, [run.agent_id]),
    )


def span_bars(explained: pb.ExplainRunResponse) -> list[Bar]:
    """Returns a bar for each span of a run, on one scale of time."""
    origin = explained.run.create_time
    ends = [_milliseconds(origin, span.start_time) + span.duration_ms for span in explained.spans]
    whole = max([explained.total_ms, *ends, 1])
    bars = []
    for span in explained.spans:
        start = max(0, _milliseconds(origin, span.start_time)) / whole * _SCALE
        width = max(_MIN_WIDTH, span.duration_ms / whole * _SCALE)
        bars.append(Bar(span.kind, min(start, _SCALE - _MIN_WIDTH), width))
    return bars


def part_bars(parts: Sequence[pb.RunPart]) -> list[Bar]:
    """Returns a bar for each part of a run's time, side by side."""
    whole = sum(part.share_ms for part in parts)
    bars, start = [], 0.0
    for part in parts:
        width = part.share_ms / whole * _SCALE if whole else 0.0
        bars.append(Bar(part.kind, start, width))
        start += width
    return bars


def _milliseconds(start: Timestamp, end: Timestamp) -> int:
    return end.ToMilliseconds() - start.ToMilliseconds()


async def cancel_run(visit: Visit) -> Response:
    """Stops a run; what it has stored stays."""
    run_id = visit.argument("run_id")
    await visit.services.runs.CancelRun(pb.CancelRunRequest(run_id=run_id))
    return visit.go_to(f"/runs/{run_id}")


VIEWS = (
    ViewRoute("/runs", list_runs),
    ViewRoute("/agents/{agent_id}/runs", list_runs_of_agent),
    ViewRoute("/runs/{run_id}", show_run),
    ViewRoute("/runs/{run_id}/cancel", cancel_run, "POST"),
)
