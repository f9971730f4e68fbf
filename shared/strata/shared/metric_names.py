"""Every metric of Strata: its name, kind, labels and meaning.

Names follow the conventions of Prometheus: the prefix ``strata_``, base units, and ``_total`` for
counters. Labels have few values. A label never holds the id of a project, an agent, a run, a
conversation or a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """The kinds of metrics, by their names in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


SHORT_BUCKETS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
)  # fmt: skip
"""Upper bounds in seconds for calls between services, statements and searches."""
LONG_BUCKETS_S: Final = (
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 900.0,
)  # fmt: skip
"""Upper bounds in seconds for what waits for a model or a tool."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """The definition of a metric.

    Attributes:
        name: The name that Prometheus stores.
        kind: Its kind.
        help: The counted or measured quantity, as one sentence.
        labels: Names of its labels.
        buckets: Upper bounds of a histogram; empty for other kinds.
        by_partition: Also has the label `PARTITION_LABEL`, if the service has several partitions.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    by_partition: bool = False


PARTITION_LABEL: Final = "partition"
"""Label of the partition of a project; only where a service has several."""

_defined: dict[str, MetricDefinition] = {}


def _define(definition: MetricDefinition) -> str:
    if definition.name in _defined:
        raise ValueError(f"{definition.name} is defined twice")
    _defined[definition.name] = definition
    return definition.name


def _counter(name: str, text: str, *labels: str) -> str:
    return _define(MetricDefinition(name, MetricKind.COUNTER, text, labels))


def _gauge(name: str, text: str, *labels: str, by_partition: bool = False) -> str:
    return _define(
        MetricDefinition(name, MetricKind.GAUGE, text, labels, by_partition=by_partition)
    )


def _histogram(
    name: str, buckets: tuple[float, ...], text: str, *labels: str, by_partition: bool = False
) -> str:
    return _define(
        MetricDefinition(name, MetricKind.HISTOGRAM, text, labels, buckets, by_partition)
    )


RPC_REQUESTS: Final = _counter(
    "strata_rpc_requests_total", "RPCs that ended, by gRPC status code.", "method", "code"
)
RPC_IN_FLIGHT: Final = _gauge("strata_rpc_in_flight", "RPCs that are being served.", "method")
RPC_SECONDS: Final = _histogram(
    "strata_rpc_duration_seconds",
    SHORT_BUCKETS_S,
    "Time from the start of an RPC to its end, in seconds.",
    "method",
)
CLOCK_SKEW_SECONDS: Final = _gauge(
    "strata_clock_skew_seconds",
    "Largest difference to the clock of a host of a service in the last minute, in seconds;"
    " positive where the other clock is ahead.",
    "peer",
)

TRACE_SPANS: Final = _counter(
    "strata_trace_spans_total",
    "Spans of traces by outcome: exported, failed (the collector did not take them) or"
    " dropped (too many waited).",
    "outcome",
)

RUNS_ACTIVE: Final = _gauge(
    "strata_runs_active", "Runs that this gateway executes.", "kind", by_partition=True
)
RUNS_QUEUED: Final = _gauge(
    "strata_runs_queued",
    "Runs that are due and wait for a slot or for their conversation, 10000 at most; every gateway"
    " reports the same runs.",
    by_partition=True,
)
RUNS_FINISHED: Final = _counter(
    "strata_runs_finished_total",
    "Runs that ended in this gateway; without those that were cancelled in the queue.",
    "kind",
    "stop_reason",
)
RUN_SECONDS: Final = _histogram(
    "strata_run_duration_seconds",
    LONG_BUCKETS_S,
    "Time from when a run was due to its end, in seconds.",
    "kind",
)
RUN_WAIT_SECONDS: Final = _histogram(
    "strata_run_wait_seconds",
    LONG_BUCKETS_S,
    "Time from when a run was due to its first dispatch, in seconds.",
    "kind",
)

MODEL_CALLS: Final = _counter(
    "strata_model_calls_total",
    "Calls of chat models that ended: ok, cancelled, or the kind of the error.",
    "provider",
    "model",
    "outcome",
)
MODEL_RETRIES: Final = _counter(
    "strata_model_retries_total",
    "Requests to a provider that failed before their first event and were sent again, by the kind"
    " of the error.",
    "provider",
    "model",
    "error",
)
MODEL_CALL_SECONDS: Final = _histogram(
    "strata_model_call_duration_seconds",
    LONG_BUCKETS_S,
    "Time of a call of a chat model with its retries, in seconds.",
    "provider",
    "model",
)
MODEL_FIRST_EVENT_SECONDS: Final = _histogram(
    "strata_model_first_event_seconds",
    LONG_BUCKETS_S,
    "Time from the start of a call of a chat model to the first piece of its reply, in seconds.",
    "provider",
    "model",
)
MODEL_TOKENS: Final = _counter(
    "strata_model_tokens_total",
    "Tokens of replies that ended: prompt and completion, and of those cached_input, cache_write"
    " and reasoning.",
    "provider",
    "model",
    "kind",
)

TOOL_CALLS: Final = _counter(
    "strata_tool_calls_total",
    "Tool calls that were run and ended, by type of the tool; the name only of built-in tools."
    " Calls that the agent loop refuses are not counted, such as those of a tool that the model"
    " invented.",
    "type",
    "tool",
    "status",
)
TOOL_CALL_SECONDS: Final = _histogram(
    "strata_tool_call_duration_seconds",
    LONG_BUCKETS_S,
    "Time of a tool call, in seconds.",
    "type",
    "tool",
)
SANDBOX_ISOLATION: Final = _gauge(
    "strata_sandbox_isolation",
    "1 for the isolation of the sandbox in force, 0 for the others.",
    "isolation",
)
SANDBOX_CALLS: Final = _counter(
    "strata_sandbox_calls_total", "Calls in the sandbox that ended.", "isolation", "status"
)
SANDBOX_RUNNING: Final = _gauge("strata_sandbox_calls_running", "Calls that run in the sandbox.")
SANDBOX_SPARES: Final = _gauge(
    "strata_sandbox_spare_processes", "Processes of the sandbox that wait for a call."
)

COMPACTIONS: Final = _counter(
    "strata_compactions_total",
    "Compactions of context windows, by what wrote the summary.",
    "summary",
)
COMPACTION_SECONDS: Final = _histogram(
    "strata_compaction_duration_seconds",
    LONG_BUCKETS_S,
    "Time of a compaction, in seconds.",
)

SEARCH_SECONDS: Final = _histogram(
    "strata_search_duration_seconds",
    SHORT_BUCKETS_S,
    "Time of a search, in seconds.",
    "collection",
)
RERANKS: Final = _counter(
    "strata_reranks_total", "Searches whose candidates were given to the reranker.", "outcome"
)
RERANK_SECONDS: Final = _histogram(
    "strata_rerank_duration_seconds",
    SHORT_BUCKETS_S,
    "Time that searches waited for the reranker, in seconds.",
)
INDEX_WAITING: Final = _gauge(
    "strata_index_waiting",
    "Texts that are not indexed yet, 100000 at most.",
    "collection",
    by_partition=True,
)
INDEX_LAG_SECONDS: Final = _gauge(
    "strata_index_lag_seconds",
    "Age of the oldest text that is not indexed yet, in seconds.",
    "collection",
    by_partition=True,
)

DATABASE_CONNECTIONS: Final = _gauge(
    "strata_database_connections",
    "Open connections to PostgreSQL.",
    "service",
    "role",
    by_partition=True,
)
DATABASE_CONNECTIONS_IN_USE: Final = _gauge(
    "strata_database_connections_in_use",
    "Connections to PostgreSQL that are in use.",
    "service",
    "role",
    by_partition=True,
)
DATABASE_POOL_SIZE: Final = _gauge(
    "strata_database_pool_size",
    "Maximum number of connections to PostgreSQL.",
    "service",
    "role",
    by_partition=True,
)
DATABASE_WAIT_SECONDS: Final = _histogram(
    "strata_database_connection_wait_seconds",
    SHORT_BUCKETS_S,
    "Time until a connection to PostgreSQL was free or opened, in seconds.",
    "service",
    "role",
    by_partition=True,
)

METRICS: Final[Mapping[str, MetricDefinition]] = _defined
"""All metrics by name."""
