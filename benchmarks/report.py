"""The report of the measurements, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

_WIDTH = 180


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: Name of the measurement.
        value: The value; the median of several samples.
        unit: Its unit.
        p95: The 95th percentile, if there are enough samples.
        floor: The floor that it is compared with, in the same unit.
        floor_name: Name of the floor.
        target: The largest acceptable value.
        samples: Number of samples.
        note: Explanation.
    """

    name: str
    value: float
    unit: str
    p95: float | None = None
    floor: float | None = None
    floor_name: str = ""
    target: float | None = None
    samples: int = 1
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.value <= self.target

    @property
    def ratio(self) -> float | None:
        """The ratio of the value to its floor."""
        return self.value / self.floor if self.floor else None


def describe_machine() -> dict[str, str | float | int]:
    """Returns the properties of this machine that matter for the results, such as its load."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": psutil.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
    }


@dataclass(slots=True)
class Report:
    """The results of one run."""

    machine: dict[str, str | float | int] = field(default_factory=describe_machine)
    rows: list[Row] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Adds lines."""
        self.rows.extend(rows)

    @property
    def missed(self) -> list[Row]:
        """Lines whose target is not met."""
        return [row for row in self.rows if row.met is False]

    def print(self) -> None:
        """Prints the machine and the table."""
        console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
        console.print(_table(self.rows))
        console.print(", ".join(f"{name} {value}" for name, value in self.machine.items()))

    def save(self, path: Path) -> None:
        """Writes everything as one JSON document."""
        rows = [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in self.rows]
        document = {"machine": self.machine, "rows": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("measured", "left"),
        ("value", "right"),
        ("p95", "right"),
        ("unit", "left"),
        ("floor", "right"),
        ("x", "right"),
        ("of", "left"),
        ("target", "right"),
        ("n", "right"),
        ("note", "left"),
    ):
        table.add_column(title, justify=justify, no_wrap=title != "note")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(
            row.name,
            _number(row.value),
            _number(row.p95),
            row.unit,
            _number(row.floor),
            _number(row.ratio),
            row.floor_name if row.floor is not None else "",
            _target(row),
            str(row.samples),
            row.note,
        )
    return table


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    return f"<= {_number(row.target)} {'met' if row.met else '[red]MISSED[/]'}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
