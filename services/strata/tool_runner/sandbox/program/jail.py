"""Restricts the fork server and the process of each call: namespaces, mounts and limits.

The order of the steps matters; comments give the reasons. Sources are the kernel's documentation
(user_namespaces(7), pid_namespaces(7), mount_namespaces(7)) and measurements.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import kernel, landlock, network, seccomp, settings, syscalls
from .watchdog import OPEN_FILES

ENVIRONMENTS = "/environments"
PACKAGES = "/packages"
# Not /dev/zero: a mapping of it is shared memory without a file, see `seccomp`.
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_LINKS = ("bin", "lib", "lib64", "sbin")
_FILES = ("/etc/ld.so.cache", "/etc/localtime")
_READABLE = ("/usr", "/lib", "/lib64", "/bin", *_FILES)
_INNER_ID = 1000
_STACK_BYTES = 8 << 20
# Added to the process limit, so that the watchdog detects and reports the excess first.
_PROCESS_SLACK = 8


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of the fork server.

    Attributes:
        namespaces: Whether to use namespaces, or only Landlock and seccomp.
        uid: User and group to switch to when started as root.
        environments: Folder of the package environments; empty for none.
        ca_file: CA file with which calls verify servers; empty for none.
        support: Source files of modules that calls can import, by name.
    """

    namespaces: bool
    uid: int
    environments: str = ""
    ca_file: str = ""
    support: Mapping[str, str] = field(default_factory=dict)


def base_paths() -> list[str]:
    """Returns the folders besides ``/usr`` that Python itself needs."""
    paths = {sys.base_prefix, sys.base_exec_prefix}
    return sorted(p for p in paths if p != "/usr" and not p.startswith("/usr/"))


def scratch_path() -> str:
    """Returns the path of the scratch folder in a call; not ``/tmp`` if Python is there."""
    return "/scratch" if any(p.startswith("/tmp") for p in base_paths()) else "/tmp"  # noqa: S108


def _mount_point() -> str:
    """Returns an existing folder to mount the new root on."""
    return next(p for p in ("/tmp", "/mnt", "/var/tmp") if os.path.isdir(p))  # noqa: S108, PTH112


def _sources(config: Config) -> list[tuple[str, str]]:
    """Returns the paths of the machine that the jail contains, with their targets."""
    sources = [("/usr", "/usr"), *((p, p) for p in base_paths())]
    sources += [(f"/{n}", f"/{n}") for n in _LINKS if not os.path.islink(f"/{n}")]  # noqa: PTH114
    sources += [(p, p) for p in _FILES]
    if config.environments:
        sources.append((config.environments, ENVIRONMENTS))
    if config.ca_file:
        sources.append((config.ca_file, network.CA_FILE))
    return [(source, target) for source, target in sources if os.path.exists(source)]  # noqa: PTH110


def become_unprivileged(config: Config) -> list[tuple[str, str]]:
    """Drops root, and returns the sources under paths that can still be opened.

    Python may be in a folder that only root can read (``/root``). So root first bind-mounts the
    sources elsewhere, in a mount namespace, if the kernel allows one.
    """
    sources = _sources(config)
    if os.geteuid() != 0:
        return sources
    if config.namespaces:
        with contextlib.suppress(OSError):
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
            root = _mount_point()
            moved = [(source, f"/{n}") for n, (source, _) in enumerate(sources)]
            _bind_read_only(moved, root)
            sources = [
                (root + path, target) for (_, path), (_, target) in zip(moved, sources, strict=True)
            ]
    os.setgroups([])
    os.setresgid(config.uid, config.uid, config.uid)
    os.setresuid(config.uid, config.uid, config.uid)
    # A change of user resets both: the death signal, and the ownership of the /proc entries.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    return sources


def _bind_read_only(binds: Sequence[tuple[str, str]], root: str) -> None:
    """Mounts an empty folder on `root` and bind-mounts the sources below it, read-only."""
    # Opened first, because the new mount may cover them.
    descriptors = [(os.open(source, os.O_PATH | os.O_CLOEXEC), target) for source, target in binds]
    kernel.mount(
        "tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV,
        "size=1m,nr_inodes=1024,mode=755",
    )  # fmt: skip
    for descriptor, target in descriptors:
        source = f"/proc/self/fd/{descriptor}"
        _bind(source, root + target)
        kernel.make_read_only(root + target)
        os.close(descriptor)


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)


def write(path: str, text: str, folder: int | None = None) -> None:
    """Writes a kernel file with a single write, as the kernel requires."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def enter_namespaces() -> None:
    """Moves the fork server into new namespaces; its next child is their first process."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(
        kernel.CLONE_NEWUSER
        | kernel.CLONE_NEWNS
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWCGROUP
    )
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"0 {uid} 1")
    write("/proc/self/gid_map", f"0 {gid} 1")


def build_root(sources: Sequence[tuple[str, str]]) -> None:
    """Gives the fork server a root folder with the sources and nothing else of the machine."""
    kernel.set_host_name("sandbox")
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    links = [(os.readlink(f"/{n}"), n) for n in _LINKS if os.path.islink(f"/{n}")]  # noqa: PTH114, PTH115
    root = _mount_point()
    devices = [(os.open(d, os.O_PATH | os.O_CLOEXEC), d) for d in _DEVICES]
    _bind_read_only(sources, root)
    for target, name in links:
        os.symlink(target.lstrip("/"), f"{root}/{name}")  # noqa: PTH211
    for descriptor, path in devices:
        _bind(f"/proc/self/fd/{descriptor}", root + path)
        os.close(descriptor)
    os.makedirs(f"{root}/etc", exist_ok=True)  # noqa: PTH103
    for name, line in (("passwd", f"tool:x:{_INNER_ID}:{_INNER_ID}::{scratch_path()}:/bin/false"),
                       ("group", f"tool:x:{_INNER_ID}:")):  # fmt: skip
        with open(f"{root}/etc/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line + "\n")
    for folder in (scratch_path(), "/proc", "/old", PACKAGES):
        os.makedirs(root + folder, exist_ok=True)  # noqa: PTH103
    secure = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", f"{root}/proc", "proc", secure | kernel.MS_NOEXEC)
    kernel.pivot_root(root, f"{root}/old")
    os.chdir("/")
    kernel.umount("/old")
    os.rmdir("/old")  # noqa: PTH106
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | secure)


def prepare() -> None:
    """Creates the namespaces of a call that do not depend on its shape."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)


def _limit(kind: int, value: int) -> None:
    """Sets the soft and the hard limit: the first process of a PID namespace ignores SIGXCPU."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _isolate(shape: dict[str, Any], config: Config) -> None:
    """Creates the mounts of one call, and a user namespace that does not own them."""
    limits = shape["limits"]
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    size = f"size={limits['disk_bytes']},nr_inodes={limits['files'] + 1},mode=700"
    kernel.mount("tmpfs", scratch_path(), "tmpfs", flags, size)
    if config.environments:
        if shape["packages"]:
            environment = f"{ENVIRONMENTS}/{shape['packages']}"
            kernel.mount(environment, PACKAGES, None, kernel.MS_BIND | kernel.MS_REC)
            kernel.make_read_only(PACKAGES)
        kernel.umount(ENVIRONMENTS)
    proc_self = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    write("oom_score_adj", "1000", proc_self)
    # Unmounted before the new user namespace, in which inherited mounts cannot be removed.
    kernel.umount("/proc")
    # The mount, network and IPC namespaces belong to the parent user namespace, so capabilities in
    # the new one do not apply to them. The limit of processes is set after this line: in the parent
    # namespace it would count the processes of all calls together.
    kernel.unshare(kernel.CLONE_NEWUSER)
    write("setgroups", "deny", proc_self)
    write("uid_map", f"{_INNER_ID} 0 1", proc_self)
    write("gid_map", f"{_INNER_ID} 0 1", proc_self)
    os.close(proc_self)
    _limit(resource.RLIMIT_NPROC, limits["processes"] + _PROCESS_SLACK)


def _limits(limits: dict[str, int]) -> None:
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"])
    _limit(resource.RLIMIT_FSIZE, limits["disk_bytes"])
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_STACK, _STACK_BYTES)
    _limit(resource.RLIMIT_SIGPENDING, 256)
    for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_CORE):
        _limit(kind, 0)


def lock(shape: dict[str, Any], config: Config, filter_code: bytes | None) -> None:
    """Restricts this process irreversibly, before the tool runs in it.

    Args:
        shape: Limits, packages, network and scratch folder of the expected call.
        config: Configuration of the fork server.
        filter_code: The system call filter; None if it must contain the id of this process.

    Raises:
        OSError: A step failed; the call must not be run.
    """
    if config.namespaces:
        _isolate(shape, config)
        scratch, packages = scratch_path(), PACKAGES if shape["packages"] else ""
    else:
        scratch, packages = shape["scratch"], shape["packages"]
    os.chdir(scratch)
    # A new session is also a new scheduling group (sched(7), autogroup).
    os.setsid()
    _limits(shape["limits"])
    kernel.drop_capabilities()
    readable = [*_READABLE, *base_paths(), *([packages] if packages else [])]
    if config.namespaces:
        readable.append("/etc")
    if not config.namespaces or landlock.abi():
        ports = [network.PORT] if shape["egress"] else []
        landlock.restrict(readable, [scratch], _DEVICES, ports)
    variables = network.environment(bool(config.ca_file)) if shape["egress"] else {}
    settings.set_environment(scratch, variables)
    tempfile.tempdir = scratch
    if packages:
        sys.path.append(packages)
    sys.argv = ["tool"]
    random.seed()
    if not config.namespaces:
        # With namespaces, the kernel ends this process with the fork server's PID namespace.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    code = filter_code or seccomp.assemble(
        seccomp.instructions(syscalls.machine(), own=os.getpid())
    )
    seccomp.load(code)
