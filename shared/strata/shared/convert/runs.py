"""Converts the reasons why runs end."""

from __future__ import annotations

from strata.api.common.v1 import run_event_pb2
from strata.shared.convert.enums import EnumTable
from strata.shared.stop_reasons import StopReason

STOP_REASONS = EnumTable(run_event_pb2.StopReason, StopReason)
