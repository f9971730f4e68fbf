"""The keys of the callers of a session."""

from __future__ import annotations

import pytest

from callers import TokenKeys


@pytest.fixture(scope="session")
def keys() -> TokenKeys:
    return TokenKeys.generate()
