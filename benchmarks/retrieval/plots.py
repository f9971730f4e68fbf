"""Bar charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#2b6cb0", "#68a0d8", "#b7791f", "#a0aec0", "#cbd5e0", "#2f855a")
_LEGEND = 125
_WIDTH = 860
_LEFT = 190
_BAR = 11
_GAP = 14
_TOP = 64


def bars(title: str, groups: Mapping[str, Mapping[str, float]], series: Sequence[str]) -> str:
    """Returns a chart of values from 0 to 1.

    Args:
        title: Title above the chart.
        groups: The values of each group by series.
        series: The series, in order.
    """
    scale = _WIDTH - _LEFT - 60
    height = _TOP + len(groups) * (len(series) * _BAR + _GAP) + 20
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, title, size=15),
    ]
    for number, name in enumerate(series):
        x = _LEFT + number * min(_LEGEND, (_WIDTH - _LEFT) // len(series))
        parts.append(f'<rect x="{x}" y="36" width="10" height="10" fill="{_COLOURS[number]}"/>')
        parts.append(_text(x + 15, 45, name))
    for tenth in range(0, 11, 2):
        at = _LEFT + scale * tenth / 10
        parts.append(
            f'<line x1="{at:.1f}" y1="{_TOP - 8}" x2="{at:.1f}" y2="{height - 16}"'
            ' stroke="#e2e8f0" stroke-width="1"/>'
        )
        parts.append(_text(at, height - 4, f"{tenth / 10:.1f}", anchor="middle"))
    y = float(_TOP)
    for group, values in groups.items():
        middle = y + len(series) * _BAR / 2 + 4
        parts.append(_text(_LEFT - 8, middle, group.replace("_", " "), anchor="end"))
        for number, name in enumerate(series):
            width = scale * values.get(name, 0.0)
            parts.append(
                f'<rect x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 2}"'
                f' fill="{_COLOURS[number]}"/>'
            )
            parts.append(_text(_LEFT + width + 4, y + 8, f"{values.get(name, 0.0):.2f}", size=8))
            y += _BAR
        y += _GAP
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' fill="#1a202c">{escape(text)}</text>'
    )
