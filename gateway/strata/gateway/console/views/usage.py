"""Usage: runs and tokens of a project over time, and of all projects of an organization."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.responses import Response

from strata.api.gateway.v1 import admin_service_pb2 as pb
from strata.gateway.console.views.agent_names import agent_id_of, suggested_names
from strata.gateway.console.views.projects import project_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.shared.time_buckets import bucket_start

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Period:
    """A range of time up to now.

    Attributes:
        label: Its name.
        slot: The time between two figures of it.
        slots: How many figures it has.
    """

    label: str
    slot: timedelta
    slots: int


PERIODS: Mapping[str, Period] = {
    "day": Period("24 hours", timedelta(hours=1), 24),
    "week": Period("7 days", timedelta(hours=12), 14),
    "month": Period("30 days", timedelta(days=1), 30),
    "quarter": Period("13 weeks", timedelta(weeks=1), 13),
}
"""The ranges that a page offers; the first figure of each is the oldest."""

_DEFAULT_PERIOD = "week"


async def show_usage(visit: Visit) -> Response:
    """Shows the usage of the project; with an organization key, the usage of each project."""
    if visit.identity.project.id:
        return await _usage_of(visit, visit.identity.project, "/usage")
    key, period = _period(visit)
    end = datetime.now(UTC)
    listing = await visit.services.admin.ListProjectUsage(
        pb.ListProjectUsageRequest(
            start_time=_stamp(end - period.slot * period.slots),
            end_time=_stamp(end),
            page_size=_PAGE,
            page_token=visit.query("page"),
        )
    )
    return visit.page(
        "usage/organization.html",
        projects=listing.projects,
        next_page=listing.next_page_token,
        period=key,
        periods=PERIODS,
    )


async def show_project_usage(visit: Visit) -> Response:
    """Shows the usage of a project of the organization."""
    project = await project_of(visit)
    return await _usage_of(visit, project, f"/projects/{project.id}/usage")


async def _usage_of(visit: Visit, project: pb.Project, path: str) -> Response:
    key, period = _period(visit)
    agent = visit.query("agent").strip()
    agent_id = await agent_id_of(visit, agent)
    series = await _series(visit, project.id, agent_id, period, datetime.now(UTC))
    with_agents = bool(visit.identity.project.id) and visit.may("read")
    return visit.page(
        "usage/project.html",
        project=project,
        path=path,
        buckets=series.buckets,
        total=series.total,
        charts=charts_of(series.buckets),
        period=key,
        periods=PERIODS,
        agent=agent,
        suggestions=await suggested_names(visit) if with_agents else None,
    )


def _period(visit: Visit) -> tuple[str, Period]:
    key = visit.query("period")
    key = key if key in PERIODS else _DEFAULT_PERIOD
    return key, PERIODS[key]


async def _series(
    visit: Visit, project_id: str, agent_id: str, period: Period, now: datetime
) -> pb.GetUsageSeriesResponse:
    """Returns the usage of each slot of a period, oldest first; the last one is not over yet."""
    request = pb.GetUsageSeriesRequest(
        start_time=_stamp(bucket_start(now - period.slot * (period.slots - 1), period.slot)),
        end_time=_stamp(now),
        agent_id=agent_id,
        project_id=project_id,
        bucket_seconds=int(period.slot.total_seconds()),
    )
    return await visit.services.admin.GetUsageSeries(request)


def _stamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def charts_of(buckets: Sequence[pb.UsageBucket]) -> dict[str, str]:
    """Returns what the script draws, as JSON by the name of the chart.

    Each chart has ``times`` in seconds since 1970, and ``series`` with a label and a value for
    each of the times.
    """
    times = [bucket.start_time.seconds for bucket in buckets]

    def chart(**labels: str) -> str:
        series = [
            {"label": label, "values": [getattr(bucket.usage, field) for bucket in buckets]}
            for field, label in labels.items()
        ]
        return json.dumps({"times": times, "series": series})

    return {
        "Tokens": chart(prompt_tokens="Tokens in", completion_tokens="Tokens out"),
        "Runs and model calls": chart(run_count="Runs", step_count="Model calls"),
    }


VIEWS = (
    ViewRoute("/usage", show_usage),
    ViewRoute("/projects/{project_id}/usage", show_project_usage),
)
