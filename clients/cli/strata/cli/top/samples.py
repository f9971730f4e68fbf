"""Reads metrics ports, and compares the values of two times."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from strata.shared.metrics_endpoint import METRICS_PATH

_TIMEOUT_S = 5.0

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples of one metrics port.

    Attributes:
        target: Its address.
        time_s: When it was read, by the clock of the event loop.
        samples: The values by name and labels; empty if it did not answer.
        problem: Why it did not answer; empty if it did.
    """

    target: str
    time_s: float
    samples: Samples = field(default_factory=dict)
    problem: str = ""


async def read_targets(targets: Sequence[str]) -> list[Reading]:
    """Reads all ports at once.

    Args:
        targets: Base URLs, ``http://127.0.0.1:7690``.
    """
    async with httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        return await asyncio.gather(*(_read(client, target) for target in targets))


async def _read(client: httpx2.AsyncClient, target: str) -> Reading:
    now = asyncio.get_running_loop().time()
    try:
        response = await client.get(f"{target}{METRICS_PATH}")
        if response.status_code != httpx2.codes.OK:
            return Reading(target, now, problem=f"answers {response.status_code}")
        return Reading(target, now, parse_samples(response.text))
    except (httpx2.HTTPError, ValueError) as error:
        return Reading(target, now, problem=f"does not answer ({type(error).__name__})")


def parse_samples(text: str) -> Samples:
    """Returns the samples of a response in the text format of Prometheus.

    Raises:
        ValueError: The text has another form.
    """
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Interval:
    """The changes between two readings of the same ports.

    Args:
        before: The earlier reading of each port.
        after: The later reading of each port, in the same order.
    """

    def __init__(self, before: Sequence[Reading], after: Sequence[Reading]) -> None:
        # A port that did not answer before has no rates yet.
        self._pairs = [
            (earlier, later) for earlier, later in zip(before, after, strict=True) if later.samples
        ]

    def present(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """Returns the present values of a gauge, summed by labels."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for _, later in self._pairs:
            for (sample, labels), value in later.samples.items():
                if sample == name:
                    sums[_key(labels, by)] += value
        return dict(sums)

    def highest(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """Returns the highest present value of a gauge that several ports report, by labels."""
        highest_values: dict[tuple[str, ...], float] = {}
        for _, later in self._pairs:
            for (sample, labels), value in later.samples.items():
                if sample == name:
                    key = _key(labels, by)
                    highest_values[key] = max(highest_values.get(key, -math.inf), value)
        return highest_values

    def rates(self, name: str, *by: str, **matching: str) -> dict[tuple[str, ...], float]:
        """Returns how much a counter grew per second, summed by labels."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for earlier, later in self._pairs:
            seconds = later.time_s - earlier.time_s
            for (sample, labels), value in later.samples.items():
                if sample == name and matching.items() <= labels:
                    grown = _growth(earlier, sample, labels, value)
                    sums[_key(labels, by)] += grown / seconds if seconds > 0 else 0.0
        return dict(sums)

    def quantiles(self, name: str, share: float, *by: str) -> dict[tuple[str, ...], float]:
        """Returns a quantile of a histogram's values between the two samples, by labels.

        As `histogram_quantile` of Prometheus does, it assumes that values are spread evenly within
        a bucket. Without an observation there is no quantile.
        """
        buckets: defaultdict[tuple[str, ...], defaultdict[float, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for earlier, later in self._pairs:
            for (sample, labels), value in later.samples.items():
                if sample == f"{name}_bucket":
                    grown = _growth(earlier, sample, labels, value)
                    buckets[_key(labels, by)][float(dict(labels)["le"])] += grown
        computed = {key: quantile(counts, share) for key, counts in buckets.items()}
        return {key: value for key, value in computed.items() if value is not None}


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Returns a quantile of a histogram; None without observations.

    Args:
        counts: Observations up to each upper bound, the last of which is infinite.
        share: 0.95 for the value below which 95 % are.
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    target_count = share * total
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = counts[bound]
        if count >= target_count:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (target_count - below) / (count - below)
        lower, below = bound, count
    return lower


def _growth(earlier: Reading, name: str, labels: Labels, value: float) -> float:
    before = earlier.samples.get((name, labels), 0.0) if earlier.samples else value
    # A process that was restarted counts from zero.
    return value - before if value >= before else value


def _key(labels: Labels, by: Sequence[str]) -> tuple[str, ...]:
    values = dict(labels)
    return tuple(values.get(label, "") for label in by)
