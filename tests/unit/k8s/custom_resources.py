"""Schemas of custom resources, which the schemas of Kubernetes do not contain."""

from __future__ import annotations

from typing import Any


def _strict(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}

POD_MONITOR_SCHEMA = _strict(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_strict(("name",), name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_strict(
        ("podMetricsEndpoints", "selector"),
        jobLabel=_TEXT,
        selector=_strict(("matchLabels",), matchLabels=_LABELS),
        podMetricsEndpoints={
            "type": "array",
            "minItems": 1,
            "items": _strict(("port",), port=_TEXT, path=_TEXT),
        },
    ),
)
"""The part of the Prometheus operator's schema (monitoring.coreos.com/v1, 0.85) that is used."""
