"""Converts requests and responses of RenderMemory and LintMemory."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.core_memory.convert.blocks import block_to_proto, stamp
from strata.core_memory.domain.lint import Finding, LintRule
from strata.core_memory.domain.prompt.compilation import Compiled, CompileQuery
from strata.core_memory.domain.prompt.memory_section import MemoryForm
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable

_RULES = EnumTable(pb.LintRule, LintRule)


def to_render(message: pb.RenderMemoryRequest) -> CompileQuery:
    """Returns the query of a RenderMemory request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    as_of = checks.optional_time(message, "as_of_time")
    checks.done()
    form = MemoryForm(blocks=True, line_numbers=message.line_numbers)
    return CompileQuery(message.agent_id, form, as_of=as_of)


def to_lint(message: pb.LintMemoryRequest) -> tuple[str, str]:
    """Returns the agent or the block of a LintMemory request; the other one is empty."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id", optional=True)
    checks.id(message.block_id, "block", "block_id", optional=True)
    if bool(message.agent_id) == bool(message.block_id):
        checks.fail("agent_id", "or block_id is required, but not both")
    checks.done()
    return message.agent_id, message.block_id


def rendered_to_proto(compiled: Compiled) -> pb.RenderMemoryResponse:
    """Returns the rendered memory as a response."""
    last = compiled.last_modified
    return pb.RenderMemoryResponse(
        text=compiled.section or "",
        last_modified_time=None if last is None else stamp(last),
        blocks=[block_to_proto(block) for block in compiled.blocks],
    )


def findings_to_proto(findings: Sequence[Finding]) -> pb.LintMemoryResponse:
    """Returns lint findings as a response."""
    return pb.LintMemoryResponse(findings=[_finding_to_proto(finding) for finding in findings])


def _finding_to_proto(finding: Finding) -> pb.LintFinding:
    return pb.LintFinding(
        rule=_RULES.to_proto[finding.rule],
        block_id=finding.block_id,
        label=finding.label,
        line=finding.line,
        text=finding.text,
        message=finding.message,
        other_label=finding.other_label,
        other_line=finding.other_line,
    )
