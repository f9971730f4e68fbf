"""The tables of `strata top`: runs, services, models, tools, indexes and the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata.cli.top.samples import Interval, Reading
from strata.shared import metric_names as names
from strata.shared.stop_reasons import FAILURES

NOTHING = "-"
_SHARE = 0.95
_WORDS_OF_PATH = 3
# Probes call health checks all the time, even on an idle server.
_HEALTH_CHECKS = "/grpc.health.v1.Health/"


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One table of the view.

    Attributes:
        title: Its title.
        columns: Its headings.
        rows: Its cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def live_tables(before: Sequence[Reading], after: Sequence[Reading]) -> list[LiveTable]:
    """Returns the tables for what happened between two readings; without those that are empty."""
    interval = Interval(before, after)
    tables = [
        _runs(interval),
        _services(interval),
        _models(interval),
        _tools(interval),
        _indexes(interval),
        _database(interval),
        _unreachable(after),
    ]
    return [table for table in tables if table.rows]


def _runs(interval: Interval) -> LiveTable:
    active = interval.present(names.RUNS_ACTIVE, "kind")
    finished = interval.rates(names.RUNS_FINISHED, "kind")
    failed: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for reason in FAILURES:
        for kind, rate in interval.rates(names.RUNS_FINISHED, "kind", stop_reason=reason).items():
            failed[kind] += rate
    waits = interval.quantiles(names.RUN_WAIT_SECONDS, _SHARE, "kind")
    durations = interval.quantiles(names.RUN_SECONDS, _SHARE, "kind")
    # Every gateway reports the same queue.
    queued = interval.highest(names.RUNS_QUEUED).get((), 0.0)
    rows = [
        (
            kind[0],
            _count(active[kind]),
            _rate(finished.get(kind)),
            _rate(failed.get(kind)),
            _seconds(waits.get(kind)),
            _seconds(durations.get(kind)),
        )
        for kind in sorted(active)
    ]
    columns = ("runs", "active", "ended/s", "errors/s", "wait p95", "time p95")
    return LiveTable(f"Runs, {_count(queued)} in the queue", columns, rows)


def _services(interval: Interval) -> LiveTable:
    calls, failed = _by_service(
        _without_health_checks(interval.rates(names.RPC_REQUESTS, "method", "code"))
    )
    running: defaultdict[str, float] = defaultdict(float)
    in_flight = _without_health_checks(interval.present(names.RPC_IN_FLIGHT, "method"))
    for (method,), value in in_flight.items():
        running[_service_of(method)] += value
    slow = _slowest_by_service(interval)
    rows = [
        (
            service,
            _rate(calls[service]),
            _rate(failed.get(service, 0.0)),
            _count(running.get(service, 0.0)),
            _seconds(slow.get(service, (None, ""))[0]),
            slow.get(service, (None, NOTHING))[1],
        )
        for service in sorted(calls)
    ]
    columns = ("service", "calls/s", "failed/s", "running", "slowest p95", "slowest method")
    return LiveTable("Services", columns, rows)


def _models(interval: Interval) -> LiveTable:
    calls = interval.rates(names.MODEL_CALLS, "model")
    good = interval.rates(names.MODEL_CALLS, "model", outcome="ok")
    retries = interval.rates(names.MODEL_RETRIES, "model")
    tokens = interval.rates(names.MODEL_TOKENS, "model", kind="completion")
    first = interval.quantiles(names.MODEL_FIRST_EVENT_SECONDS, _SHARE, "model")
    durations = interval.quantiles(names.MODEL_CALL_SECONDS, _SHARE, "model")
    rows = [
        (
            model[0],
            _rate(calls[model]),
            _rate(calls[model] - good.get(model, 0.0)),
            _rate(retries.get(model)),
            _rate(tokens.get(model)),
            _seconds(first.get(model)),
            _seconds(durations.get(model)),
        )
        for model in sorted(calls)
    ]
    columns = ("model", "calls/s", "not ok/s", "retries/s", "tokens/s", "first p95", "time p95")
    return LiveTable("Models", columns, rows)


def _tools(interval: Interval) -> LiveTable:
    calls = interval.rates(names.TOOL_CALLS, "type", "tool")
    good = interval.rates(names.TOOL_CALLS, "type", "tool", status="OK")
    durations = interval.quantiles(names.TOOL_CALL_SECONDS, _SHARE, "type", "tool")
    rows = [
        (
            tool[1] or f"({tool[0]})",
            _rate(calls[tool]),
            _rate(calls[tool] - good.get(tool, 0.0)),
            _seconds(durations.get(tool)),
        )
        for tool in sorted(calls)
    ]
    return LiveTable("Tools", ("tool", "calls/s", "not ok/s", "time p95"), rows)


def _indexes(interval: Interval) -> LiveTable:
    # Every replica reports the same index.
    waiting = interval.highest(names.INDEX_WAITING, "collection")
    lag = interval.highest(names.INDEX_LAG_SECONDS, "collection")
    searches = interval.rates(f"{names.SEARCH_SECONDS}_count", "collection")
    durations = interval.quantiles(names.SEARCH_SECONDS, _SHARE, "collection")
    rows = [
        (
            index[0],
            _count(waiting[index]),
            _seconds(lag.get(index)),
            _rate(searches.get(index)),
            _seconds(durations.get(index)),
        )
        for index in sorted(waiting)
    ]
    columns = ("index", "waiting", "lag", "searches/s", "search p95")
    return LiveTable("Indexes", columns, rows)


def _database(interval: Interval) -> LiveTable:
    size = interval.present(names.DATABASE_POOL_SIZE, "service", "role")
    used = interval.present(names.DATABASE_CONNECTIONS_IN_USE, "service", "role")
    waits = interval.quantiles(names.DATABASE_WAIT_SECONDS, _SHARE, "service", "role")
    rows = [
        (
            " ".join(pool),
            f"{_count(used.get(pool, 0.0))}/{_count(size[pool])}",
            _seconds(waits.get(pool)),
        )
        for pool in sorted(size)
    ]
    return LiveTable("Database", ("connections", "in use", "wait p95"), rows)


def _unreachable(readings: Sequence[Reading]) -> LiveTable:
    rows = [(reading.target, reading.problem) for reading in readings if reading.problem]
    return LiveTable("Not reached", ("metrics port", "problem"), rows)


def _by_service(
    rates: Mapping[tuple[str, ...], float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the rate of all calls, and of those that did not end well, by service."""
    calls: defaultdict[str, float] = defaultdict(float)
    failed: defaultdict[str, float] = defaultdict(float)
    for (method, code), rate in rates.items():
        calls[_service_of(method)] += rate
        if code != "OK":
            failed[_service_of(method)] += rate
    return dict(calls), dict(failed)


def _slowest_by_service(interval: Interval) -> dict[str, tuple[float, str]]:
    """Returns the highest 95 % of a method of each service, and the name of the method."""
    slowest: dict[str, tuple[float, str]] = {}
    quantiles = _without_health_checks(interval.quantiles(names.RPC_SECONDS, _SHARE, "method"))
    for (method,), seconds in quantiles.items():
        service = _service_of(method)
        if seconds > slowest.get(service, (-1.0, ""))[0]:
            slowest[service] = (seconds, method.rpartition("/")[2])
    return slowest


def _without_health_checks(
    values: Mapping[tuple[str, ...], float],
) -> dict[tuple[str, ...], float]:
    """Returns the values of RPCs, by method first, without health checks."""
    return {key: value for key, value in values.items() if not key[0].startswith(_HEALTH_CHECKS)}


def _service_of(method: str) -> str:
    """Returns the service of a method: ``recall`` for ``/strata.api.recall.v1.X/Y``."""
    words = method.lstrip("/").split(".")
    return (
        words[2] if method.startswith("/strata.api.") and len(words) > _WORDS_OF_PATH else "other"
    )


def _count(value: float) -> str:
    return f"{value:.0f}"


def _rate(value: float | None) -> str:
    return NOTHING if not value else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
