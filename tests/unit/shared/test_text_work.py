"""CPU-bound work on texts runs on a thread only if it takes long."""

from __future__ import annotations

import threading

import pytest

from strata.shared.text_work import run_text_work


@pytest.mark.parametrize(
    ("texts", "on_thread"),
    [(["short"], False), (["x" * 5_000], True), (["x"] * 100, True), ([], False)],
)
async def test_long_or_many_texts_are_processed_on_a_thread(
    texts: list[str], on_thread: bool
) -> None:
    thread = await run_text_work(texts, threading.get_ident)
    assert (thread != threading.get_ident()) is on_thread
