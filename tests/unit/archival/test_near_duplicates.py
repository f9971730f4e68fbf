"""Signatures estimate the share of common 4-grams of characters."""

from __future__ import annotations

import random
import string
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from strata.archival.domain.near_duplicates import BANDS, BITS, MOST_DIFFERENT_BITS, signature_of

# Of "The cat sleeps on the sofa."
SKETCH = "0101100100000101011010010000000001011010001010100001100101110011"
BAND = 6995686082471122719


def estimate(one: str, other: str) -> float:
    a, b = signature_of(one).sketch, signature_of(other).sketch
    return 1 - 2 * sum(x != y for x, y in zip(a, b, strict=True)) / BITS


def exact(one: str, other: str) -> float:
    first, second = (
        {f" {text} "[n : n + 4] for n in range(len(text) - 1)} for text in (one, other)
    )
    return len(first & second) / len(first | second)


def test_the_estimate_is_close_to_the_share_of_common_4_grams() -> None:
    source = random.Random(7)
    errors = []
    for changed in range(0, 40, 2):
        words = ["".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(40)]
        others = [
            "".join(source.choices(string.ascii_lowercase, k=5)) if n < changed else word
            for n, word in enumerate(words)
        ]
        one, other = " ".join(words), " ".join(others)
        errors.append(estimate(one, other) - exact(one, other))
    assert max(map(abs, errors)) < 0.2
    assert abs(fmean(errors)) < 0.04


@given(st.text(max_size=300))
def test_any_text_is_compared_and_equals_itself(text: str) -> None:
    signature = signature_of(text)
    assert signature == signature_of(text)
    assert (len(signature.sketch), len(signature.bands)) == (BITS, BANDS)
    for band in signature.within("archive-1"):
        assert -(2**63) <= band < 2**63


def test_case_spacing_and_punctuation_are_ignored() -> None:
    assert signature_of("It's  GREEN!") == signature_of("it s green")
    assert signature_of("!!") != signature_of("??")


def test_unrelated_texts_have_no_band_in_common() -> None:
    assert not set(signature_of("Taxes are due in May.").bands) & set(
        signature_of("The cat sleeps on the sofa.").bands
    )


def test_bands_differ_between_archives() -> None:
    signature = signature_of("the same text")
    assert not set(signature.within("archive-1")) & set(signature.within("archive-2"))


def test_signatures_are_the_same_in_every_release() -> None:
    signature = signature_of("The cat sleeps on the sofa.")
    assert signature.sketch.startswith(SKETCH)
    assert signature.bands[0] == BAND
    assert MOST_DIFFERENT_BITS == 38
