"""Detects texts that are nearly equal, by characters and without a model.

A text is the set of its 4-grams of characters, and the similarity of two texts is the Jaccard
index of these sets. MinHash estimates it from signatures of constant size (Broder, "On the
resemblance and containment of documents", 1997); one bit of each minimum is enough for the
estimate (Li and König, "b-Bit Minwise Hashing", WWW 2010), and minima joined to bands find
candidates by an index (Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", 3.4).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

BITS = 256
BANDS = 8
ROWS = 4
"""Texts of similarity 0.77 share a band with probability 0.97, texts of 0.3 with 0.06."""
THRESHOLD = 0.7
"""Changing one word in twelve gives a similarity of .77, changing two gives .6."""
MOST_DIFFERENT_BITS = round(BITS * (1 - THRESHOLD) / 2)
"""Differing bits at the threshold: bits of unequal minima are equal half the time."""

# Characters that are neither letters nor digits.
_SIGNS = re.compile(r"[\W_]+")
_RUN = 4
_PIECE = 256

_ODD = np.uint64(0x9E3779B97F4A7C15)

_Numbers = npt.NDArray[np.uint64]
_Runs = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TextSignature:
    """The MinHash signature of a text.

    Attributes:
        sketch: `BITS` characters 0 and 1; the share of differing bits estimates the similarity.
        bands: 64-bit numbers; only texts that share one are compared.
    """

    sketch: str
    bands: tuple[int, ...]

    def within(self, archive_id: str) -> tuple[int, ...]:
        """Returns the bands, salted with the archive, as signed 64-bit numbers."""
        salt = int.from_bytes(blake2b(archive_id.encode(), digest_size=8).digest())
        return tuple(_signed(band ^ salt) for band in self.bands)


def signature_of(text: str) -> TextSignature:
    """Returns the signature of a text; case, punctuation and spacing are ignored."""
    minima = _minima(_runs(_plain(text)))
    # The low bits of the minima themselves are not random.
    bits = (_mixed(minima.astype(np.uint64)) & np.uint64(1)).astype(np.uint8)
    sketch = (bits + np.uint8(ord("0"))).tobytes().decode()
    rows = minima[: BANDS * ROWS].reshape(BANDS, ROWS)
    # The number of the band is hashed too: equal minima in different bands do not match.
    return TextSignature(
        sketch, tuple(_band(number, row.tobytes()) for number, row in enumerate(rows))
    )


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    # A text without letters and digits is compared unchanged.
    return _SIGNS.sub(" ", folded).strip() or folded


def _runs(text: str) -> _Runs:
    codes = np.frombuffer(f" {text} ".encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    if len(codes) < _RUN:
        codes = np.pad(codes, (0, _RUN - len(codes)))
    # A character has at most 21 bits: three fit into a number, the fourth is mixed in. Duplicate
    # runs do not change the minima.
    joined = codes[:-3] << np.uint64(42) | codes[1:-2] << np.uint64(21) | codes[2:-1]
    return ((_mixed(joined) ^ codes[3:] * _ODD) >> np.uint64(32)).astype(np.uint32)


def _minima(runs: _Runs) -> _Runs:
    factors, summands = _functions()
    minima = np.full(BITS, np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(runs), _PIECE):
        hashed = runs[start : start + _PIECE, None] * factors
        hashed += summands
        minima = np.minimum(minima, hashed.min(axis=0))
    return minima


def _mixed(values: _Numbers) -> _Numbers:
    # The finaliser of SplitMix64.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _Numbers = values ^ (values >> np.uint64(31))
    return mixed


@cache
def _functions() -> tuple[_Runs, _Runs]:
    # Stored sketches are compared with new ones: these numbers must never change.
    numbers = _mixed(np.arange(1, 2 * BITS + 1, dtype=np.uint64) * _ODD).astype(np.uint32)
    return numbers[:BITS] | np.uint32(1), numbers[BITS:]


def _band(number: int, row: bytes) -> int:
    return int.from_bytes(blake2b(bytes([number]) + row, digest_size=8).digest())


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
