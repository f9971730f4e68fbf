"""Converts edits of memory blocks."""

from __future__ import annotations

from strata.api.common.v1 import run_event_pb2
from strata.shared.convert.records import RecordTable
from strata.shared.memory_edits import MemoryEdit

_EDITS = RecordTable(MemoryEdit, run_event_pb2.MemoryEdit)

edits_from_proto = _EDITS.tuple_from_proto
edits_to_proto = _EDITS.list_to_proto
