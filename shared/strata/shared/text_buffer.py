"""A buffer for text that arrives in pieces."""

from __future__ import annotations


class TextBuffer:
    """Collects the pieces of a text and joins them when the text is read.

    ``text += piece`` on an attribute copies the whole text for every piece, which takes quadratic
    time. The buffer keeps the pieces in a list and joins the new ones when the text is read.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._pieces)

    def add(self, piece: str) -> None:
        """Appends a piece."""
        if piece:
            self._pieces.append(piece)

    def set(self, text: str) -> None:
        """Replaces the text."""
        self._pieces = [text] if text else []

    def clear(self) -> None:
        """Removes the text."""
        self._pieces = []

    def ends_with(self, character: str) -> bool:
        """Returns whether the text ends with a character; joins nothing."""
        return bool(self._pieces) and self._pieces[-1].endswith(character)

    @property
    def text(self) -> str:
        """The whole text."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""
