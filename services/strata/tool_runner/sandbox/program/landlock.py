"""Landlock rules: files that a process may open, ports that it may reach (linux/landlock.h)."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from . import kernel

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_FIRST = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_RULE_PATH_BENEATH = 1
_RULE_NET_PORT = 2
_CONNECT_TCP = 1 << 1
_CREATE_RULESET_VERSION = 1


def abi() -> int:
    """Returns the Landlock version of the kernel; 0 if it has none or it is disabled."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _handled(version: int) -> tuple[int, int, int]:
    files = _FIRST
    files |= _REFER if version >= 2 else 0
    files |= _TRUNCATE if version >= 3 else 0
    files |= _IOCTL_DEV if version >= 5 else 0
    ports = 3 if version >= 4 else 0  # bind and connect of TCP
    scopes = 3 if version >= 6 else 0  # abstract sockets and signals
    return files, ports, scopes


def restrict(
    readable: Iterable[str],
    writable: Iterable[str],
    devices: Iterable[str],
    ports: Iterable[int] = (),
) -> None:
    """Restricts this process permanently to the given files and ports.

    Args:
        readable: Files and folders that may be read; missing ones are left out.
        writable: Folders in which everything is allowed except devices and executing programs.
        devices: Device files that may be read and written.
        ports: TCP ports to which it may connect, if the Landlock version supports ports.

    Raises:
        OSError: The kernel has no Landlock, or refuses a rule.
    """
    version = abi()
    files, network, scopes = _handled(version)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("QQQ", files, network, scopes)
    ruleset = kernel.syscall("landlock_create_ruleset", attributes, size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & files)
        for path in writable:
            _allow(ruleset, path, files & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))
        for path in devices:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        for port in ports if network else ():
            rule = struct.pack("=QQ", _CONNECT_TCP, port)
            kernel.syscall("landlock_add_rule", ruleset, _RULE_NET_PORT, rule, 0)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, descriptor)
        kernel.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
