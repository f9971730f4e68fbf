"""Writes wheels; a folder of them serves as a package index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str | bytes] | None = None,
    needs: Sequence[str] = (),
) -> Path:
    """Writes a pure-Python wheel with one module that has the package's name.

    Args:
        folder: The folder to write to.
        name: Name of the package, also of its module.
        version: Its version, also the value of the module's VERSION.
        files: Additional files, by path.
        needs: The requirements of the package.
    """
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    contents: dict[str, str | bytes] = {
        f"{name}.py": f"VERSION = {version!r}\n",
        **(files or {}),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for place, content in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(place, content)
    return path
