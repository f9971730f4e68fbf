"""Command options for compaction settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.arguments import MAX_INT32
from strata.cli.failures import UsageError

_PANEL = "Compaction"
_MODES = ("sliding_window", "all")
_MODE = (
    "Messages to remove from a full window: sliding_window (the oldest) or all (but the newest)."
)
_SHARE = "Share of the space for messages that a compaction frees, such as 0.3."
_MODEL = "Handle of the model that writes the summaries. Default: the agent's model."
_PROMPT = "Prompt for that model. Default: the built-in one."
_FILE = "File with the prompt for that model."
_CHARS = "Maximum number of characters of a summary."
_ACKNOWLEDGE = (
    "Add an assistant message in which the summarizer agrees to reply with the summary alone."
)
_TEMPERATURE = "Temperature of the model that writes the summaries."

# The options of `CompactionChoice` with shorter names, for a single compaction.
ModeOption = Annotated[str | None, typer.Option("--mode", help=_MODE)]
ShareOption = Annotated[float | None, typer.Option("--share", min=0, max=1, help=_SHARE)]
ModelOption = Annotated[str | None, typer.Option("--model", help=_MODEL)]
PromptOption = Annotated[str | None, typer.Option("--prompt", help=_PROMPT)]
PromptFileOption = Annotated[Path | None, typer.Option("--prompt-file", help=_FILE, exists=True)]
CharsOption = Annotated[int | None, typer.Option("--chars", min=0, max=MAX_INT32, help=_CHARS)]


@dataclass(frozen=True, slots=True)
class CompactionChoice:
    """The compaction options of a command; None for an option that is absent.

    An empty text or 0 resets a setting to its default.
    """

    compaction_mode: Annotated[
        str | None, typer.Option("--compaction-mode", help=_MODE, rich_help_panel=_PANEL)
    ] = None
    compaction_share: Annotated[
        float | None,
        typer.Option("--compaction-share", min=0, max=1, help=_SHARE, rich_help_panel=_PANEL),
    ] = None
    compaction_model: Annotated[
        str | None, typer.Option("--compaction-model", help=_MODEL, rich_help_panel=_PANEL)
    ] = None
    compaction_prompt: Annotated[
        str | None, typer.Option("--compaction-prompt", help=_PROMPT, rich_help_panel=_PANEL)
    ] = None
    compaction_prompt_file: Annotated[
        Path | None,
        typer.Option("--compaction-prompt-file", help=_FILE, exists=True, rich_help_panel=_PANEL),
    ] = None
    summary_chars: Annotated[
        int | None,
        typer.Option("--summary-chars", min=0, max=MAX_INT32, help=_CHARS, rich_help_panel=_PANEL),
    ] = None
    compaction_acknowledge: Annotated[
        bool | None,
        typer.Option(
            "--compaction-acknowledge/--no-compaction-acknowledge",
            help=_ACKNOWLEDGE,
            rich_help_panel=_PANEL,
        ),
    ] = None
    compaction_temperature: Annotated[
        float | None,
        typer.Option(
            "--compaction-temperature", min=0, max=2, help=_TEMPERATURE, rich_help_panel=_PANEL
        ),
    ] = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__slots__)

    def over(self, present: pb.CompactionSettings | None = None) -> pb.CompactionSettings:
        """Returns the present settings, changed by the options.

        Raises:
            UsageError: The mode is unknown, or both the prompt and a prompt file are set.
        """
        mode, prompt, prompt_file = (
            self.compaction_mode,
            self.compaction_prompt,
            self.compaction_prompt_file,
        )
        if mode not in (None, "", *_MODES):
            raise UsageError(f"{mode!r} is not a compaction mode. Give {' or '.join(_MODES)}.")
        if prompt is not None and prompt_file is not None:
            raise UsageError("Give the prompt or the file with it, not both.")
        if prompt_file is not None:
            prompt = prompt_file.read_text(encoding="utf-8")
        settings = pb.CompactionSettings()
        if present is not None:
            settings.CopyFrom(present)
        overrides = {
            "mode": mode,
            "sliding_window_percentage": self.compaction_share,
            "model": self.compaction_model,
            "prompt": prompt,
            "clip_chars": self.summary_chars,
            "prompt_acknowledgement": self.compaction_acknowledge,
        }
        for name, value in overrides.items():
            if value is not None:
                setattr(settings, name, value)
        if self.compaction_temperature is not None:
            settings.model_settings.temperature = self.compaction_temperature
        return settings
