"""Text that is assembled from pieces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from strata.gateway.runs.events.partial_text import PartialText
from strata.shared.text_buffer import TextBuffer


class Uncopied(str):
    """A piece that fails the test if it is appended with ``+``, which copies the text."""

    __slots__ = ()

    def __radd__(self, other: str) -> str:
        raise AssertionError(f"{len(other)} characters are copied for one piece")


@given(st.lists(st.one_of(st.text(max_size=5), st.none())))
def test_the_text_is_its_pieces_in_order_at_every_read(pieces: list[str | None]) -> None:
    buffer, expected = TextBuffer(), ""
    for piece in pieces:
        if piece is None:
            assert buffer.text == expected
        else:
            buffer.add(piece)
            expected += piece
        assert bool(buffer) == bool(expected)
        assert buffer.ends_with("\n") == expected.endswith("\n")
    assert buffer.text == expected
    buffer.clear()
    assert (buffer.text, bool(buffer)) == ("", False)


def test_adding_a_piece_does_not_copy_the_earlier_text() -> None:
    buffer = TextBuffer()
    for _ in range(100):
        buffer.add(Uncopied("ab"))
    assert buffer.text == "ab" * 100


def test_streamed_text_of_a_live_run_is_not_copied_for_each_delta() -> None:
    text = PartialText()
    for number in range(100):
        delta = SimpleNamespace(
            message_id="message-1", text=Uncopied(f"{number},"), beside_call=False
        )
        event = SimpleNamespace(
            text_delta=delta, reasoning_delta=delta, HasField=lambda _field: False
        )
        text.note(cast("Any", event), "text_delta")
        text.note(cast("Any", event), "reasoning_delta")
    whole = "".join(f"{number}," for number in range(100))
    assert (text.text.text, text.reasoning.text) == (whole, whole)
