"""A trie in a double array: finds the keys that are prefixes of a text, in a step per character.

Every node has a slot. The child of a node for a character is at the node's base plus the number of
the character, if the slot there has that node as its parent (Aoe 1989). The arrays are made once
and can be mapped from a file; as Python strings in a dictionary, 250,000 keys would take 40 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROOT = 0
"""Slot of the root."""

_Ints = npt.NDArray[np.int64]
_Slots = npt.NDArray[np.int32]
_CODE_POINT_BITS = 21
# Slots for each node: with fewer, places for nodes with many children are rare.
_SLOTS_PER_NODE = 2
# Minimum number of children of the nodes of each pass: those with the most children are placed
# first, while there is much space.
_PASSES = (256, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class DoubleArray:
    """The arrays of a trie.

    Attributes:
        characters: The code points in the keys. The number of a character is its place here plus 1.
        bases: For each slot, the base of its node: negative if a key ends there, so that
            its value is to be read.
        parents: For each slot, the slot of the parent; -1 for a free slot and for the root.
        keys: For each slot, the number of the key that ends there; -1 if none does.
        longest: Characters of the longest key.
    """

    characters: npt.NDArray[np.uint32]
    bases: _Slots
    parents: _Slots
    keys: _Slots
    longest: int


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes of a trie, level by level; those of one parent follow each other."""

    parents: _Ints
    characters: _Ints
    keys: _Ints
    depth: int


def build_double_array(
    points: npt.NDArray[np.uint32], starts: _Ints, lengths: _Ints
) -> DoubleArray:
    """Builds the trie of some keys; the same keys always give the same arrays.

    Args:
        points: Code points of the texts that the keys are parts of.
        starts: Start of each key in `points`.
        lengths: Characters of each key; a key without any is left out.
    """
    characters, numbers = _numbered(points)
    nodes = _nodes(numbers, starts, lengths)
    slots, bases = _placed(nodes)
    size = int(slots.max()) + len(characters) + 2
    ends = nodes.keys >= 0
    result = DoubleArray(
        characters,
        np.ones(size, np.int32),
        np.full(size, -1, np.int32),
        np.full(size, -1, np.int32),
        nodes.depth,
    )
    result.bases[slots] = np.where(ends, -bases, bases)
    result.parents[slots[1:]] = slots[nodes.parents[1:]]
    result.keys[slots] = nodes.keys
    return result


def _numbered(points: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], _Ints]:
    """Returns the characters, the most frequent first, and the number of each one in `points`."""
    counts = np.bincount(points)
    present = np.flatnonzero(counts)
    characters = present[np.argsort(-counts[present], kind="stable")]
    number = np.zeros(len(counts), np.int64)
    number[characters] = np.arange(1, len(characters) + 1)
    return characters.astype(np.uint32), number[points]


def _nodes(numbers: _Ints, starts: _Ints, lengths: _Ints) -> _Nodes:
    """Returns the prefixes of all keys; the first node is the root."""
    parents, characters = [np.array([-1])], [np.array([0])]
    keys = [np.array([-1])]
    node = np.zeros(len(lengths), np.int64)
    active = np.flatnonzero(lengths)
    count, depth = 1, 0
    while len(active):
        steps = node[active] << _CODE_POINT_BITS | numbers[starts[active] + depth]
        level, place = np.unique(steps, return_inverse=True)
        parents.append(level >> _CODE_POINT_BITS)
        characters.append(level & (1 << _CODE_POINT_BITS) - 1)
        node[active] = count + place
        depth += 1
        ended = lengths[active] == depth
        key = np.full(len(level), -1)
        key[place[ended]] = active[ended]
        keys.append(key)
        count += len(level)
        active = active[~ended]
    return _Nodes(np.concatenate(parents), np.concatenate(characters), np.concatenate(keys), depth)


def _placed(nodes: _Nodes) -> tuple[_Ints, _Ints]:
    """Returns slot and base of each node.

    Bases are drawn at random, for many nodes at once, until the slots of all their children are
    free.
    """
    total = len(nodes.parents)
    children = np.bincount(nodes.parents[1:], minlength=total)
    firsts = 1 + np.cumsum(children) - children
    slots, bases = np.zeros(total, np.int64), np.ones(total, np.int64)
    most_bases = _SLOTS_PER_NODE * total
    taken = np.zeros(most_bases + int(nodes.characters.max()) + 1, bool)
    taken[ROOT] = True
    claims = np.zeros(len(taken), np.int64)
    random = np.random.default_rng(0)
    waiting = np.flatnonzero(children)
    for least in _PASSES:
        active = waiting[children[waiting] >= least]
        waiting = waiting[children[waiting] < least]
        while len(active):
            drawn = random.integers(1, most_bases, len(active))
            sizes = children[active]
            owner = np.repeat(np.arange(len(active)), sizes)
            child = np.arange(len(owner)) + (firsts[active] - np.cumsum(sizes) + sizes)[owner]
            wanted = drawn[owner] + nodes.characters[child]
            claims[wanted] = owner  # of two nodes, the later one has it
            refused = taken[wanted] | (claims[wanted] != owner)
            fits = np.bincount(owner[refused], minlength=len(active)) == 0
            kept = fits[owner]
            slots[child[kept]] = wanted[kept]
            taken[wanted[kept]] = True
            bases[active[fits]] = drawn[fits]
            active = active[~fits]
    return slots, bases
