"""Watches memory, processes and scratch folders of running calls.

Memory includes the buffers of sockets and pipes. Their fill level is not visible from outside, so
each buffer counts as full.

Kernel limits (setrlimit) apply to single processes. A control group could limit the process tree of
a call, but is rarely writable. So the tree is checked twenty times a second.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PERIOD_S = 0.05
OPEN_FILES = 128
"""Maximum number of descriptors of one process."""
_PIPE_BYTES = 64 << 10
# An epoll instance keeps a record of 200 bytes for every open file under every number of a
# descriptor; rounded up. Other files without a type are small, and rare.
_POLL_BYTES = 4 << 20
# Shared memory counts for each process that maps it, so the sum is an upper bound.
_COUNTED = re.compile(r"^(?:RssAnon|RssShmem|VmPTE|VmSwap):\s*(\d+) kB$", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s*(\d+)$", re.MULTILINE)
# A mapping of a deleted file: its device and inode.
_UNNAMED = re.compile(r"^\S+ \S+ \S+ ([0-9a-f]+:[0-9a-f]+) (\d+) +/.* \(deleted\)$", re.MULTILINE)
_THREADS = re.compile(r"^Threads:\s*(\d+)$", re.MULTILINE)


@dataclass(slots=True)
class Watched:
    """A running call.

    Attributes:
        tree_bytes: Memory limit of all its processes together.
        processes: Limit of processes and threads.
        scratch: Its scratch folder if the kernel does not limit it; otherwise empty.
        disk_bytes: Size limit of the scratch folder.
        files: Limit of entries in the scratch folder.
        peak_bytes: Peak memory so far.
        over: The limit that it exceeded: ``memory``, ``processes``, ``disk`` or ``files``.
    """

    tree_bytes: int
    processes: int
    scratch: str
    disk_bytes: int
    files: int
    peak_bytes: int = 0
    over: str = ""


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    memory: int
    threads: int


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    parent, threads = _PARENT.search(text), _THREADS.search(text)
    if parent is None:
        return None
    count = int(threads[1]) if threads else 1
    memory = _memory(text)
    if memory is None:
        # Its first thread has ended; other threads may still hold the memory.
        memory = _memory_of_threads(pid) if count else 0
    return _Process(int(parent[1]), memory, max(count, 1))


def _memory(text: str) -> int | None:
    sizes = _COUNTED.findall(text)
    return sum(int(kib) for kib in sizes) * 1024 if sizes else None


def _memory_of_threads(pid: int) -> int:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8", errors="replace") as f:  # noqa: PTH123
                memory = _memory(f.read())
            if memory is not None:
                return memory
    except OSError:
        return 0
    return 0


def largest_socket() -> int:
    """Returns the maximum number of bytes that the kernel buffers for a default socket.

    Twice the buffer size, since a message is accepted as long as there is any space.
    """
    ends = socket.socketpair()
    try:
        return 2 * ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    finally:
        for end in ends:
            end.close()


def look(watched: dict[int, Watched], whole_tree: bool, socket_bytes: int) -> None:
    """Records peaks and exceeded limits.

    Args:
        watched: The calls by the id of their first process.
        whole_tree: Whether calls may have more than one process.
        socket_bytes: Bytes to count for each socket.
    """
    pids = [int(n) for n in os.listdir("/proc") if n.isdigit()] if whole_tree else list(watched)  # noqa: PTH208
    processes = {pid: process for pid in pids if (process := _read(pid))}
    memory = dict.fromkeys(watched, 0)
    threads = dict.fromkeys(watched, 0)
    buffers: dict[int, dict[object, int]] = {pid: {} for pid in watched}
    for pid, process in processes.items():
        root = _root(pid, processes, watched)
        if root is not None:
            memory[root] += process.memory
            threads[root] += process.threads
            buffers[root].update(_buffers(pid, socket_bytes))
    for pid, call in watched.items():
        call.peak_bytes = max(call.peak_bytes, memory[pid])
        if memory[pid] + sum(buffers[pid].values()) > call.tree_bytes:
            call.over = call.over or "memory"
        elif threads[pid] > call.processes:
            call.over = call.over or "processes"
        elif call.scratch:
            call.over = call.over or _disk(pid, call)


def _buffers(pid: int, socket_bytes: int) -> dict[object, int]:
    """Returns the kernel memory of the open sockets, pipes and epolls of a process.

    Returns:
        Bytes by an identity of the object, so that shared objects count once.
    """
    buffers: dict[object, int] = {}
    try:
        descriptors = _of_a_thread(pid, "fd", _list)
    except PermissionError:
        # It cannot be inspected: count the maximum.
        return {(pid, "hidden"): OPEN_FILES * socket_bytes}
    for descriptor in descriptors:
        try:
            status = os.stat(descriptor)  # noqa: PTH116
        except OSError:
            # Closed meanwhile.
            continue
        if stat.S_ISSOCK(status.st_mode):
            buffers[status.st_dev, status.st_ino] = socket_bytes
        elif stat.S_ISFIFO(status.st_mode):
            buffers[status.st_dev, status.st_ino] = _PIPE_BYTES
        elif not stat.S_IFMT(status.st_mode):
            # All files of this kind have one inode.
            buffers[descriptor] = _POLL_BYTES
    return buffers


def _root(pid: int, processes: dict[int, _Process], watched: dict[int, Watched]) -> int | None:
    for _ in range(len(processes) + 1):
        if pid in watched:
            return pid
        process = processes.get(pid)
        if process is None:
            return None
        pid = process.parent
    return None


def _disk(pid: int, call: Watched) -> str:
    """Returns the limit that the scratch folder exceeds: ``disk``, ``files`` or empty."""
    try:
        mapped, deleted = _deleted(pid)
    except PermissionError:
        # A process that hides its files is treated as over the limit.
        return "disk"
    # The size of a file that is only mapped is unknown: count the maximum.
    used_bytes = mapped * call.disk_bytes
    if used_bytes > call.disk_bytes:
        return "disk"
    statuses = (*_tree(call.scratch, call.files + 1), *deleted)
    for entries, status in enumerate(statuses, start=1):
        used_bytes += status.st_blocks * 512
        if used_bytes > call.disk_bytes:
            return "disk"
        if entries > call.files:
            return "files"
    return ""


def _tree(folder: str, max_entries: int) -> Iterator[os.stat_result]:
    folders, count = [folder], 0
    while folders and count < max_entries:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    count += 1
                    yield status
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    if count >= max_entries:
                        return
        except OSError:
            # The folder has been removed, or its path is too long.
            continue


def _deleted(pid: int) -> tuple[int, list[os.stat_result]]:
    """Returns the deleted files that a process still holds.

    Returns:
        The number of files that are mapped and not open, and the status of those that are open.

    Raises:
        PermissionError: The process has made this information unreadable.
    """
    opened: dict[int, os.stat_result] = {}
    for descriptor in _of_a_thread(pid, "fd", _list):
        try:
            status = os.stat(descriptor)  # noqa: PTH116
        except OSError:
            # Closed meanwhile.
            continue
        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            opened[status.st_ino] = status
    mapped: set[tuple[str, str]] = set()
    for text in _of_a_thread(pid, "maps", _text):
        mapped.update(match_ for match_ in _UNNAMED.findall(text) if int(match_[1]) not in opened)
    return len(mapped), list(opened.values())


def _of_a_thread(pid: int, name: str, read_file: Callable[[str], list[str]]) -> list[str]:
    """Returns a listing in /proc of the first thread that has one; threads share its content.

    The main thread may have ended, and then its listings are empty.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    for thread in threads:
        folder = f"/proc/{pid}/task/{thread}"
        try:
            if content := read_file(f"{folder}/{name}"):
                return content
        except PermissionError:
            # A thread that has ended has no memory and cannot be inspected either.
            if any(_memory(text) is not None for text in _status(folder)):
                raise
        except OSError:
            continue
    return []


def _status(folder: str) -> list[str]:
    try:
        return _text(f"{folder}/status")
    except OSError:
        return []


def _list(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in os.listdir(folder)]  # noqa: PTH208


def _text(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        text = file.read()
    return [text] if text else []
