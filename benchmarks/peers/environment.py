"""The virtual environment of the peers, with the packages that `requirements.txt` pins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.processes import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_INSTALL_S = 600.0
_ERROR_CHARS = 300


class InstallError(Exception):
    """The packages could not be installed."""


class PeerEnvironment:
    """A virtual environment, made by `uv`.

    Args:
        folder: Where it is, or will be.
    """

    def __init__(self, folder: Path = ROOT / ".make" / "peers") -> None:
        self._folder = folder
        # A copy of the requirements that are installed.
        self._installed = folder / "installed.txt"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self._folder / "bin" / "python"

    @property
    def exists(self) -> bool:
        """Whether it was made, with any versions."""
        return self._installed.is_file()

    def prepare(self) -> None:
        """Makes it unless it has the pinned packages.

        Raises:
            InstallError: The packages could not be installed.
        """
        pinned = REQUIREMENTS.read_text("utf-8")
        if self.exists and self._installed.read_text("utf-8") == pinned:
            return
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(self._folder))
        _uv("pip", "sync", "--quiet", "--python", str(self.python), str(REQUIREMENTS))
        self._installed.write_text(pinned, "utf-8")


def _uv(*arguments: str) -> None:
    try:
        subprocess.run(
            [sys.executable, "-m", "uv", *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
        )
    except subprocess.CalledProcessError as error:
        raise InstallError(_one_line(error.stderr)) from error
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"no end after {_INSTALL_S:.0f} s") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_ERROR_CHARS]


if __name__ == "__main__":
    try:
        PeerEnvironment().prepare()
    except InstallError as failure:
        sys.exit(f"the packages of the peers cannot be installed: {failure}")
