"""Signatures of the client without an event loop, as ``help`` and editors show them."""

from __future__ import annotations

import inspect

import pytest

from strata.client import Client, SyncClient, connect, connect_sync


@pytest.mark.parametrize("name", ["send", "answer", "follow"])
def test_methods_that_stream_return_an_iterator(name: str) -> None:
    signature = inspect.signature(getattr(SyncClient, name))
    assert signature.return_annotation == "Iterator[RunEvent]"
    assert signature.parameters == inspect.signature(getattr(Client, name)).parameters


def test_connect_sync_shows_its_own_name_and_what_it_returns() -> None:
    signature = inspect.signature(connect_sync)
    assert connect_sync.__name__ == "connect_sync"
    assert signature.return_annotation == "AbstractContextManager[SyncClient]"
    assert signature.parameters == inspect.signature(connect).parameters
