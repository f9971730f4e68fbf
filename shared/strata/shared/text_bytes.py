"""The UTF-8 size of a text."""

from __future__ import annotations


def text_bytes(text: str) -> int:
    """Returns the UTF-8 bytes of a text; a lone surrogate counts as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
