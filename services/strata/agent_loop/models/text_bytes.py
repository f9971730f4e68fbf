"""The size of a text as it is sent."""

from __future__ import annotations


def text_bytes(text: str) -> int:
    """UTF-8 bytes of a text; lone surrogates have three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
