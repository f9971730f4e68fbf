"""Converts requests and responses of `ContextService`."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.convert.blocks import (
    MAX_NAME_CHARS,
    actor,
    block_to_proto,
    new_block,
    stamp,
)
from strata.core_memory.domain.blocks import (
    Block,
)
from strata.core_memory.domain.commands import (
    LimitPrompt,
    PrepareAgent,
    ReleaseAgent,
    Released,
    ShareBlocks,
)
from strata.core_memory.domain.prompt.compilation import (
    DEFAULT_LIMITS,
    MAX_FILES_OPEN,
    MAX_VIEW_CHARS,
    Compiled,
    CompileQuery,
    FileLimits,
)
from strata.core_memory.domain.prompt.limits import NO_LIMIT, PromptLimit
from strata.core_memory.domain.prompt.memory_section import MemoryForm
from strata.core_memory.domain.prompt.tool_rules import ToolRule
from strata.shared.checks import Checks
from strata.shared.convert.messages import labels_to_proto
from strata.shared.convert.tools import RULE_TYPES

MAX_BLOCKS_OF_AGENT = 100
MAX_TOOL_RULES = 1_000


def to_share(message: context_pb.ShareBlocksRequest) -> ShareBlocks:
    """Returns the command of a ShareBlocks request."""
    checks = Checks()
    agent_ids = checks.ids(message.agent_ids, "agent", "agent_ids")
    block_ids = checks.ids(message.block_ids, "block", "block_ids")
    checks.done()
    return ShareBlocks(tuple(agent_ids), tuple(block_ids))


def to_compile(message: context_pb.CompileRequest) -> CompileQuery:
    """Returns the query of a Compile request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.text(message.if_revision, "if_revision", most=MAX_NAME_CHARS)
    if len(message.tool_rules) > MAX_TOOL_RULES:
        checks.fail("tool_rules", f"must not be more than {MAX_TOOL_RULES}")
    rules: list[ToolRule] = []
    for index, rule in enumerate(message.tool_rules[:MAX_TOOL_RULES]):
        kind = RULE_TYPES.from_proto.get(rule.type)
        if kind is None:
            checks.fail(f"tool_rules[{index}].type", "must be one of the known types")
        else:
            children = tuple(rule.children)
            rules.append(ToolRule(kind, rule.tool_name, children, rule.max_count_limit))
    limits = FileLimits(
        max_open=message.max_files_open or DEFAULT_LIMITS.max_open,
        view_chars=message.per_file_view_window_char_limit or DEFAULT_LIMITS.view_chars,
    )
    checks.number(limits.max_open, "max_files_open", least=1, most=MAX_FILES_OPEN)
    checks.number(
        limits.view_chars, "per_file_view_window_char_limit", least=1, most=MAX_VIEW_CHARS
    )
    as_of = checks.optional_time(message, "as_of_time")
    checks.done()
    form = MemoryForm.of(message.agent_type, line_numbers=message.line_numbers)
    return CompileQuery(message.agent_id, form, tuple(rules), message.if_revision, limits, as_of)


def to_fit(message: context_pb.CloseFilesToFitRequest) -> tuple[CompileQuery, int, bool]:
    """Returns the query, the maximum in bytes, and the preview flag of CloseFilesToFit."""
    checks = Checks()
    if message.compile.if_revision or message.compile.HasField("as_of_time"):
        checks.fail("compile", "must set neither if_revision nor as_of_time")
    max_bytes = checks.number(message.max_bytes, "max_bytes", least=0, most=2**62)
    checks.done()
    return to_compile(message.compile), max_bytes, message.preview


def to_prepare(message: context_pb.PrepareAgentRequest) -> PrepareAgent:
    """Returns the command of a PrepareAgent request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if len(message.blocks) + len(message.block_ids) > MAX_BLOCKS_OF_AGENT:
        checks.fail("blocks", f"must not be more than {MAX_BLOCKS_OF_AGENT}, with block_ids")
    if len(set(message.block_ids)) < len(message.block_ids):
        checks.fail("block_ids", "must not name a block twice")
    blocks = [
        new_block(checks, block, f"blocks[{index}]") for index, block in enumerate(message.blocks)
    ]
    checks.ids(message.block_ids, "block", "block_ids")
    if message.follows_agent_id:
        checks.id(message.follows_agent_id, "agent", "follows_agent_id")
    limit = _prompt_limit(checks, message, "prompt_limit")
    revision = checks.number(message.agent_revision, "agent_revision", least=0, most=2**62)
    checks.done()
    return PrepareAgent(
        actor(),
        message.agent_id,
        tuple(blocks),
        tuple(message.block_ids),
        limit,
        revision,
        message.follows_agent_id,
    )


def to_limit_prompt(message: context_pb.LimitPromptRequest) -> LimitPrompt:
    """Returns the command of a LimitPrompt request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    limit = _prompt_limit(checks, message, "prompt_limit")
    revision = checks.number(message.agent_revision, "agent_revision", least=0, most=2**62)
    checks.done()
    return LimitPrompt(message.agent_id, limit, message.only_raise, revision)


def to_release(message: context_pb.ReleaseAgentRequest) -> ReleaseAgent:
    """Returns the command of a ReleaseAgent request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.done()
    return ReleaseAgent(actor(reason="the agent was deleted"), message.agent_id)


def _prompt_limit(
    checks: Checks,
    message: context_pb.PrepareAgentRequest | context_pb.LimitPromptRequest,
    field: str,
) -> PromptLimit:
    if not message.HasField("prompt_limit"):
        return NO_LIMIT
    limit = message.prompt_limit
    checks.number(limit.bytes, f"{field}.bytes", least=0, most=2**62)
    checks.number(limit.files_bytes, f"{field}.files_bytes", least=0, most=2**62)
    checks.number(limit.max_files_open, f"{field}.max_files_open", least=0, most=MAX_FILES_OPEN)
    view_chars = limit.per_file_view_window_char_limit
    checks.number(
        view_chars, f"{field}.per_file_view_window_char_limit", least=0, most=MAX_VIEW_CHARS
    )
    return PromptLimit(
        limit.bytes, limit.line_numbers, limit.files_bytes, limit.max_files_open, view_chars
    )


def compiled_to_proto(compiled: Compiled) -> context_pb.CompileResponse:
    """Returns the memory section as a response, or `not_changed` if the caller has it."""
    last = compiled.last_modified
    return context_pb.CompileResponse(
        not_changed=compiled.section is None,
        revision=compiled.revision,
        memory_section=compiled.section or "",
        last_modified_time=None if last is None else stamp(last),
        block_chars=compiled.sizes,
        block_revisions={block.label: block.revision for block in compiled.blocks},
        has_folders=compiled.has_folders,
        tainted_blocks=[
            context_pb.TaintedBlock(label=block.label, taint=labels_to_proto(block.taint))
            for block in compiled.blocks
            if block.taint and compiled.shown
        ],
    )


def prepared_to_proto(blocks: Sequence[Block]) -> context_pb.PrepareAgentResponse:
    """Returns the blocks of a prepared agent."""
    return context_pb.PrepareAgentResponse(blocks=[block_to_proto(block) for block in blocks])


def limited_to_proto(before: PromptLimit) -> context_pb.LimitPromptResponse:
    """Returns the previous limit of an agent as a response."""
    response = context_pb.LimitPromptResponse()
    if before.bytes is not None:
        response.previous_limit.bytes = before.bytes
        response.previous_limit.line_numbers = before.line_numbers
        response.previous_limit.files_bytes = before.files_bytes
        response.previous_limit.max_files_open = before.max_open
        response.previous_limit.per_file_view_window_char_limit = before.view_chars
    return response


def released_to_proto(released: Released) -> context_pb.ReleaseAgentResponse:
    """Returns the counts of deleted and detached blocks as a response."""
    return context_pb.ReleaseAgentResponse(
        deleted_blocks=released.deleted, detached_blocks=released.detached
    )
