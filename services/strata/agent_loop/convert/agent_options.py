"""Converts and validates model settings, compaction settings and message packaging."""

from __future__ import annotations

from strata.agent_loop.convert import checks
from strata.agent_loop.domain.agent.agents import CompactionSettings, MessagePackaging, ModelConfig
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import FieldViolation

MIN_CONTEXT_WINDOW = 4096
"""Fewest tokens of a context window."""

MIN_CLIP_CHARS, MAX_CLIP_CHARS = 200, 100_000
"""Limits of the length of a summary."""

MAX_FALLBACK_MODELS = 5
"""A run may wait for each of them until its timeout; more would take too long."""

_MAX_TOKENS = 10_000_000
_MAX_HANDLE = 256
_EFFORTS = ("", "none", "minimal", "low", "medium", "high", "xhigh")
_MAX_LOCATION = 256
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
        fallback_models=tuple(wire.fallback_models),
        enable_reasoner=wire.enable_reasoner if wire.HasField("enable_reasoner") else None,
        put_inner_thoughts_in_kwargs=wire.put_inner_thoughts_in_kwargs,
    )


def model_to_proto(model: ModelConfig) -> pb.ModelConfig:
    """Returns a model configuration as a proto."""
    return pb.ModelConfig(
        handle=model.handle,
        context_window=model.context_window or 0,
        max_output_tokens=model.max_output_tokens or 0,
        temperature=model.temperature,
        parallel_tool_calls=model.parallel_tool_calls,
        reasoning_effort=model.reasoning_effort or "",
        max_reasoning_tokens=model.max_reasoning_tokens,
        structured_tools=model.structured_tools,
        fallback_models=model.fallback_models,
        enable_reasoner=model.enable_reasoner,
        put_inner_thoughts_in_kwargs=model.put_inner_thoughts_in_kwargs,
    )


def model_violations(wire: pb.ModelConfig, field: str = "model") -> list[FieldViolation]:
    """Returns violations in a model configuration; `field` is its place in the request."""
    violations = _handle_violations(f"{field}.handle", wire.handle)
    if len(wire.fallback_models) > MAX_FALLBACK_MODELS:
        problem = f"must hold at most {MAX_FALLBACK_MODELS} models"
        violations.append(FieldViolation(f"{field}.fallback_models", problem))
    earlier = {wire.handle}
    for index, handle in enumerate(wire.fallback_models[:MAX_FALLBACK_MODELS]):
        path = f"{field}.fallback_models[{index}]"
        if not handle:
            violations.append(FieldViolation(path, "must be the handle of a model"))
        elif handle in earlier:
            problem = f"must be another model than those before it; {handle} is named twice"
            violations.append(FieldViolation(path, problem))
        else:
            violations += _handle_violations(path, handle)
        earlier.add(handle)
    if wire.context_window:
        violations += checks.range_violations(
            f"{field}.context_window", wire.context_window, MIN_CONTEXT_WINDOW, _MAX_TOKENS
        )
    for name in ("max_output_tokens", "max_reasoning_tokens"):
        violations += checks.range_violations(
            f"{field}.{name}", getattr(wire, name), 0, _MAX_TOKENS
        )
    violations += checks.range_violations(f"{field}.temperature", wire.temperature, 0.0, 2.0)
    if wire.reasoning_effort not in _EFFORTS:
        efforts = ", ".join(_EFFORTS[1:])
        violations.append(FieldViolation(f"{field}.reasoning_effort", f"must be one of {efforts}"))
    if wire.HasField("enable_reasoner") and not wire.enable_reasoner:
        reasons = wire.reasoning_effort not in ("", "none") or wire.max_reasoning_tokens > 0
        if reasons:
            problem = "must not be false together with a reasoning_effort or max_reasoning_tokens"
            violations.append(FieldViolation(f"{field}.enable_reasoner", problem))
    return violations


def _handle_violations(field: str, handle: str) -> list[FieldViolation]:
    violations = checks.text_violations(field, handle, _MAX_HANDLE)
    if handle and not all(handle.partition("/")):
        violations.append(FieldViolation(field, 'must look like "provider/model"'))
    return violations


def compaction_from_proto(wire: pb.CompactionSettings) -> CompactionSettings:
    """Returns the domain form of compaction settings."""
    acknowledges = wire.HasField("prompt_acknowledgement")
    return CompactionSettings(
        model=wire.model,
        prompt=wire.prompt,
        mode=wire.mode,
        sliding_window_percentage=wire.sliding_window_percentage,
        clip_chars=wire.clip_chars,
        model_settings=(
            model_from_proto(wire.model_settings) if wire.HasField("model_settings") else None
        ),
        prompt_acknowledgement=wire.prompt_acknowledgement if acknowledges else None,
    )


def compaction_to_proto(settings: CompactionSettings) -> pb.CompactionSettings:
    """Returns compaction settings as a proto."""
    return pb.CompactionSettings(
        model=settings.model,
        prompt=settings.prompt,
        mode=settings.mode,
        sliding_window_percentage=settings.sliding_window_percentage,
        clip_chars=settings.clip_chars,
        model_settings=(
            None if settings.model_settings is None else model_to_proto(settings.model_settings)
        ),
        prompt_acknowledgement=settings.prompt_acknowledgement,
    )


def is_of_next_turn(request: pb.PreviewCompactionRequest) -> bool:
    """Returns whether the preview is for the compaction of the next turn, or for one on request.

    Raises:
        InvalidArgumentError: The trigger is unknown.
    """
    if request.trigger not in pb.CompactionTrigger.values():
        checks.refuse([FieldViolation("trigger", "is not a known trigger")])
    return request.trigger == pb.COMPACTION_TRIGGER_NEXT_TURN


def compaction_of(
    request: pb.CompactConversationRequest | pb.PreviewCompactionRequest,
) -> CompactionSettings:
    """Returns the compaction settings of a request.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks.refuse(compaction_violations(request.compaction))
    return compaction_from_proto(request.compaction)


def compaction_violations(wire: pb.CompactionSettings) -> list[FieldViolation]:
    """Returns violations in compaction settings."""
    violations = _handle_violations("compaction.model", wire.model)
    violations += checks.text_violations("compaction.prompt", wire.prompt, checks.MAX_SYSTEM)
    if wire.mode not in _MODES:
        violations.append(FieldViolation("compaction.mode", "must be sliding_window or all"))
    violations += checks.range_violations(
        "compaction.sliding_window_percentage", wire.sliding_window_percentage, 0.0, 1.0
    )
    if wire.clip_chars:
        violations += checks.range_violations(
            "compaction.clip_chars", wire.clip_chars, MIN_CLIP_CHARS, MAX_CLIP_CHARS
        )
    violations += model_violations(wire.model_settings, "compaction.model_settings")
    if wire.model_settings.handle:
        problem = "must be empty: compaction.model names the model of the summaries"
        violations.append(FieldViolation("compaction.model_settings.handle", problem))
    if wire.model_settings.fallback_models:
        problem = "must be empty: an extract is used if no model gives a summary"
        violations.append(FieldViolation("compaction.model_settings.fallback_models", problem))
    return violations


def packaging_from_proto(wire: pb.MessagePackaging) -> MessagePackaging:
    """Returns the domain form of message packaging."""
    return MessagePackaging(wire.pack_user_messages, wire.location)


def packaging_to_proto(packaging: MessagePackaging) -> pb.MessagePackaging:
    """Returns message packaging as a proto."""
    return pb.MessagePackaging(
        pack_user_messages=packaging.pack_user_messages, location=packaging.location
    )


def packaging_violations(wire: pb.MessagePackaging) -> list[FieldViolation]:
    """Returns violations in message packaging."""
    return checks.text_violations("packaging.location", wire.location, _MAX_LOCATION)
