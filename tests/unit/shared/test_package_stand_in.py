from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from strata.shared.package_stand_in import hide, stand_in


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that counts how often its ``__init__`` runs, with a module that imports another."""
    name = "package_of_test_package_stand_in"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from .part import VALUE\nIS_WHOLE = True\n")
    (folder / "part.py").write_text("from . import base\nVALUE = base.BASE\n")
    (folder / "base.py").write_text("BASE = object()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (name, f"{name}.part", f"{name}.base"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return name


def test_modules_are_imported_without_their_package(package: str) -> None:
    with stand_in(package):
        part = import_module(f"{package}.part")
    assert part.VALUE is sys.modules[f"{package}.base"].BASE
    assert package not in sys.modules


def test_the_package_is_loaded_later_with_the_same_modules(package: str) -> None:
    with stand_in(package):
        part = import_module(f"{package}.part")
    whole = import_module(package)
    assert whole.IS_WHOLE
    assert whole.VALUE is part.VALUE


def test_a_loaded_package_stays(package: str) -> None:
    whole = import_module(package)
    with stand_in(package):
        assert import_module(f"{package}.part").VALUE is whole.VALUE
    assert sys.modules[package] is whole


def test_the_stand_in_is_removed_after_an_error(package: str) -> None:
    with pytest.raises(ZeroDivisionError), stand_in(package):
        _ = 1 / 0
    assert package not in sys.modules


def test_a_package_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError), stand_in("package_that_does_not_exist"):
        pass


def test_a_hidden_package_cannot_be_imported_in_the_block(package: str) -> None:
    with hide(package), pytest.raises(ModuleNotFoundError):
        import_module(package)
    assert import_module(package).IS_WHOLE


def test_a_loaded_package_is_hidden_and_then_available_again(package: str) -> None:
    whole = import_module(package)
    with hide(package), pytest.raises(ModuleNotFoundError):
        import_module(package)
    assert import_module(package) is whole
