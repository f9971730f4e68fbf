"""Builds an environment with uv: wheels are fetched and unpacked, and nothing of them is run."""

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

from strata.tool_execution.domain.packages import PackagesError
from strata.tool_execution.domain.sandbox import MIB

PACKAGES = "packages"
_LOOK_S = 0.2
_LAST_WORDS_S = 5.0
_MAX_WORDS = 1_000
_MAX_OUTPUT = 1 << 16
# What uv answers when the requirements cannot be met; everything else is about the machine.
_UNSATISFIABLE = 1
# Its drawings, and what could carry a password.
_DRAWN = re.compile(r"[\u00d7\u2500-\u257f\u25b6]+")
# uv names an option of its own, which nobody can give here.
_HINT_OF_CERTIFICATES = re.compile(r"hint: [^\n]*--(system-certs|native-tls)[^\n]*")
_CERTIFICATES = (
    "hint: The server of Strata can be told to use the certificates of the machine"
    " (STRATA_TOOL_EXECUTION_PACKAGES_SYSTEM_CERTS) or of a file"
    " (STRATA_TOOL_EXECUTION_PACKAGES_CA_FILE)"
)
_URL_USER = re.compile(r"//[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Most that the building of one environment may take.

    Attributes:
        seconds: Time.
        bytes: Of all its files, those that are fetched among them.
        files: Their number.
    """

    seconds: float = 120.0
    bytes: int = 512 * MIB
    files: int = 50_000


@dataclass(frozen=True, slots=True)
class Builder:
    """Starts uv, watches it, and says what went wrong.

    Attributes:
        uv: The program.
        interpreter: The Python that the packages are for.
        index_url: Index to take them from, with a password in it or not; empty means uv's own.
        wheels: Folder with wheels to take them from instead of an index.
        proxy: Proxy to fetch them through, with a password in it or not; empty for none.
        no_proxy: Hosts that are reached without it, with commas between.
        ca_file: Certificates that servers are verified with; None means uv's own.
        system_certs: Verify them with the certificates of the machine.
        limits: Most that one building may take.
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
        """Builds an environment; when cancelled, returns after uv has ended.

        Args:
            requirements: Checked by `requirements.problem_of`.
            folder: An empty folder, for this alone.
            lock: Descriptor of a lock that uv holds too, so that it is not free before uv has
                ended, even if this process dies.

        Returns:
            The folder with the packages, below `folder`.

        Raises:
            PackagesError: The requirements cannot be met, a limit was met, or uv failed.
        """
        wanted = folder / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in requirements), "utf-8")
        target = folder / PACKAGES
        process = await self._start(wanted, target, folder, lock)
        try:
            said, code = await self._watch(process, folder)
        finally:
            await _end(process)
        if code == 0:
            await asyncio.to_thread(self._check, folder)
            target.mkdir(exist_ok=True)
            await asyncio.to_thread(_let_read, target)
            return target
        if code == -signal.SIGXFSZ:
            raise self._too_large()
        words = self._words(said, folder)
        if code == _UNSATISFIABLE:
            raise PackagesError(words, temporary=False)
        raise PackagesError(f"The packages could not be fetched: {words}", temporary=True)

    async def _start(
        self, wanted: Path, target: Path, folder: Path, lock: int
    ) -> asyncio.subprocess.Process:
        # The address goes through the environment: command lines can be read by everybody.
        index = {"UV_DEFAULT_INDEX": self.index_url} if self.index_url else {}
        network = {"UV_HTTP_TIMEOUT": "30", "UV_HTTP_RETRIES": "2", **self._way()}
        source = ["--no-index", "--find-links", str(self.wheels)] if self.wheels else []
        try:
            return await asyncio.create_subprocess_exec(
                self.uv, "pip", "install", "--quiet", "--color", "never", "--no-config",
                # Wheels alone: a source distribution would run its own code to be built.
                "--only-binary", ":all:", "--no-python-downloads", "--compile-bytecode",
                "--link-mode", "hardlink", "--cache-dir", str(folder / "cache"),
                "--python", self.interpreter, "--target", str(target),
                "--requirements", str(wanted), *source,
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

    def _way(self) -> dict[str, str]:
        way = {}
        if self.proxy:
            way = {"HTTP_PROXY": self.proxy, "HTTPS_PROXY": self.proxy, "NO_PROXY": self.no_proxy}
        if self.ca_file is not None:
            way["SSL_CERT_FILE"] = str(self.ca_file)
        if self.system_certs:
            way["UV_SYSTEM_CERTS"] = "1"
        return way

    async def _watch(self, process: asyncio.subprocess.Process, folder: Path) -> tuple[str, int]:
        if sys.platform == "linux":
            # Of a single file the kernel sees to it, however fast it grows.
            with contextlib.suppress(ProcessLookupError):
                most = (self.limits.bytes, self.limits.bytes)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, most)
        reading = asyncio.ensure_future(_read(process))
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(self.limits.seconds):
                while not ended.done():
                    await asyncio.wait({ended}, timeout=_LOOK_S)
                    await asyncio.to_thread(self._check, folder)
        except TimeoutError:
            raise PackagesError(
                f"The packages took longer than {self.limits.seconds:g} seconds to fetch.",
                temporary=True,
            ) from None
        finally:
            await _end(process)
            # Until its children have closed it, too.
            await asyncio.wait({reading}, timeout=_LAST_WORDS_S)
            reading.cancel()
            ended.cancel()
        said = reading.result() if reading.done() and not reading.cancelled() else ""
        return said, process.returncode if process.returncode is not None else -1

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

    def _words(self, said: str, folder: Path) -> str:
        known = ((self.index_url, "the index"), (self.proxy, "the proxy"), (str(folder), ""))
        for secret, shown in known:
            said = said.replace(secret, shown) if secret else said
        said = _HINT_OF_CERTIFICATES.sub(_CERTIFICATES, said)
        words = " ".join(_URL_USER.sub("//", _DRAWN.sub(" ", said)).split())
        return words[:_MAX_WORDS] or "uv ended without a word."


def _files(folder: Path) -> list[int]:
    """Returns the sizes of the files below a folder, of the same file only once."""
    seen: set[int] = set()
    sizes: list[int] = []
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))  # noqa: PTH118 - many
            except OSError:
                continue
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                sizes.append(status.st_size)
    return sizes


def _let_read(target: Path) -> None:
    """Lets everybody read it, as the user that tools run as may be another, and nobody else write.

    The bits that run a program as its owner go: nothing of a package is to have one.
    """
    for place, _, names in os.walk(target):
        Path(place).chmod(0o755)
        for name in names:
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o755 | 0o444)


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    kept = bytearray()
    while data := await process.stderr.read(1 << 14):
        kept += data[: max(_MAX_OUTPUT - len(kept), 0)]
    return kept.decode("utf-8", "replace")


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends uv and all that it started, and waits for it."""
    if process.returncode is None:
        _kill(process)
    await process.wait()
