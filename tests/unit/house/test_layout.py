"""The layout of the source: several roots, one namespace, settings in one place."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from unit.house.repository import REPOSITORY, ROOTS, name_of, sources, text_of, tracked, trees


def test_no_file_hides_the_other_source_roots() -> None:
    # One `strata/__init__.py` would make Python search only that root.
    for root in ROOTS:
        assert (REPOSITORY / root / "strata").is_dir()
        assert not (REPOSITORY / root / "strata" / "__init__.py").exists()
    assert list((REPOSITORY / "clients/python/strata/api").rglob("__init__.py")) == []


def test_every_other_package_has_a_docstring() -> None:
    # The files of migrations are loaded by path.
    folders = {path.parent for path in sources() if path.parent.parent.name != "migrations"}
    silent = [
        name_of(folder)
        for folder in sorted(folders)
        if not (init := folder / "__init__.py").exists()
        or not ast.get_docstring(ast.parse(text_of(init)))
    ]
    assert silent == []


def test_test_modules_import_no_other_test_module() -> None:
    # Code that two of them need belongs to `tests/support`.
    pattern = re.compile(r"^\s*(?:from|import) (?:\w+\.)*test_\w+", re.MULTILINE)
    modules = [path for path in tracked() if path.suffix == ".py" and path.name != "conftest.py"]
    assert [name_of(path) for path in modules if pattern.search(text_of(path))] == []


def test_the_environment_is_read_in_settings_only() -> None:
    readers = [
        name_of(path)
        for path, tree in trees(sources(), re.compile("environ|getenv"))
        if path.name != "settings.py" and reads_environment(tree)
    ]
    assert readers == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
        "from os import path, getenv",
        "import os as o\no.environ.get('A')",
    ],
)
def test_every_way_to_read_the_environment_is_detected(source: str) -> None:
    assert reads_environment(ast.parse(source))


def reads_environment(tree: ast.AST) -> bool:
    wanted = {"environ", "environb", "getenv", "getenvb"}
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os"
    }
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }
    used |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "os"
        for alias in node.names
    }
    return bool(used & wanted)


def test_every_tool_has_the_same_source_roots() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    hatch = project["tool"]["hatch"]["build"]
    roots, count = list(ROOTS), len(ROOTS)
    packaged = [root for root in roots if root != "clients/python"]
    assert hatch["dev-mode-dirs"] == packaged
    assert hatch["targets"]["wheel"]["packages"] == [f"{root}/strata" for root in packaged]
    assert project["tool"]["ruff"]["src"][:count] == roots
    assert project["tool"]["mypy"]["mypy_path"][:count] == roots
    assert project["tool"]["pytest"]["ini_options"]["pythonpath"][:count] == roots


def test_every_package_is_covered_by_the_import_rules() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    known = set(project["tool"]["importlinter"]["root_packages"])
    packages = {
        f"strata.{path.name}"
        for root in ROOTS
        for path in (REPOSITORY / root / "strata").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert packages == known


@pytest.mark.parametrize("root", ["services", "gateway"])
def test_every_service_has_a_program(root: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    scripts = project["scripts"]
    services = {path.parent.name for path in Path(REPOSITORY / root / "strata").glob("*/main.py")}
    assert services
    for service in services:
        # It runs the `main` of the service that the program is named after.
        program = f"strata-{service.replace('_', '-')}"
        assert scripts[program] == "strata.shared.service_entry:main"
