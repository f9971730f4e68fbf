"""Helpers that attacks share, as source code that runs in the jail."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from integration.sandbox.jails import Worker

TRY = """
import ctypes, errno, json, os, signal, socket, struct, subprocess, sys, threading, time
LIBC = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    "What an attack gave: its value, or the name of what stopped it."
    try:
        return ["got", repr(action())[:200]]
    except BaseException as error:
        return ["stopped", type(error).__name__]
def call(*words):
    "A raw system call: its result, or minus the errno."
    result = LIBC.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
    return result if result >= 0 else -ctypes.get_errno()
def read(path, count=65536):
    with open(path, "rb") as file:
        return file.read(count)
"""


def source(body: str) -> str:
    """Returns the source of a tool ``f``, preceded by the helpers."""
    return TRY + textwrap.dedent(body)


def alone(jail: Worker) -> None:
    """Asserts that no process of a call is left, and that the next call works."""
    assert jail.value("def f():\n    return 1") == 1


def all_stopped(attempts: dict[str, Any]) -> None:
    """Asserts that attempts were made and all of them were stopped."""
    assert attempts
    assert {name: what for name, what in attempts.items() if what[0] != "stopped"} == {}


def no_process_has(mark: str) -> None:
    """Asserts that no process of the machine has the mark in its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert mark.encode() not in (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
