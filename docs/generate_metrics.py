"""Writes the table of docs/guides/metrics.md from the definitions of the metrics.

    python docs/generate_metrics.py

A test compares the page with what this makes, so a metric cannot be added undocumented.
"""

from __future__ import annotations

from pathlib import Path

from strata.shared.metric_names import METRICS, PARTITION_LABEL, MetricDefinition

TARGET = Path(__file__).resolve().parent / "guides" / "metrics.md"
_HEAD = "| metric | labels | kind | meaning |\n|---|---|---|---|\n"


def document(page: str) -> str:
    """Returns a page with the present table, which is its end.

    Args:
        page: The page with any table.
    """
    before, head, _ = page.partition(_HEAD)
    return before + head + "".join(map(_row, METRICS.values()))


def _row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    if metric.by_partition:
        labels = f"{labels} (`{PARTITION_LABEL}`)".strip()
    return f"| `{metric.name}` | {labels} | {metric.kind} | {metric.help} |\n"


if __name__ == "__main__":
    TARGET.write_text(document(TARGET.read_text("utf-8")), "utf-8")
