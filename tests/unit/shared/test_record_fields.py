"""Data classes whose fields are read and replaced together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from strata.shared.cached_property import CachedProperty
from strata.shared.record_fields import members_of, replace


@dataclass(frozen=True, slots=True)
class Slotted:
    first: int
    second: tuple[str, ...] = ()


@dataclass(frozen=True)
class Single:
    only: tuple[int, ...]


@dataclass(frozen=True)
class Checked:
    value: int
    other: str = ""

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")

    @CachedProperty
    def doubled(self) -> list[int]:
        """Twice the value."""
        return [self.value * 2]


@dataclass(frozen=True)
class Empty:
    pass


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (Slotted(1, ("a",)), {"first": 2}),
        (Slotted(1, ("a",)), {}),
        (Single((1,)), {"only": (2, 3)}),
        (Single((1,)), {}),
        (Checked(1, "b"), {"value": 4, "other": "c"}),
        (Empty(), {}),
    ],
)
def test_replaces_as_the_standard_library(record: object, changes: dict[str, object]) -> None:
    expected = dataclasses.replace(record, **changes)  # type: ignore[type-var]
    assert replace(record, **changes) == expected  # type: ignore[type-var]


def test_replaced_record_is_checked_and_computes_its_properties_anew() -> None:
    record = Checked(3)
    assert record.doubled == [6]
    assert replace(record, value=4).doubled == [8]
    with pytest.raises(ValueError, match="negative"):
        replace(record, value=-1)
    with pytest.raises(TypeError):
        replace(record, unknown=1)  # type: ignore[call-arg]


def test_members_are_not_copied() -> None:
    record = Slotted(1, ("a",))
    members = members_of(record)
    assert members == {"first": 1, "second": ("a",)}
    assert members["second"] is record.second
    assert members_of(Empty()) == {}


def test_cached_property_is_computed_once() -> None:
    record = Checked(5)
    assert record.doubled is record.doubled
    assert Checked.doubled.__doc__ == "Twice the value."
    assert "doubled" not in members_of(record)
