"""The model's runtime: llama.cpp's Python bindings, built once in a separate environment.

They are not a dependency of Strata, because they have no wheels, take minutes to compile, and
are needed only on a machine without another chat model.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from strata.standalone.chat_model.cpu import Cpu
from strata.standalone.chat_model.packages import (
    CommandError,
    LineCallback,
    PackageClient,
    run,
    silent,
)
from strata.standalone.chat_model.progress import (
    Cancellation,
    LocalModelError,
    Progress,
    ProgressCallback,
    StartPhase,
)

REQUIREMENT = "llama-cpp-python==0.3.36"

_COMPILERS = ("c++", "g++", "clang++")
_LEAN_BUILD = Path(__file__).with_name("lean_build.cmake")
_BUILD_STEP = re.compile(r"\[(\d+)/(\d+)\]")
_NEEDED_BYTES = 1_200_000_000
_MINUTES = "3 to 6 minutes on two cores"


class RuntimeInstaller:
    """Builds the runtime in a folder named after the processor and the package version.

    Machines can share a cache folder, in a network home or an image. Code compiled for one
    processor can crash on another, so each kind of processor gets its own build. The caller must
    hold the cache folder's lock.

    Args:
        folder: The folder of all runtimes.
        cpu: The processor to build for.
        clients: Package clients, tried in order.
        python_tag: The interpreter that the environment is made from, such as `cp311`.
    """

    def __init__(
        self, folder: Path, cpu: Cpu, clients: Sequence[PackageClient], python_tag: str
    ) -> None:
        self._cpu = cpu
        self._clients = clients
        version = REQUIREMENT.replace("==", "-")
        self.environment = folder / f"{version}-{python_tag}-{cpu.machine}-{cpu.fingerprint()}"
        self._seal = self.environment / "strata-ready.json"

    @property
    def python(self) -> Path:
        """The interpreter that can import the bindings, after `ensure`."""
        return self.environment / "bin" / "python"

    def ready(self) -> bool:
        """Whether there is a complete build whose base interpreter still exists."""
        return self._seal.exists() and self.python.exists()

    def discard(self) -> None:
        """Removes a build, so that the next `ensure` makes a new one."""
        shutil.rmtree(self.environment, ignore_errors=True)

    def ensure(self, report: ProgressCallback, cancellation: Cancellation) -> Path:
        """Returns the runtime's interpreter; builds the runtime if it is missing.

        Raises:
            LocalModelError: The runtime cannot be built here; the message says why.
            WorkCancelledError: The caller cancelled.
        """
        if self.ready():
            return self.python
        self._require_machine()
        troubles: list[str] = []
        for client in self._clients:
            self.discard()
            try:
                self._build(client, report, cancellation)
            except CommandError as error:
                troubles.append(f"{client.name}: {error.last_words()}")
                continue
            self._seal.write_text(json.dumps({"requirement": REQUIREMENT}))
            return self.python
        self.discard()
        raise LocalModelError(f"{REQUIREMENT} could not be built ({'; '.join(troubles)})")

    def _require_machine(self) -> None:
        if self._cpu.too_old:
            raise LocalModelError("the local demo model needs a processor with AVX2")
        if not any(shutil.which(name) for name in _COMPILERS):
            raise LocalModelError(
                "the local demo model's runtime is built from source and there is no C++ "
                "compiler here: install one (g++ or clang), or start any other local model server"
            )
        parent = self.environment.parent
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < _NEEDED_BYTES:
            raise LocalModelError(
                f"building the local demo model's runtime needs {_NEEDED_BYTES // 1_000_000} MB "
                f"of free space in {parent}, but only {free // 1_000_000} MB are free"
            )

    def _build(
        self, client: PackageClient, report: ProgressCallback, cancellation: Cancellation
    ) -> None:
        message = f"Building {REQUIREMENT} with {client.name}, once, {_MINUTES}"
        report(Progress(StartPhase.RUNTIME, message))
        client.create_environment(self.environment, cancellation)
        client.install(
            REQUIREMENT,
            self.environment,
            self._build_settings(),
            cancellation,
            _step_reporter(message, report),
        )
        # Checks that the native code loads; the server's warm-up checks that it computes.
        run([str(self.python), "-I", "-c", "import llama_cpp"], cancellation, silent)

    def _build_settings(self) -> dict[str, str]:
        definitions = {
            **self._cpu.build_switches(),
            "LLAVA_BUILD": "OFF",
            "CMAKE_PROJECT_INCLUDE": str(_LEAN_BUILD),
        }
        return {f"cmake.define.{name}": value for name, value in definitions.items()}


def _step_reporter(message: str, report: ProgressCallback) -> LineCallback:
    """Returns a callback that reports the build tool's `[12/80]` lines as progress."""
    last = 0

    def on_line(line: str) -> None:
        nonlocal last
        match = _BUILD_STEP.search(line)
        if match is None:
            return
        finished, total = int(match[1]), int(match[2])
        if finished != last and total > 1:
            last = finished
            report(Progress(StartPhase.RUNTIME, message, finished, total))

    return on_line
