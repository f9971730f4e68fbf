"""The import diagram of the architecture page matches the import rules and the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict

from unit.house.repository import REPOSITORY, sources, text_of

_PAGE = REPOSITORY / "docs" / "architecture.md"


def drawn_arrows() -> dict[str, set[str]]:
    """Returns the targets of the arrows of each node."""
    text = _PAGE.read_text("utf-8").partition("## What imports what")[2].partition("## ")[0]
    arrows: dict[str, set[str]] = defaultdict(set)
    for source, targets in re.findall(r"^    (\w+)\S*(?:\[.*\])? --> (.+)$", text, re.MULTILINE):
        arrows[source] |= set(re.split(r" & ", targets.strip()))
    return arrows


def allowed() -> dict[str, set[str]]:
    """Returns what each node may import: the targets of its arrows, and what these may import."""
    arrows = drawn_arrows()
    nodes = set(arrows) | set().union(*arrows.values())

    def below(node: str) -> set[str]:
        return arrows[node].union(*(below(target) for target in arrows[node]))

    return {node: below(node) for node in nodes}


def services() -> set[str]:
    return {path.name for path in (REPOSITORY / "services" / "strata").iterdir() if path.is_dir()}


def node_of(package: str) -> str:
    return "services" if package in services() else package


def imports_of(text: str) -> set[str]:
    """Returns the packages of `strata` that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("strata.")}


def outside(packages: set[str], may_import: set[str]) -> set[str]:
    return {p for p in packages if p not in may_import and node_of(p) not in may_import}


def test_the_code_imports_only_along_the_arrows() -> None:
    drawing = allowed()
    against = set()
    for path in sources():
        own = path.parts[path.parts.index("strata", len(REPOSITORY.parts)) + 1]
        may_import = {own} | drawing[node_of(own)]
        mentioned = set(re.findall(r"\bstrata\.(\w+)", text_of(path)))
        # Most modules do not mention any of these in their imports, so they need not be parsed.
        if outside(mentioned, may_import):
            imported = imports_of(text_of(path))
            against |= {f"{own} -> {package}" for package in outside(imported, may_import)}
    assert against == set()


def test_every_layer_of_the_import_rules_is_drawn() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    position = {
        node_of(package.strip().removeprefix("strata.")): number
        for number, layer in enumerate(layers)
        for package in layer.split("|")
    }
    drawing = allowed()
    assert set(drawing) == set(position)
    for node, targets in drawing.items():
        assert all(position[node] < position[target] for target in targets), node
