"""Converts token counts."""

from __future__ import annotations

from strata.api.common.v1 import usage_pb2
from strata.shared.convert.records import RecordTable
from strata.shared.usage import Usage

_USAGE = RecordTable(Usage, usage_pb2.Usage, computed=["total_tokens"])

usage_from_proto = _USAGE.from_proto
usage_to_proto = _USAGE.to_proto
