"""The metrics of a process, in memory, and its tracer.

Metrics are plain objects in a registry that can be read at any time;
`strata.shared.metrics_endpoint` exports them. This module starts no thread and no server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from strata.shared.metric_names import (
    METRICS,
    PARTITION_LABEL,
    SHORT_BUCKETS_S,
    MetricDefinition,
    MetricKind,
)
from strata.shared.tracing.spans import Tracer


class Counter:
    """A metric that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Adds `amount`, which must not be negative."""
        self.value += amount


class Gauge:
    """A metric that can rise and fall."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float) -> None:
        """Adds `amount`, which may be negative."""
        self.value += amount

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = value


class Histogram:
    """Counts observations by upper bound; the last slot of `counts` is for larger values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SHORT_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Adds one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


class ReadGauge:
    """A gauge whose value is computed when it is read.

    Args:
        read: Returns the value.
    """

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        """The present value."""
        return self._read()


Metric = Counter | Gauge | ReadGauge | Histogram
_M = TypeVar("_M", Counter, Gauge, Histogram)
_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One metric of the registry with its name and labels."""

    name: str
    labels: Mapping[str, str]
    metric: Metric


class Telemetry:
    """A registry of metrics, keyed by name and labels.

    Keep the returned objects where the labels are known in advance; a look-up costs a tuple and a
    dictionary access. Labels must have few values: method names and status codes, never ids.

    A metric has one definition: other names, kinds and labels raise `ValueError`, and a metric that
    was added as another kind raises `TypeError`.

    Args:
        definitions: The metrics by name.
        tracer: See the attribute.

    Attributes:
        tracer: Begins the spans of the process; None if traces are off. Set it before services
            are built.
    """

    def __init__(
        self,
        definitions: Mapping[str, MetricDefinition] = METRICS,
        tracer: Tracer | None = None,
    ) -> None:
        self.definitions = definitions
        self.tracer = tracer
        self._metrics: dict[_Key, Metric] = {}
        self._partition = ""

    def of_partition(self, name: str) -> Telemetry:
        """Returns a view of this registry for the parts of a service that serve one partition.

        Metrics that are kept by partition get its name as a further label; others are the same.
        """
        view = Telemetry(self.definitions, self.tracer)
        view._metrics = self._metrics
        view._partition = name
        return view

    def counter(self, name: str, /, **labels: str) -> Counter:
        """Returns the counter of this name and these labels, made at first use."""
        return self._get(Counter, MetricKind.COUNTER, name, labels)

    def gauge(self, name: str, /, **labels: str) -> Gauge:
        """Returns the gauge of this name and these labels, made at first use."""
        return self._get(Gauge, MetricKind.GAUGE, name, labels)

    def histogram(self, name: str, /, **labels: str) -> Histogram:
        """Returns the histogram of this name and these labels, made at first use."""
        return self._get(Histogram, MetricKind.HISTOGRAM, name, labels)

    def read_gauge(self, name: str, read: Callable[[], float], /, **labels: str) -> None:
        """Adds a gauge whose value is computed when it is read; replaces an earlier one."""
        self._check(MetricKind.GAUGE, name, labels)
        self._metrics[self._key(name, labels)] = ReadGauge(read)

    def samples(self) -> Iterator[Sample]:
        """Yields all metrics."""
        for (name, labels), metric in list(self._metrics.items()):
            yield Sample(name, dict(labels), metric)

    def total(self, name: str, /, **labels: str) -> float:
        """Returns the sum over all counters and gauges of the name that have these labels."""
        return sum(
            sample.metric.value
            for sample in self.samples()
            if sample.name == name
            and not isinstance(sample.metric, Histogram)
            and labels.items() <= sample.labels.items()
        )

    def _get(
        self, metric_type: type[_M], kind: MetricKind, name: str, labels: Mapping[str, str]
    ) -> _M:
        key = self._key(name, labels)
        metric = self._metrics.get(key)
        if metric is None:
            definition = self._check(kind, name, labels)
            metric = Histogram(definition.buckets) if metric_type is Histogram else metric_type()
            self._metrics[key] = metric
        if not isinstance(metric, metric_type):
            raise TypeError(f"{name} is a {type(metric).__name__}, not a {metric_type.__name__}")
        return metric

    def _key(self, name: str, labels: Mapping[str, str]) -> _Key:
        items = sorted(labels.items())
        if self._partition and name in self.definitions and self.definitions[name].by_partition:
            items.append((PARTITION_LABEL, self._partition))
        return name, tuple(items)

    def _check(self, kind: MetricKind, name: str, labels: Mapping[str, str]) -> MetricDefinition:
        definition = self.definitions.get(name)
        if definition is None:
            raise ValueError(f"{name} is not defined in strata.shared.metric_names")
        if definition.kind is not kind:
            raise ValueError(f"{name} is a {definition.kind}, not a {kind}")
        if labels.keys() != set(definition.labels):
            raise ValueError(f"{name} has the labels {definition.labels}, not {tuple(labels)}")
        return definition
