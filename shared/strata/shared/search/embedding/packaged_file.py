"""Files of models that are installed as packages, checked by their sha256."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file of an installed package.

    Attributes:
        distribution: Name of the package in the package index.
        module: Its import name.
        path: Path of the file within the module.
        sha256: The digest of the file that this release was tested with.
        setting: Environment variable that names another place of the file; empty if there is none.
    """

    distribution: str
    module: str
    path: str
    sha256: str
    setting: str = ""

    def find(self) -> Path:
        """Returns the path of the file, without importing the package.

        Raises:
            FailedPreconditionError: The package is not installed.
        """
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            path = Path(folder) / self.path
            if path.is_file():
                return path
        otherwise = f", or set {self.setting} to the file" if self.setting else ""
        raise FailedPreconditionError(
            "the weights of the embedding model are not installed: install the package "
            f"{self.distribution}{otherwise}",
            reason=Reason.MODEL_NOT_CONFIGURED,
        )

    def checked(self, path: Path | None = None) -> Path:
        """Returns the path of the file if its content is the expected one.

        Args:
            path: Path of the file; None for the file of the package.

        Raises:
            FailedPreconditionError: The package is not installed, or the file cannot be read.
            DataLossError: The sha256 differs. Other weights give other vectors, which must not
                be mixed with stored ones of the same model id.
        """
        location = self.find() if path is None else path
        try:
            with location.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FailedPreconditionError(
                f"the embedding model {location} cannot be read: {error.strerror}",
                reason=Reason.MODEL_NOT_CONFIGURED,
                metadata={"path": str(location)},
            ) from error
        if digest != self.sha256:
            raise DataLossError(
                f"the embedding model {location} is not the expected file: sha256 is {digest}, "
                f"expected {self.sha256}; install {self.distribution} again",
                metadata={"path": str(location), "sha256": digest, "expected_sha256": self.sha256},
            )
        return location
