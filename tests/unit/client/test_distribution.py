"""The distribution `strata-client` does not need the server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[3]
CLIENT = REPOSITORY / "clients" / "python"
GUIDE = REPOSITORY / "docs" / "guides" / "python.md"
DEPENDENCIES = {"grpcio", "grpcio-status", "protobuf"}

# Top-level packages of these three, and of their dependencies.
_ALLOWED = ("grpc", "grpc_status", "google", "typing_extensions", "strata")
_IMPORT_ALL = f"""
import importlib, importlib.abc, pathlib, sys

class OnlyDependencies(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {_ALLOWED!r} or top in sys.stdlib_module_names or top.startswith("_cython"):
            return None
        raise ModuleNotFoundError(name, name=top)

sys.meta_path.insert(0, OnlyDependencies())
import strata
root = pathlib.Path(sys.argv[1])
strata.__path__ = [str(root / "strata")]
files = (root / "strata").rglob("*.py")
names = [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
for name in names:
    importlib.import_module(name.removesuffix(".__init__"))
print(len(names))
"""


def programs_of_the_guide(folder: Path) -> list[str]:
    """Writes the whole programs of the guide to a folder, and returns their names."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    names = []
    for number, block in enumerate(block for block in blocks if "import strata.client" in block):
        names.append(f"program_{number}.py")
        (folder / names[-1]).write_text(block)
    assert len(names) == 3
    return names


def check_types(folder: Path, *options: str) -> None:
    """Runs mypy in its strict form over the programs of the guide."""
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache")
    done = subprocess.run(
        [*mypy, *options, *programs_of_the_guide(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_distribution_depends_on_grpc_and_protobuf_only() -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {Requirement(wanted).name for wanted in project["dependencies"]} == DEPENDENCIES
    assert "optional-dependencies" not in project


@pytest.mark.child_process
def test_every_module_is_imported_without_any_other_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, str(CLIENT)],
        env={"PYTHONPATH": str(CLIENT), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60


@pytest.mark.parametrize("package", ["api", "client", "protocol"])
def test_every_package_is_typed(package: str) -> None:
    assert (CLIENT / "strata" / package / "py.typed").is_file()


@pytest.mark.child_process
def test_the_programs_of_the_guide_pass_strict_type_checks(tmp_path: Path) -> None:
    check_types(tmp_path)


@pytest.mark.slow
@pytest.mark.child_process
def test_installing_the_client_adds_only_its_dependencies(tmp_path: Path) -> None:
    # Needs the package index.
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    before, _ = _installed(python), _run(python, "install", "--quiet", str(CLIENT))
    assert _installed(python) - before - {"googleapis-common-protos", "typing-extensions"} == {
        *DEPENDENCIES,
        "strata-client",
    }
    check_types(tmp_path, f"--python-executable={python}")


def _installed(python: Path) -> set[str]:
    lines = _run(python, "list", "--format=freeze").splitlines()
    return {line.partition("==")[0].replace("_", "-") for line in lines}


def _run(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(python), "-m", "pip", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout
