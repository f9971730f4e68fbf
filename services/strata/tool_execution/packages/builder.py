"""Builds environments with uv, which downloads and unpacks wheels and runs none of their code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata.shared.sandbox import MIB
from strata.tool_execution.domain.packages import PackagesError

PACKAGES = "packages"
_CHECK_S = 0.2
_LAST_OUTPUT_S = 5.0
_MAX_MESSAGE = 1_000
_MAX_OUTPUT = 1 << 16
# Exit code of uv if the requirements cannot be met; other codes have causes on this machine.
_UNSATISFIABLE = 1
# Box-drawing characters in the output of uv.
_DRAWN = re.compile(r"[\u00d7\u2500-\u257f\u25b6]+")
# uv suggests a command-line option, which users of Strata cannot pass.
_HINT_OF_CERTIFICATES = re.compile(r"hint: [^\n]*--(system-certs|native-tls)[^\n]*")
_CERTIFICATES = (
    "hint: The Strata server can use the certificates of the machine"
    " (STRATA_TOOL_EXECUTION_PACKAGES_SYSTEM_CERTS) or of a file"
    " (STRATA_TOOL_EXECUTION_PACKAGES_CA_FILE)"
)
# Credentials in a URL.
_URL_USER = re.compile(r"//[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Limits of building one environment.

    Attributes:
        seconds: Elapsed time.
        bytes: Size of all its files, including downloads.
        files: Number of files.
    """

    seconds: float = 120.0
    bytes: int = 512 * MIB
    files: int = 50_000


@dataclass(frozen=True, slots=True)
class Builder:
    """Runs uv within limits and reports its errors.

    Attributes:
        uv: Path of the uv program.
        interpreter: The Python interpreter that the packages are for.
        index_url: URL of the package index, may contain a password; empty means uv's default.
        wheels: Folder with wheels to use instead of an index.
        proxy: URL of a proxy, may contain a password; empty for none.
        no_proxy: Hosts that are reached without the proxy, separated by commas.
        ca_file: CA certificates that verify the servers; None means uv's own.
        system_certs: Whether to verify servers with the certificates of the machine.
        limits: Limits of one build.
    """

    uv: str
    interpreter: str
    index_url: str = ""
    wheels: Path | None = None
    proxy: str = ""
    no_proxy: str = ""
    ca_file: Path | None = None
    system_certs: bool = False
    limits: BuildLimits = BuildLimits()

    async def build(self, requirements: Sequence[str], folder: Path, lock: int) -> Path:
        """Builds an environment. If cancelled, it returns after uv has ended.

        Args:
            requirements: Requirements that `requirements.problem_of` accepts.
            folder: An empty folder for this build.
            lock: File descriptor of a lock, which uv inherits. If this process dies, the lock stays
                held until uv has ended.

        Returns:
            The folder with the packages, below `folder`.

        Raises:
            PackagesError: The requirements cannot be met, a limit was exceeded, or uv failed.
        """
        requirements_file = folder / "requirements.txt"
        requirements_file.write_text("".join(f"{line}\n" for line in requirements), "utf-8")
        target = folder / PACKAGES
        process = await self._start(requirements_file, target, folder, lock)
        try:
            output, code = await self._watch(process, folder)
        finally:
            await _end(process)
        if code == 0:
            await asyncio.to_thread(self._check, folder)
            target.mkdir(exist_ok=True)
            await asyncio.to_thread(_let_read, target)
            return target
        if code == -signal.SIGXFSZ:
            raise self._too_large()
        message = self._message(output, folder)
        if code == _UNSATISFIABLE:
            raise PackagesError(message, temporary=False)
        raise PackagesError(f"The packages could not be fetched: {message}", temporary=True)

    async def _start(
        self, requirements_file: Path, target: Path, folder: Path, lock: int
    ) -> asyncio.subprocess.Process:
        # Passed in the environment, since every user of the machine can read command lines.
        index = {"UV_DEFAULT_INDEX": self.index_url} if self.index_url else {}
        network = {"UV_HTTP_TIMEOUT": "30", "UV_HTTP_RETRIES": "2", **self._network_variables()}
        source = ["--no-index", "--find-links", str(self.wheels)] if self.wheels else []
        try:
            return await asyncio.create_subprocess_exec(
                self.uv, "pip", "install", "--quiet", "--color", "never", "--no-config",
                # Only wheels: building a source distribution would run its code.
                "--only-binary", ":all:", "--no-python-downloads", "--compile-bytecode",
                "--link-mode", "hardlink", "--cache-dir", str(folder / "cache"),
                "--python", self.interpreter, "--target", str(target),
                "--requirements", str(requirements_file), *source,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder),
                     **network, **index},
                pass_fds=(lock,),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PackagesError(f"uv cannot be started: {error}.", temporary=True) from error

    def _network_variables(self) -> dict[str, str]:
        variables = {}
        if self.proxy:
            variables = {
                "HTTP_PROXY": self.proxy,
                "HTTPS_PROXY": self.proxy,
                "NO_PROXY": self.no_proxy,
            }
        if self.ca_file is not None:
            variables["SSL_CERT_FILE"] = str(self.ca_file)
        if self.system_certs:
            variables["UV_SYSTEM_CERTS"] = "1"
        return variables

    async def _watch(self, process: asyncio.subprocess.Process, folder: Path) -> tuple[str, int]:
        if sys.platform == "linux":
            # The kernel limits each file, even if it grows between two checks.
            with contextlib.suppress(ProcessLookupError):
                most = (self.limits.bytes, self.limits.bytes)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, most)
        reading = asyncio.ensure_future(_read(process))
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(self.limits.seconds):
                while not ended.done():
                    await asyncio.wait({ended}, timeout=_CHECK_S)
                    await asyncio.to_thread(self._check, folder)
        except TimeoutError:
            raise PackagesError(
                f"The packages took longer than {self.limits.seconds:g} seconds to fetch.",
                temporary=True,
            ) from None
        finally:
            await _end(process)
            # Child processes of uv may still hold the pipe.
            await asyncio.wait({reading}, timeout=_LAST_OUTPUT_S)
            reading.cancel()
            ended.cancel()
        output = reading.result() if reading.done() and not reading.cancelled() else ""
        return output, process.returncode if process.returncode is not None else -1

    def _check(self, folder: Path) -> None:
        size = count = 0
        for entry in _files(folder):
            size, count = size + entry, count + 1
            if size > self.limits.bytes:
                raise self._too_large()
            if count > self.limits.files:
                raise PackagesError(
                    f"The packages have more than {self.limits.files:,} files.", temporary=False
                )

    def _too_large(self) -> PackagesError:
        return PackagesError(
            f"The packages are larger than {self.limits.bytes // MIB} MiB.", temporary=False
        )

    def _message(self, output: str, folder: Path) -> str:
        hidden = ((self.index_url, "the index"), (self.proxy, "the proxy"), (str(folder), ""))
        for secret, replacement in hidden:
            output = output.replace(secret, replacement) if secret else output
        output = _HINT_OF_CERTIFICATES.sub(_CERTIFICATES, output)
        message = " ".join(_URL_USER.sub("//", _DRAWN.sub(" ", output)).split())
        return message[:_MAX_MESSAGE] or "uv failed without a message."


def _files(folder: Path) -> list[int]:
    """Returns the sizes of the files below a folder; hard links to one file count once."""
    inodes: set[int] = set()
    sizes: list[int] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - many
            except OSError:
                continue
            if status.st_ino not in inodes:
                inodes.add(status.st_ino)
                sizes.append(status.st_size)
    return sizes


def _let_read(target: Path) -> None:
    """Makes a folder readable by all users, since tools may run as another user, and not writable.

    Removes setuid and setgid bits.
    """
    for parent, _, names in os.walk(target):
        Path(parent).chmod(0o755)
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o755 | 0o444)


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    start = bytearray()
    while data := await process.stderr.read(1 << 14):
        start += data[: max(_MAX_OUTPUT - len(start), 0)]
    return start.decode("utf-8", "replace")


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills uv and its child processes, and waits for uv."""
    if process.returncode is None:
        _kill(process)
    await process.wait()
