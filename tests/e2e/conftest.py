"""The wire protocols of the model double."""

from __future__ import annotations

import pytest

from doubles.script import Dialect


@pytest.fixture(params=["openai", "anthropic", "openai_responses"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen: Dialect = request.param
    return chosen
