"""The seccomp filter: an allowlist of system calls.

The filter is classic BPF over ``struct seccomp_data`` (linux/seccomp.h): number of the call,
architecture, and arguments. Only the lower 32 bits of arguments are tested, since the kernel uses
no more of the arguments that are tested here.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence

from . import kernel, syscalls

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_X32_BIT = 0x40000000
# The highest number in the tables; newer calls get the kernel's own answer, so that a C library
# that tries a new call falls back.
_NEWER = 451

_CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW*, CLONE_NEWTIME among them
_CLONE_THREAD = 0x00010000
_CLONE_FILES = 0x00000400
_CLOSE_RANGE_UNSHARE = 2
_AF_UNIX = 1
_AF_INET = 2
_SOCK_STREAM = 1
_NONBLOCK = 0o4000
_CLOEXEC = 0o2000000
_SOL_SOCKET = 1
_IPPROTO_TCP = 6
# SO_REUSEADDR, SO_KEEPALIVE, SO_RCVTIMEO, SO_SNDTIMEO. Filters that are put into the kernel
# (SO_ATTACH_FILTER and its like) and sizes of buffers (SO_SNDBUF, SO_RCVBUF) are not among them:
# the watchdog counts each socket with its default size.
_SOCKET_OPTIONS = (2, 9, 20, 21)
# TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_QUICKACK, TCP_USER_TIMEOUT; options
# that load another protocol (TCP_ULP) or repair sockets are not among them.
_TCP_OPTIONS = (1, 4, 5, 6, 12, 18)
# Connects with the first byte that is sent, which Landlock before Linux 6.13 does not check.
_MSG_FASTOPEN = 0x20000000
# Input to other terminals; and signals of the kernel to other processes (asm-generic/sockios.h),
# which Landlock before ABI 6 does not check.
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_GETOWN, F_DUPFD_CLOEXEC, F_GETPIPE_SZ,
# F_GET_SEALS. Refused are, among others, signals to others (F_SETOWN, F_SETSIG), leases
# (F_SETLEASE), watches on folders (F_NOTIFY), larger pipes (F_SETPIPE_SZ) and locks of open files
# (F_OFD_SETLK).
_FCNTLS = (0, 1, 2, 3, 4, 5, 9, 1030, 1032, 1034)
_RECORD_LOCKS = (6, 7)  # F_SETLK, F_SETLKW
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20
_MAP_HUGETLB = 0x40000
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_MM = 35
_PR_SET_PTRACER = 0x59616D61
_SET_ID_BITS = 0o6000
_SET_MODE_FILTER = 1

# Calls in the tables that only the jail uses, or that tools must not make: sockets of all kinds (a
# call has only the network that `_network` permits, and abstract names of unix sockets belong to a
# network namespace), and inotify (watches on /usr and packages would show what other calls and the
# machine do with them, and instances are counted per user on the whole machine).
_NEVER = frozenset({
    "socket", "connect", "accept", "accept4", "bind", "listen", "landlock_create_ruleset",
    "landlock_add_rule", "landlock_restrict_self", "pivot_root", "capset", "seccomp",
    "mount_setattr", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
})  # fmt: skip
# Without namespaces a tool runs as the user of the service, and Landlock (up to ABI 7) does not
# restrict these calls: the owner may change modes, owners and times of files it must not open.
_OF_OWNERS = frozenset({
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "truncate", "setpriority", "tkill", "pidfd_open",
})  # fmt: skip
# The watchdog cannot see the descriptors of a process that is not dumpable.
_PRCTLS = (_PR_SET_MM, _PR_SET_SECCOMP, _PR_SET_PTRACER, _PR_SET_DUMPABLE)
# Without a process namespace a call could outlive the fork server that it runs in.
_PRCTLS_ALONE = (*_PRCTLS, _PR_SET_PDEATHSIG)

Instruction = tuple[int, int, int, int]


def _refuse(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)


_PERMIT: Instruction = (_RETURN, 0, 0, _ALLOW)
_DENY = _refuse(errno.EPERM)
# The call returns 0 and nothing is done.
_PRETEND = _refuse(0)


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _only(index: int, values: Sequence[int]) -> list[Instruction]:
    """Permits the call if the argument is one of `values`."""
    last = len(values)
    tests = [(_EQUAL, last - n, 0, value) for n, value in enumerate(values)]
    return [_argument(index), *tests, _DENY, _PERMIT]


def _none_of(index: int, values: Sequence[int]) -> list[Instruction]:
    last = len(values)
    tests = [(_EQUAL, last - n, 0, value) for n, value in enumerate(values)]
    return [_argument(index), *tests, _PERMIT, _DENY]


def _without_bits(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), _DENY, _PERMIT]


def _stream_types() -> list[int]:
    return [_SOCK_STREAM | flags for flags in (0, _NONBLOCK, _CLOEXEC, _NONBLOCK | _CLOEXEC)]


def _network() -> dict[str, list[Instruction]]:
    """Permits the calls that a client of the proxy needs: TCP over IPv4, connect, a few options.

    Other stream protocols (SCTP, MPTCP) are refused, because Landlock does not check them.
    """
    return {
        "socket": [
            _argument(0),
            (_EQUAL, 1, 0, _AF_INET),
            _DENY,
            _argument(2),
            (_EQUAL, 2, 0, 0),
            (_EQUAL, 1, 0, _IPPROTO_TCP),
            _DENY,
            *_only(1, _stream_types()),
        ],
        "connect": [_PERMIT],
        # One list for both levels: each number is harmless at the other level.
        "setsockopt": [
            _argument(1),
            (_EQUAL, 2, 0, _SOL_SOCKET),
            (_EQUAL, 1, 0, _IPPROTO_TCP),
            _DENY,
            *_only(2, (*_SOCKET_OPTIONS, *_TCP_OPTIONS)),
        ],
        "sendto": _without_bits(3, _MSG_FASTOPEN),
        "sendmsg": _without_bits(2, _MSG_FASTOPEN),
    }


def _stream_pair() -> list[Instruction]:
    """Permits pairs of streams of unix sockets.

    An end of a pair of datagrams is a socket that can send to any path and abstract name.
    """
    return [_argument(0), (_EQUAL, 1, 0, _AF_UNIX), _DENY, *_only(1, _stream_types())]


def _options_of_pairs() -> list[Instruction]:
    return [_argument(1), (_EQUAL, 1, 0, _SOL_SOCKET), _DENY, *_only(2, _SOCKET_OPTIONS)]


def _clones(of_process: Instruction) -> list[Instruction]:
    """Permits threads, which share the table of descriptors: the watchdog checks that table.

    Args:
        of_process: The result of calls that create a process.
    """
    return [
        _argument(0),
        (_ANY_BIT, 0, 1, _CLONE_NAMESPACES),
        _DENY,
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        of_process,
        (_ANY_BIT, 1, 0, _CLONE_FILES),
        _DENY,
        _PERMIT,
    ]


def _file_control() -> list[Instruction]:
    """Permits harmless commands of ``fcntl``; record locks report success without locking.

    A lock on a file of the machine would block other programs, and the records of locks are
    unlimited kernel memory. In one process, record locks never exclude anything, so a database in
    the scratch folder works as with real locks.
    """
    last = len(_FCNTLS)
    return [
        _argument(1),
        *[(_EQUAL, last + 3 - n, 0, value) for n, value in enumerate(_FCNTLS)],
        (_EQUAL, 1, 0, _RECORD_LOCKS[0]),
        (_EQUAL, 0, 1, _RECORD_LOCKS[1]),
        _PRETEND,
        _DENY,
        _PERMIT,
    ]


def _mappings() -> list[Instruction]:
    """Permits mappings except of shared memory without a file, and of huge pages.

    Shared memory stays allocated when it is discarded or partly unmapped, and then counts for no
    process; huge pages are a resource of the whole machine.
    """
    return [
        _argument(3),
        (_ANY_BIT, 3, 0, _MAP_HUGETLB),
        (_ANY_BIT, 0, 1, _MAP_ANONYMOUS),
        (_ANY_BIT, 1, 0, _MAP_SHARED),
        _PERMIT,
        _DENY,
    ]


def _rules(own: int | None) -> dict[str, list[Instruction]]:
    # A byte that waits in a pipe or a socket keeps its whole page allocated, but only the byte
    # counts. Programs that try these calls copy instead.
    unsupported = _refuse(errno.EINVAL)
    rules = {
        # Its flags are in memory, which a filter cannot read: the library falls back to clone.
        "clone3": [_refuse(errno.ENOSYS)],
        "clone": _clones(_PERMIT),
        "close_range": _without_bits(2, _CLOSE_RANGE_UNSHARE),
        "mmap": _mappings(),
        "splice": [unsupported],
        "tee": [unsupported],
        "sendfile": [unsupported],
        # A lock belongs to the open file: refused, as it could not exclude another one in the call.
        "flock": [_refuse(errno.ENOLCK)],
        # A descriptor in transit is in no table, but keeps a deleted file or the buffers of a
        # socket.
        "sendmsg": [_DENY],
        "socketpair": _stream_pair(),
        "setsockopt": _options_of_pairs(),
        "ioctl": _none_of(1, _IOCTLS),
        "fcntl": _file_control(),
        "prctl": _none_of(0, _PRCTLS if own is None else _PRCTLS_ALONE),
        "chmod": _without_bits(1, _SET_ID_BITS),
        "fchmod": _without_bits(1, _SET_ID_BITS),
        "fchmodat": _without_bits(2, _SET_ID_BITS),
    }
    if own is None:
        return rules
    # Without namespaces the machine's processes are visible to it, and it must reach only itself.
    again = _refuse(errno.EAGAIN)
    rules["clone"] = _clones(again)
    # They could allocate any amount before the watchdog checks. Libraries write zeros instead.
    rules["fallocate"] = [_refuse(errno.EOPNOTSUPP)]
    rules["fork"] = rules["vfork"] = [again]
    for name in ("prlimit64", "sched_setaffinity", "sched_setattr", "kill"):
        rules[name] = _only(0, [0, own])
    rules["tgkill"] = _only(0, [own])
    for name in _OF_OWNERS:
        rules[name] = [_DENY]
    return rules


def instructions(
    machine: str, own: int | None = None, *, network: bool = False
) -> list[Instruction]:
    """Returns the filter.

    Args:
        machine: Architecture of the call numbers: ``x86_64`` or ``aarch64``.
        own: Id of the process if it has no PID namespace: then it must not fork or refer to other
            processes. None if it has one.
        network: Whether it may connect to the proxy in its network namespace.
    """
    numbers = syscalls.TABLES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
    ]
    all_rules = {**_rules(own), **(_network() if network else {})}
    rules = {name: rule for name, rule in all_rules.items() if name in numbers}
    for name, rule in rules.items():
        program += [(_EQUAL, 0, len(rule), numbers[name]), *rule]
    plain = {name: n for name, n in numbers.items() if name not in rules and name not in _NEVER}
    program += _ranges(plain)
    return [*program, (_AT_LEAST, 0, 1, _NEWER), _refuse(errno.ENOSYS), _DENY]


def _ranges(numbers: Mapping[str, int]) -> list[Instruction]:
    """Permits these numbers; consecutive ones share one test."""
    program: list[Instruction] = []
    ordered = sorted(numbers.values())
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        low, high = ordered[start], ordered[end]
        if low == high:
            program += [(_EQUAL, 0, 1, low), _PERMIT]
        else:
            program += [(_AT_LEAST, 0, 2, low), (_AT_LEAST, 1, 0, high + 1), _PERMIT]
        start = end + 1
    return program


def assemble(program: Sequence[Instruction]) -> bytes:
    """Returns the program as an array of ``struct sock_filter``."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def load(code: bytes) -> None:
    """Applies a filter permanently to this process and all that it starts.

    Raises:
        OSError: The kernel refuses the filter.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    kernel.syscall("seccomp", _SET_MODE_FILTER, 0, ctypes.byref(program))
