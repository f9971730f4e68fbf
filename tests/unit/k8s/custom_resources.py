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

_DURATION = {"type": "string", "pattern": "^[0-9]+(ms|[smhdwy])$"}
PROMETHEUS_RULE_SCHEMA = _strict(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=_strict(("name",), name=_TEXT, namespace=_TEXT, labels=_LABELS),
    spec=_strict(
        ("groups",),
        groups={
            "type": "array",
            "minItems": 1,
            "items": _strict(
                ("name", "rules"),
                name=_TEXT,
                rules={
                    "type": "array",
                    "minItems": 1,
                    "items": _strict(
                        ("alert", "expr"),
                        alert=_TEXT,
                        expr=_TEXT,
                        labels=_LABELS,
                        annotations=_LABELS,
                        # The name is a keyword of Python.
                        **{"for": _DURATION},
                    ),
                },
            ),
        },
    ),
)
"""The part of its schema of alert rules that is used."""

SCHEMAS = {"PodMonitor": POD_MONITOR_SCHEMA, "PrometheusRule": PROMETHEUS_RULE_SCHEMA}
"""The schemas by kind."""
