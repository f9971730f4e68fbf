"""The terminal screen during a turn."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.cli.chat.screens import TerminalScreen, rows_of
from strata.cli.chat.turn_view import TurnView
from strata.client.run_follower import ConnectionBack, ConnectionLost
from strata.protocol.errors import UnavailableError
from unit.cli.terminal import Terminal

LOST = ConnectionLost(UnavailableError("gone"))
BACK = ConnectionBack()
CONTEXT = "you> Hi"


class Watched:
    """A view on a screen of a small terminal."""

    def __init__(self, width: int = 40, height: int = 12) -> None:
        self.file = io.StringIO()
        self.terminal = Terminal(width, height)
        self.terminal.feed(f"{CONTEXT}\r\n")
        console = Console(
            file=self.file, force_terminal=True, width=width, height=height, legacy_windows=False
        )
        self.screen = TerminalScreen(console)
        self.view = TurnView(self.screen, usage=False)

    def show(self, *updates: object) -> str:
        """Shows updates, and returns the screen below the prompt."""
        for update in updates:
            self.view.show(update)  # type: ignore[arg-type]
        self.screen.settle()
        self.terminal.feed(self.file.getvalue().replace("\n", "\r\n"))
        self.file.seek(0)
        self.file.truncate()
        first, _, rest = self.terminal.text.partition("\n")
        assert first == CONTEXT
        return rest


@pytest.fixture
def watched() -> Watched:
    return Watched()


def text(piece: str) -> RunEvent:
    return RunEvent(text_delta=run_event_pb2.TextDelta(text=piece))


def thought(piece: str) -> RunEvent:
    return RunEvent(reasoning_delta=run_event_pb2.ReasoningDelta(text=piece))


def snapshot(whole: str, reasoning: str = "") -> RunEvent:
    return RunEvent(text_snapshot=run_event_pb2.TextSnapshot(text=whole, reasoning=reasoning))


def stored(whole: str, reasoning: str = "") -> RunEvent:
    parts = [message_pb2.Part(text=message_pb2.TextPart(text=whole))]
    if reasoning:
        parts.append(message_pb2.Part(reasoning=message_pb2.ReasoningPart(text=reasoning)))
    message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, parts=parts)
    return RunEvent(message_stored=run_event_pb2.MessageStored(message=message))


STEP = RunEvent(step_started=run_event_pb2.StepStarted(step=1))
RESTARTED = RunEvent(step_restarted=run_event_pb2.StepRestarted(step=1, reason="Again."))
TOOL = RunEvent(
    tool_started=run_event_pb2.ToolStarted(tool_call_id="c", name="look", arguments="{}")
)


def test_tokens_are_shown_as_they_arrive(watched: Watched) -> None:
    watched.view.show(STEP)
    watched.view.show(text("Hel"))
    watched.terminal.feed(watched.file.getvalue().replace("\n", "\r\n"))
    assert watched.terminal.text.endswith("Hel")


def test_a_streamed_message_is_not_printed_again_when_stored(watched: Watched) -> None:
    assert watched.show(STEP, text("Hel"), text("lo"), stored("Hello")) == "Hello"


def test_reasoning_is_shown_on_separate_lines(watched: Watched) -> None:
    shown = watched.show(STEP, thought("Hm"), thought("m."), text("Hello"), stored("Hello", "Hmm."))
    assert shown == "Hmm.\nHello"


def test_snapshot_after_a_lost_connection_replaces_the_shown_text(watched: Watched) -> None:
    shown = watched.show(STEP, text("It goes "), LOST, BACK, snapshot("It goes on"), text(" well"))
    assert shown == "It goes on well"


def test_a_lost_connection_is_shown_until_it_is_restored(watched: Watched) -> None:
    shown = watched.show(STEP, text("It goes "), LOST)
    assert shown == "It goes\nConnection lost; trying again …"


def test_a_message_that_ended_during_the_break_is_shown_whole(watched: Watched) -> None:
    shown = watched.show(
        STEP, thought("Hm."), text("It "), LOST, BACK, stored("It goes on.", "Hm.")
    )
    assert shown == "Hm.\nIt goes on."


def test_a_restarted_step_erases_its_text(watched: Watched) -> None:
    shown = watched.show(STEP, text("Wrong\nand long " * 5), RESTARTED, STEP, text("Right"))
    assert shown == "Right"


def test_the_text_of_a_step_lost_with_its_process_is_withdrawn(watched: Watched) -> None:
    shown = watched.show(STEP, text("one two"), LOST, BACK, STEP, text("alpha"), stored("alpha"))
    assert shown == "alpha"


def test_stored_text_stays_on_the_screen(watched: Watched) -> None:
    shown = watched.show(STEP, text("First."), stored("First."), STEP, text("S"), RESTARTED)
    assert shown == "First."


def test_lost_connection_between_steps_keeps_stored_text(watched: Watched) -> None:
    first = (STEP, text("First."), stored("First."))
    shown = watched.show(*first, LOST, BACK, STEP, snapshot("Second."))
    assert shown.splitlines()[0] == "First."
    assert shown.splitlines()[-1] == "Second."
    assert shown.count("First.") == 1


def test_withdrawn_text_that_scrolled_away_is_marked_as_void() -> None:
    watched = Watched(height=5)
    lines = "\n".join(f"line {number}" for number in range(8))
    shown = watched.show(STEP, text(lines), RESTARTED, STEP, text("Right"))
    assert shown == f"{lines}\nThe reply above is void. Again.\nRight"


def test_text_above_a_tool_call_is_marked_as_void_instead_of_erased(watched: Watched) -> None:
    shown = watched.show(STEP, text("I look."), TOOL, RESTARTED, STEP, text("Seen."))
    assert shown == "I look.\n→ look()\nThe reply above is void. Again.\nSeen."


def test_a_tool_call_that_is_announced_twice_is_shown_once(watched: Watched) -> None:
    assert watched.show(STEP, TOOL, TOOL) == "→ look()"


def test_control_characters_of_a_model_are_removed(watched: Watched) -> None:
    assert watched.show(STEP, text("a\x1b[2J\x1b]0;t\x07b\x9b1Ac")) == "a[2J]0;tb1Ac"


@given(st.text(alphabet="ab \n漢", max_size=120), st.integers(3, 20))
def test_withdrawn_text_is_erased_completely(reply: str, width: int) -> None:
    watched = Watched(width=width + len(CONTEXT), height=200)
    assert watched.show(STEP, text(reply), RESTARTED, STEP, text("x")) == "x"


@given(st.text(alphabet="ab \n漢", max_size=80), st.integers(2, 12))
def test_rows_are_counted_as_a_terminal_counts_them(text: str, width: int) -> None:
    terminal = Terminal(width, 1000)
    terminal.feed(text.replace("\n", "\r\n"))
    assert rows_of(text, width) == terminal._row


@given(
    st.lists(st.sampled_from(["text", "break", "restart", "snapshot"]), max_size=12),
    st.text(alphabet="xyz ", min_size=12, max_size=12),
)
def test_after_random_events_the_reply_is_shown_exactly_once(acts: list[str], whole: str) -> None:
    whole = f"<{whole}>"
    watched = Watched(height=200)
    watched.view.show(STEP)
    sent = 0
    for act in acts:
        match act:
            case "text":
                watched.view.show(text(whole[sent : sent + 2]))
                sent = min(sent + 2, len(whole))
            case "break":
                # Text that is written meanwhile arrives only with the snapshot.
                watched.view.show(LOST)
                watched.view.show(BACK)
                sent = min(sent + 2, len(whole))
                watched.view.show(snapshot(whole[:sent]))
            case "snapshot":
                watched.view.show(snapshot(whole[:sent]))
            case _:
                watched.view.show(RESTARTED)
                sent = 0
    assert watched.show(stored(whole)) == whole


def test_markdown_in_a_reply_is_rendered_in_its_place(watched: Watched) -> None:
    shown = watched.show(text("Two **bold** things:\n\n- one\n"), text("- `two`"))
    assert "*" not in shown
    assert "`" not in shown
    assert [line.strip() for line in shown.splitlines() if line.strip()] == [
        "Two bold things:",
        "• one",
        "• two",
    ]


def test_plain_text_stays_as_it_was_streamed(watched: Watched) -> None:
    reply = "2 * 3 * 4 is 24,   with   blanks,\nin snake_case_words"
    assert watched.show(text(reply)) == reply


def test_rendered_markdown_can_be_erased(watched: Watched) -> None:
    watched.show(text("# Title\n\n- one"))
    watched.screen.retract()
    assert watched.show() == ""


def test_markdown_that_has_scrolled_away_is_not_rendered() -> None:
    small = Watched(height=4)
    small.screen.stream("- one\n" * 9)
    small.screen.settle()
    assert "•" not in small.file.getvalue()


def test_text_that_is_not_stored_when_the_run_ends_is_erased(watched: Watched) -> None:
    given_up = run_event_pb2.StepRestarted(step=1, given_up=True)
    cancelled = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_CANCELLED)
    assert watched.show(STEP, thought("Hm."), text("Half of it")) == "Hm.\nHalf of it"
    shown = watched.show(RunEvent(step_restarted=given_up), RunEvent(run_finished=cancelled))
    assert shown == "Cancelled."


def test_a_message_that_an_agent_sends_is_shown_as_its_text(watched: Watched) -> None:
    arguments = '{"message": "Hello [bold]Ada[/bold]!\\nHow are you?"}'
    started = run_event_pb2.ToolStarted(tool_call_id="c", name="send_message", arguments=arguments)
    returned = message_pb2.ToolReturnPart(
        tool_call_id="c",
        name="send_message",
        status=message_pb2.TOOL_STATUS_OK,
        content='{"status": "OK", "message": "Sent message successfully."}',
    )
    finished = run_event_pb2.ToolFinished(tool_return=returned)
    shown = watched.show(STEP, RunEvent(tool_started=started), RunEvent(tool_finished=finished))
    assert shown.split() == ["Hello", "[bold]Ada[/bold]!", "How", "are", "you?"]


def test_a_message_that_cannot_be_read_is_shown_as_a_call(watched: Watched) -> None:
    started = run_event_pb2.ToolStarted(tool_call_id="c", name="send_message", arguments="[1]")
    assert "send_message([1])" in watched.show(STEP, RunEvent(tool_started=started))
