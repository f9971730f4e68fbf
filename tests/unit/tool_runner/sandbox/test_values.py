"""Conversion of the return values of tools to JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from strata.tool_runner.sandbox.program.values import BadResult, encode


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (np.int64(3), 3),
        ({"sum": np.float32(0.5), "any": np.bool_(True)}, {"sum": 0.5, "any": True}),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.datetime64("2026-01-02"), "2026-01-02"),
    ],
)
def test_numbers_and_arrays_of_numpy_become_json(value: Any, made: Any) -> None:
    assert json.loads(encode(value)) == made


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("-inf")]}, np.float32("nan")])
def test_a_number_that_json_does_not_have_is_named(value: Any) -> None:
    with pytest.raises(BadResult, match="NaN or an infinite number"):
        encode(value)


def test_bytes_of_numpy_are_refused_like_other_bytes() -> None:
    with pytest.raises(BadResult, match="bytes"):
        encode(np.array([b"a"]))
