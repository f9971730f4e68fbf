"""Reads a metrics port as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from strata.shared.metrics_endpoint import METRICS_PATH


class Scrape:
    """The samples of one response of a metrics port.

    Args:
        text: The body, in the text format of Prometheus.
    """

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: list[Sample] = [
            sample for family in self.families.values() for sample in family.samples
        ]

    def matching(self, name: str, **labels: str) -> Iterator[Sample]:
        """Yields the samples of a name that have these labels."""
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples of a name that have these labels; 0 for none."""
        return sum(sample.value for sample in self.matching(name, **labels))


async def scrape(base_url: str) -> Scrape:
    """Returns the current metrics of a port."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.get(f"{base_url}{METRICS_PATH}")
    assert response.status_code == 200, response.text
    return Scrape(response.text)
