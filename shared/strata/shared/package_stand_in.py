"""Imports of subpackages whose parent package loads much more than is needed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def stand_in(package: str) -> Iterator[None]:
    """Lets the block import modules of a package without running its ``__init__``.

    An empty module with the package's path stands in for the package, unless it is already loaded.
    A later import of the package loads the real one, which uses the same modules.

    Args:
        package: The full name of the package.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if package in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no package {package}", name=package)
    empty = ModuleType(package)
    empty.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = empty
    try:
        yield
    finally:
        if sys.modules.get(package) is empty:
            del sys.modules[package]
