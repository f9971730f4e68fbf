"""How an agent's model is called and its window compacted, between the contract and the domain."""

from __future__ import annotations

from strata.agent_loop.convert import checks
from strata.agent_loop.domain.agents import CompactionSettings, ModelConfig
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.shared.errors import FieldViolation

MIN_CONTEXT_WINDOW = 4096
"""Blueprint §19."""

MIN_CLIP_CHARS, MAX_CLIP_CHARS = 200, 100_000
"""Below, a summary says nothing; above, it is none."""

_MAX_TOKENS = 10_000_000
_MAX_HANDLE = 256
_EFFORTS = ("", "none", "minimal", "low", "medium", "high", "xhigh")
_MODES = ("", "sliding_window", "all")


def model_from_proto(wire: pb.ModelConfig) -> ModelConfig:
    """Returns the domain form of a model configuration."""
    return ModelConfig(
        handle=wire.handle,
        context_window=wire.context_window or None,
        max_output_tokens=wire.max_output_tokens or None,
        temperature=wire.temperature if wire.HasField("temperature") else None,
        parallel_tool_calls=wire.parallel_tool_calls,
        reasoning_effort=wire.reasoning_effort or None,
        max_reasoning_tokens=wire.max_reasoning_tokens,
        structured_tools=wire.structured_tools if wire.HasField("structured_tools") else None,
    )


def model_to_proto(model: ModelConfig) -> pb.ModelConfig:
    """Returns the contract's form of a model configuration."""
    return pb.ModelConfig(
        handle=model.handle,
        context_window=model.context_window or 0,
        max_output_tokens=model.max_output_tokens or 0,
        temperature=model.temperature,
        parallel_tool_calls=model.parallel_tool_calls,
        reasoning_effort=model.reasoning_effort or "",
        max_reasoning_tokens=model.max_reasoning_tokens,
        structured_tools=model.structured_tools,
    )


def model_violations(wire: pb.ModelConfig) -> list[FieldViolation]:
    """Says what is wrong with a model configuration."""
    found = checks.text_violations("model.handle", wire.handle, _MAX_HANDLE)
    if wire.handle and not all(wire.handle.partition("/")):
        found.append(FieldViolation("model.handle", 'must look like "provider/model"'))
    if wire.context_window:
        found += checks.range_violations(
            "model.context_window", wire.context_window, MIN_CONTEXT_WINDOW, _MAX_TOKENS
        )
    for name in ("max_output_tokens", "max_reasoning_tokens"):
        found += checks.range_violations(f"model.{name}", getattr(wire, name), 0, _MAX_TOKENS)
    found += checks.range_violations("model.temperature", wire.temperature, 0.0, 2.0)
    if wire.reasoning_effort not in _EFFORTS:
        wanted = ", ".join(_EFFORTS[1:])
        found.append(FieldViolation("model.reasoning_effort", f"must be one of {wanted}"))
    return found


def compaction_from_proto(wire: pb.CompactionSettings) -> CompactionSettings:
    """Returns the domain form of compaction settings."""
    return CompactionSettings(
        wire.model, wire.prompt, wire.mode, wire.sliding_window_percentage, wire.clip_chars
    )


def compaction_to_proto(settings: CompactionSettings) -> pb.CompactionSettings:
    """Returns the contract's form of compaction settings."""
    return pb.CompactionSettings(
        model=settings.model,
        prompt=settings.prompt,
        mode=settings.mode,
        sliding_window_percentage=settings.sliding_window_percentage,
        clip_chars=settings.clip_chars,
    )


def compaction_of(request: pb.CompactConversationRequest) -> CompactionSettings:
    """Returns the settings that a request has for itself.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    checks.refuse(compaction_violations(request.compaction))
    return compaction_from_proto(request.compaction)


def compaction_violations(wire: pb.CompactionSettings) -> list[FieldViolation]:
    """Says what is wrong with compaction settings."""
    found = checks.text_violations("compaction.model", wire.model, _MAX_HANDLE)
    if wire.model and not all(wire.model.partition("/")):
        found.append(FieldViolation("compaction.model", 'must look like "provider/model"'))
    found += checks.text_violations("compaction.prompt", wire.prompt, checks.MAX_SYSTEM)
    if wire.mode not in _MODES:
        found.append(FieldViolation("compaction.mode", "must be sliding_window or all"))
    found += checks.range_violations(
        "compaction.sliding_window_percentage", wire.sliding_window_percentage, 0.0, 1.0
    )
    if wire.clip_chars:
        found += checks.range_violations(
            "compaction.clip_chars", wire.clip_chars, MIN_CLIP_CHARS, MAX_CLIP_CHARS
        )
    return found
