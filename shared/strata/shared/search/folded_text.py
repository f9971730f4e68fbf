"""Normalises texts so that spellings of one word compare equal."""

from __future__ import annotations

import string
import unicodedata

_LATIN = [chr(code) for code in range(0xC0, 0x180) if unicodedata.decomposition(chr(code))]
_PUNCTUATION = {
    "'": "\u2018\u2019\u00b4`",
    " ": "\t\n\r\v\f\u00a0\u2009\u202f\u3000",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2212",
    "~": "\u301c\uff5e",
    "/": "\uff0f",
    ":": "\uff1a",
    ".": "\uff0e",
    ",": "\uff0c\u3001",
    "?": "\uff1f",
    "!": "\uff01",
}
# Characters of traditional Chinese and Japanese texts, and their simplified forms.
_TRADITIONAL = (
    "週個兩禮聖誕節號間過這現時還後麼從點來裡夠舊內嗎開學說會沒經當們總剛單歲東長氣點幾數頭處對變題"
)
_SIMPLIFIED = (
    "周个两礼圣诞节号间过这现时还后么从点来里够旧内吗开学说会没经当们总刚单岁东长气点几数头处对变题"
)
_PLAIN = {
    **dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True)),
    **{letter: unicodedata.normalize("NFD", letter)[0].lower() for letter in _LATIN},
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    **{spelling: plain for plain, spellings in _PUNCTUATION.items() for spelling in spellings},
    **dict(zip(_TRADITIONAL, _SIMPLIFIED, strict=True)),
}
_TABLE = str.maketrans(_PLAIN)


def normalise(text: str) -> str:
    """Returns a text with composed characters (NFC), in which `fold` keeps every position."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def compatible(text: str) -> str:
    """Returns a text in which the forms of a character are one (NFKC).

    Decomposed letters, half-width kana, full-width Latin letters and ligatures make the same words
    as others.
    """
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def fold(text: str) -> str:
    """Returns a text in lower case, without accents, with plain digits, spaces and dashes.

    Each character becomes exactly one character, so a position in the result is the same position
    in the text. Traditional Chinese characters become simplified, in Japanese words too.
    """
    return text.translate(_TABLE)
