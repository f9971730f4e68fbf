"""Imports of modules without packages that they would load and that are not needed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


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


@contextmanager
def hide(package: str) -> Iterator[None]:
    """Lets the block import modules that use an optional package as if it was not installed.

    The package itself is not loaded. If it was loaded before, it is available again after the
    block.

    Args:
        package: The full name of the package.
    """
    # The import system raises ModuleNotFoundError for a name whose entry is None.
    loaded = sys.modules.get(package)
    modules: dict[str, ModuleType | None] = cast("dict[str, ModuleType | None]", sys.modules)
    modules[package] = None
    try:
        yield
    finally:
        if loaded is None:
            del modules[package]
        else:
            modules[package] = loaded
