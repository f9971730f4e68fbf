"""The double-array trie, which finds the keys that are prefixes of a text."""

import random

import numpy as np
import pytest

from strata.shared.search.embedding.double_array import ROOT, DoubleArray, build_double_array


def build(keys: list[str]) -> DoubleArray:
    points = np.frombuffer("".join(keys).encode("utf-32-le"), np.uint32)
    lengths = np.array([len(key) for key in keys], np.int64)
    return build_double_array(points, np.cumsum(lengths) - lengths, lengths)


def prefixes(trie: DoubleArray, text: str) -> list[int]:
    """Returns the numbers of the keys that the text begins with, the shortest first."""
    numbers = {code: place for place, code in enumerate(trie.characters.tolist(), 1)}
    slot, result = ROOT, []
    for char in text:
        child = abs(int(trie.bases[slot])) + numbers.get(ord(char), 0)
        if trie.parents[child] != slot:
            break
        slot = child
        if trie.bases[slot] < 0:
            result.append(int(trie.keys[slot]))
    return result


def random_keys(alphabet: str, longest: int, count: int, seed: int) -> list[str]:
    choose = random.Random(seed)
    keys = {"".join(choose.choices(alphabet, k=choose.randint(1, longest))) for _ in range(count)}
    return sorted(keys, key=lambda key: choose.random())


@pytest.mark.parametrize(
    ("alphabet", "longest", "count"),
    [
        ("ab", 8, 300),
        ("abcdefgh\u2581\u00df", 6, 5_000),
        ("".join(map(chr, range(0x4E00, 0x6E00))), 2, 9_000),
        ("a", 1, 1),
    ],
)
def test_the_keys_that_a_text_begins_with_are_found(
    alphabet: str, longest: int, count: int
) -> None:
    keys = random_keys(alphabet, longest, count, seed=1)
    trie = build(keys)
    number = {key: place for place, key in enumerate(keys)}
    texts = keys[:1_000] + random_keys(alphabet + "?", longest + 3, 1_000, seed=2)
    for text in texts:
        expected = [number[text[:end]] for end in range(1, len(text) + 1) if text[:end] in number]
        assert prefixes(trie, text) == expected
    assert trie.longest == max(map(len, keys))


def test_empty_keys_are_ignored() -> None:
    assert prefixes(build(["a", "", "ab"]), "abc") == [0, 2]


def test_the_same_keys_build_the_same_arrays() -> None:
    keys = random_keys("abcdef", 5, 2_000, seed=3)
    first, second = build(keys), build(keys)
    for name in ("characters", "bases", "parents", "keys"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
