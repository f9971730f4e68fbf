"""Prints the events of a turn in the chat, and the lines for its end and its usage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import assert_never

from rich.text import Text

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.common.v1.usage_pb2 import Usage
from strata.cli.chat.edits import edit_lines
from strata.cli.chat.screens import Screen
from strata.cli.chat.speakers import SpeakersInTurn
from strata.cli.output import safe
from strata.client.client_tools import calls_by_client
from strata.client.run_follower import ConnectionBack, ConnectionLost, Update
from strata.shared.convert.enums import enum_name
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.one_line import clipped
from strata.shared.replies import sent_text
from strata.shared.text_buffer import TextBuffer
from strata.shared.tool_catalogue import TEXT_TOOLS
from strata.shared.tool_returns import result_of
from strata.shared.turn_texts import STOP_SENTENCES, ended_well, ending_sentence

_ARGUMENT_CHARS = 60
_ARGUMENTS_CHARS = 160
_RESULT_CHARS = 120


@dataclass(frozen=True, slots=True)
class TurnEnding:
    """The end of a turn.

    Attributes:
        ok: False if it failed or was cancelled.
        finished: The terminal event.
    """

    ok: bool
    finished: run_event_pb2.RunFinished


class TurnView:
    """Shows one turn.

    The text of a step may arrive in deltas, as a snapshot after a reconnect, and with the stored
    message; it is shown once.

    Args:
        screen: The output.
        reasoning: Show the model's reasoning.
        usage: Show tokens and time at the end.

    Attributes:
        ending: How the turn ended; None before its end.
        asked: The approval that it waits for; None for none.
    """

    def __init__(self, screen: Screen, *, reasoning: bool = True, usage: bool = True) -> None:
        self.ending: TurnEnding | None = None
        self.asked: message_pb2.ApprovalRequestPart | None = None
        self._screen = screen
        self._with_reasoning = reasoning
        self._with_usage = usage
        self._text = TextBuffer()
        self._thoughts = TextBuffer()
        self._calls: set[str] = set()
        self._broken = False
        self._speakers = SpeakersInTurn()

    def show(self, update: Update, elapsed_s: float = 0.0) -> None:
        """Shows one update of the run.

        Args:
            update: An event, or a change of the connection.
            elapsed_s: Since the message was sent.
        """
        match update:
            case ConnectionLost():
                self._broken = True
                self._screen.notice(Text("Connection lost; trying again …", style="yellow"))
                self._screen.waiting("reconnecting")
            case ConnectionBack():
                self._screen.notice(Text("Connected again.", style="dim"))
            case RunEvent():
                for event in self._speakers.take(update):
                    self._show_event(event, elapsed_s)
            case _:
                assert_never(update)

    def _show_event(self, event: RunEvent, elapsed_s: float) -> None:
        kind = event.WhichOneof("event")
        if not self._show_reply(kind, event):
            self._show_progress(kind, event, elapsed_s)

    def _show_progress(self, kind: str | None, event: RunEvent, elapsed_s: float) -> None:
        match kind:
            case "run_started":
                self._screen.waiting("reading memory")
            case "turn_started":
                self._turn_started(event)
            case "step_started":
                self._begin_step()
                self._screen.waiting(f"{event.step_started.model or 'the model'} is thinking")
            case "step_restarted":
                self._restart_step(event.step_restarted)
            case "tool_started":
                self._tool_started(event.tool_started)
            case "tool_finished":
                self._tool_finished(event.tool_finished)
            case "approval_requested":
                self._approval(event.approval_requested.approval)
            case "window_compacted":
                self._compacted(event.window_compacted)
            case "run_finished":
                self._finished(event.run_finished, elapsed_s)
            case _:
                # An event type of a newer server; stored messages contain the text anyway.
                pass

    def _show_reply(self, kind: str | None, event: RunEvent) -> bool:
        match kind:
            case "text_delta":
                self._add_text(event.text_delta.text)
            case "reasoning_delta":
                self._add_thought(event.reasoning_delta.text)
            case "tool_call_delta":
                if event.tool_call_delta.name:
                    self._screen.waiting(f"calling {event.tool_call_delta.name}")
            case "text_snapshot":
                self._show_whole_text(event.text_snapshot.text, event.text_snapshot.reasoning)
            case "message_stored":
                self._stored(event.message_stored.message)
            case _:
                return False
        return True

    def _begin_step(self) -> None:
        if self._text or self._thoughts:
            # The step did not finish: its process died, and the step is repeated.
            self._discard_reply("The step is repeated.")
        self._screen.mark()
        self._broken = False

    def _turn_started(self, event: RunEvent) -> None:
        """Shows the name of a group member above its reply."""
        self._screen.settle()
        self._forget()
        role = " (picks the next speaker)" if event.turn_started.manager else ""
        # Part of the reply stream, so that names are next to the replies in a file, too.
        self._screen.stream(f"{event.member.agent_name}{role}:")
        self._screen.settle()
        self._screen.mark()
        self._screen.waiting(f"{event.member.agent_name} reads memory")

    def _restart_step(self, restarted: run_event_pb2.StepRestarted) -> None:
        self._discard_reply(restarted.reason or "The model is asked again.")
        if restarted.given_up:
            return
        if restarted.model:
            self._print(restarted.reason, "yellow")
        self._begin_step()
        self._screen.waiting("asking again")

    def _discard_reply(self, reason: str) -> None:
        if not self._screen.retract() and (self._text or self._thoughts):
            self._print(f"The reply above is void. {reason}", "yellow")
        self._forget()

    def _forget(self) -> None:
        self._text.clear()
        self._thoughts.clear()

    def _add_text(self, piece: str) -> None:
        self._text.add(piece)
        self._screen.stream(piece)

    def _add_thought(self, piece: str) -> None:
        if self._with_reasoning:
            self._thoughts.add(piece)
            self._screen.stream(piece, reasoning=True)

    def _show_whole_text(self, text: str, thoughts: str) -> None:
        """Shows the rest of the step's text, after retracting shown text that differs."""
        if not self._with_reasoning:
            thoughts = ""
        if self._broken or not self._continues(text, thoughts):
            self._retract_unless_shown(unless=(text, thoughts))
        self._broken = False
        new_thoughts, new_text = thoughts[len(self._thoughts.text) :], text[len(self._text.text) :]
        if new_thoughts:
            self._add_thought(new_thoughts)
        if new_text:
            self._add_text(new_text)

    def _retract_unless_shown(self, *, unless: tuple[str, str]) -> None:
        shown_texts = (self._text.text, self._thoughts.text)
        if not self._screen.retract():
            if shown_texts == unless:
                return
            if any(shown_texts):
                self._print("The reply above was interrupted; here it is whole.", "dim")
        self._forget()

    def _continues(self, text: str, thoughts: str) -> bool:
        """Whether the shown text is a beginning of the given text."""
        if not text.startswith(self._text.text):
            return False
        # Reasoning comes before the text: once there is text, it cannot grow.
        return thoughts == self._thoughts.text or (
            not self._text and thoughts.startswith(self._thoughts.text)
        )

    def _tool_started(self, started: run_event_pb2.ToolStarted) -> None:
        # The reply is complete once its tools run.
        self._screen.settle()
        if started.tool_call_id not in self._calls:
            self._calls.add(started.tool_call_id)
            text = sent_text(started.name, started.arguments)
            if text is not None:
                self._screen.stream(text)
                self._screen.settle()
                return
            call = Text("→ ", style="cyan")
            call.append(safe(started.name), style="bold cyan")
            call.append(f"({compact_arguments(started.arguments)})", style="cyan")
            self._screen.line(call)
        self._screen.waiting(f"running {started.name}")

    def _tool_finished(self, finished: run_event_pb2.ToolFinished) -> None:
        tool_return = finished.tool_return
        if tool_return.name in TEXT_TOOLS and tool_return.status == message_pb2.TOOL_STATUS_OK:
            # The message itself was shown.
            return
        result = clipped(safe(result_of(tool_return.content)), _RESULT_CHARS)
        match tool_return.status:
            case message_pb2.TOOL_STATUS_FAILED:
                self._print(f"  {tool_return.name} failed: {result}", "red")
            case message_pb2.TOOL_STATUS_UNKNOWN:
                self._print(
                    f"  {tool_return.name}: it is unknown whether it had an effect.", "yellow"
                )
            case _:
                if not finished.memory_edits and result not in {"", "None"}:
                    self._print(f"  ← {result}", "dim")
        for edit in finished.memory_edits:
            for line in edit_lines(edit):
                self._screen.line(line)
        self._screen.waiting("continuing")

    def _stored(self, message: message_pb2.Message) -> None:
        if message.role not in (message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_APPROVAL):
            return
        calls = any(part.HasField("tool_call") for part in message.parts)
        answers = any(part.HasField("approval_response") for part in message.parts)
        if answers or (calls and not message.HasField("usage")):
            # Calls that needed approval were shown with the request.
            return
        text = "".join(part.text.text for part in message.parts if part.HasField("text"))
        thoughts = "".join(
            part.reasoning.text for part in message.parts if part.HasField("reasoning")
        )
        # Some providers stream reasoning in another form than the final message has.
        self._show_whole_text(
            text, self._thoughts.text if self._text or self._thoughts else thoughts
        )
        self._screen.settle()
        # A stored message is never retracted, even if the run fails.
        self._screen.mark()
        self._forget()

    def _approval(self, approval_request: message_pb2.ApprovalRequestPart) -> None:
        self._screen.settle()
        self.asked = approval_request
        by_client = calls_by_client(approval_request)
        for call in approval_request.tool_calls:
            arguments = compact_arguments(call.arguments)
            wants = "Waits for the client" if call.tool_call_id in by_client else "Needs approval"
            self._print(f"{wants}: {call.name}({arguments})", "yellow")
        warning = untrusted_sources_line(approval_request)
        if warning:
            self._print(warning, "yellow")

    def _compacted(self, compacted: run_event_pb2.WindowCompacted) -> None:
        before, after = compacted.tokens_before, compacted.tokens_after
        self._print(f"Older messages were summarised: {before:,} → {after:,} tokens.", "dim")

    def _finished(self, finished: run_event_pb2.RunFinished, elapsed_s: float) -> None:
        self._screen.settle()
        ok = ended_well(finished)
        if not ok or finished.stop_reason in STOP_SENTENCES:
            self._print(ending_sentence(finished), "yellow" if ok else "red")
        if self._with_usage and finished.usage.total_tokens:
            self._print(usage_line(finished.usage, finished.step_count, elapsed_s), "dim")
        self._screen.settle()
        self.ending = TurnEnding(ok, finished)

    def _print(self, text: str, style: str) -> None:
        self._screen.line(Text(safe(text), style=style))


def usage_line(usage: Usage, steps: int, elapsed_s: float) -> str:
    """Returns the tokens of a run on one line."""
    about = "about " if usage.estimated else ""
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    calls = "1 model call" if steps == 1 else f"{steps} model calls"
    return (
        f"{about}{usage.prompt_tokens:,} tokens in{cached}, {usage.completion_tokens:,} out"
        f" · {calls} · {elapsed_s:.1f} s"
    )


def compact_arguments(arguments: str) -> str:
    """Returns the arguments of a tool call as ``name="value", …`` on one line."""
    try:
        values = parse_json(arguments or "{}")
    except JsonTextError:
        values = None
    if not isinstance(values, dict):
        return clipped(safe(arguments), _ARGUMENTS_CHARS)
    pairs = (
        f"{name}={clipped(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARS)}"
        for name, value in values.items()
    )
    return clipped(safe(", ".join(pairs)), _ARGUMENTS_CHARS)


def untrusted_sources_line(approval_request: message_pb2.ApprovalRequestPart) -> str:
    """Returns a line on the untrusted content in the agent's context at the request; or empty."""
    locations = (
        enum_name(message_pb2.Provenance, source.label)
        + (f" by {source.tool_name}" if source.tool_name else "")
        + (f" in memory block {source.block_label}" if source.block_label else "")
        + (f" in the archival tag {source.archival_tag}" if source.archival_tag else "")
        for source in approval_request.taint
    )
    sources = ", ".join(safe(location) for location in dict.fromkeys(locations))
    return f"The agent had read untrusted content: {sources}" if sources else ""
