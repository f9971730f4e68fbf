"""Records on which threads a function runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


def record_threads(
    monkeypatch: pytest.MonkeyPatch, path: str, function: Callable[..., Any]
) -> list[bool]:
    """Records for each call of a function whether it ran on the thread of the event loop.

    Args:
        monkeypatch: Replaces the function.
        path: Where the function is looked up, such as ``package.module.name``.
        function: The function.

    Returns:
        A list with an item for each call.
    """
    loop_thread = threading.get_ident()
    on_loop: list[bool] = []

    def recorded(*arguments: Any, **named: Any) -> Any:
        on_loop.append(threading.get_ident() == loop_thread)
        return function(*arguments, **named)

    monkeypatch.setattr(path, recorded)
    return on_loop
