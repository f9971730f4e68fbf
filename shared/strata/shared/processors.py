"""Counts the processors that this process may use, and lists their features."""

from __future__ import annotations

import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Returns the cores that arithmetic of this process can keep busy, at least 1.

    Hardware threads of one core share its arithmetic units, so they count as one. The affinity of
    the process and the quota of its cgroup, as Kubernetes sets it, are limits.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    available = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    cores = max(1, available // parse_threads_per_core(read_system_file(_CPUINFO)))
    quota = cpu_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def cpu_quota() -> float | None:
    """Returns how many processors the cgroup of this process may use; None without a limit."""
    return parse_cpu_quota(read_system_file(_CPU_QUOTA))


def parse_threads_per_core(text: str) -> int:
    """Reads from /proc/cpuinfo how many hardware threads share a core; 1 if it does not say."""
    siblings = cores = 1
    for line in text.splitlines():
        name, _, value = line.partition(":")
        match name.strip():
            case "siblings":
                siblings = int(value)
            case "cpu cores":
                cores = int(value)
    return max(1, siblings // max(1, cores))


def parse_cpu_quota(text: str) -> float | None:
    """Reads a cgroup's `cpu.max`: processors allowed, or None without a limit."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max" or not period:
        return None
    return int(quota) / int(period)


def processor_features() -> frozenset[str]:
    """Returns the features that all processors have, by the kernel's names; none if unknown."""
    return parse_features(read_system_file(_CPUINFO))


def parse_features(text: str) -> frozenset[str]:
    """Returns the features that every processor in /proc/cpuinfo has."""
    features: frozenset[str] | None = None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            flags = frozenset(value.split())
            features = flags if features is None else features & flags
    return features or frozenset()


def read_system_file(path: Path) -> str:
    """Returns the text of a file of the kernel; empty if there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
