"""System calls that Python's standard library lacks: namespaces, mounts, capabilities.

All functions raise OSError with the error of the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

from . import syscalls

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
_MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def syscall(name: str, *arguments: object) -> int:
    """Makes a system call by its name and returns its result."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(syscalls.number(name)), *words), name)


def unshare(flags: int) -> None:
    """Moves this process (its next children, for CLONE_NEWPID) into new namespaces."""
    _checked(_libc.unshare(flags), f"unshare {flags:#x}")


def setns(descriptor: int, flags: int) -> None:
    """Moves this process into the namespace of a descriptor."""
    _checked(_libc.setns(descriptor, flags), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mounts a file system."""
    result = _libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _checked(result, f"mount {kind or source} on {target}")


def make_read_only(target: str) -> None:
    """Makes a mount and all below it read-only, without devices and setuid programs.

    ``mount_setattr`` (Linux 5.12) includes the mounts below and keeps flags that a more privileged
    namespace locked. Older kernels can change only the mount itself.
    """
    flags = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    try:
        syscall(
            "mount_setattr", _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
        )
    except OSError:
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def umount(target: str) -> None:
    """Unmounts a mount and all below it."""
    _checked(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Makes `new` the root; the previous root is then at `old`."""
    syscall("pivot_root", new.encode(), old.encode())


def prctl(option: int, value: int = 0, other: int = 0) -> int:
    """Sets a property of this process."""
    words = [ctypes.c_ulong(word) for word in (value, other, 0, 0)]
    return _checked(_libc.prctl(option, *words), f"prctl {option}")


def close_from(lowest: int) -> None:
    """Closes every descriptor from `lowest` on."""
    syscall("close_range", lowest, 0x7FFFFFFF, 0)


def set_host_name(name: str) -> None:
    """Sets the host name of this namespace."""
    _checked(_libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_capabilities() -> None:
    """Drops all capabilities, including those that a program could gain on execution."""
    for capability in range(_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break
    with contextlib.suppress(OSError):
        prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    syscall("capset", header, bytes(24))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
