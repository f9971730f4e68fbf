"""What this machine's processor offers to the model's runtime."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# The runtime's build switches and the kernel's names of the features they need. AMX is left out
# on purpose: virtual machines advertise its tiles and then trap on the first use.
_SWITCHES = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_BMI2": ("bmi2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "GGML_AVX512_VBMI": ("avx512f", "avx512vbmi"),
    "GGML_AVX512_VNNI": ("avx512f", "avx512_vnni"),
    "GGML_AVX512_BF16": ("avx512f", "avx512_bf16"),
}
_MOST_USEFUL_THREADS = 8


@dataclass(frozen=True)
class Cpu:
    """The processor as the runtime's build and the server see it.

    Attributes:
        machine: The architecture, such as `x86_64`.
        features: Feature names as the kernel spells them; empty where it does not list them.
        threads: How many threads the model should use.
    """

    machine: str
    features: frozenset[str]
    threads: int

    @property
    def too_old(self) -> bool:
        """Whether an x86 processor lacks what makes the model usable at all (AVX2)."""
        return self.machine == "x86_64" and bool(self.features) and "avx2" not in self.features

    def build_switches(self) -> dict[str, str]:
        """The CMake definitions for code that runs on this processor.

        On x86 each feature is named, since `-march=native` believes what a virtual machine
        says about AMX. Elsewhere the compiler's own detection is used.
        """
        if self.machine != "x86_64" or not self.features:
            return {"GGML_NATIVE": "ON"}
        named = {
            switch: "ON" if self.features.issuperset(needed) else "OFF"
            for switch, needed in _SWITCHES.items()
        }
        return {"GGML_NATIVE": "OFF", **named}

    def fingerprint(self) -> str:
        """Short text that differs when code built for one processor may not run on another."""
        switches = "".join(f"{name}={value};" for name, value in self.build_switches().items())
        return hashlib.sha256(f"{self.machine};{switches}".encode()).hexdigest()[:12]


def parse_cpuinfo(text: str) -> tuple[frozenset[str], int]:
    """Reads /proc/cpuinfo.

    Returns:
        The features that every processor has, and how many hardware threads share a core.
    """
    features: frozenset[str] | None = None
    siblings = cores = 1
    for line in text.splitlines():
        name, _, value = line.partition(":")
        match name.strip():
            case "flags" | "Features":
                flags = frozenset(value.split())
                features = flags if features is None else features & flags
            case "siblings":
                siblings = int(value)
            case "cpu cores":
                cores = int(value)
    return features or frozenset(), max(1, siblings // max(1, cores))


def parse_cpu_quota(text: str) -> int | None:
    """Reads a cgroup's `cpu.max`: whole processors allowed, or None without a limit."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max" or not period:
        return None
    return max(1, int(quota) // int(period))


def detect() -> Cpu:
    """Looks at this machine."""
    features, per_core = parse_cpuinfo(_read(_CPUINFO))
    affinity = getattr(os, "sched_getaffinity", None)
    available = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    quota = parse_cpu_quota(_read(_CPU_QUOTA))
    # Two hardware threads of one core share its arithmetic units: a second one only adds waiting.
    threads = max(1, available // per_core)
    if quota is not None:
        threads = min(threads, quota)
    return Cpu(platform.machine(), features, min(threads, _MOST_USEFUL_THREADS))


def parse_available_memory(text: str) -> int | None:
    """Reads /proc/meminfo: bytes that can be used without swapping, or None if not said."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def available_memory() -> int | None:
    """Bytes of memory that can be used without swapping; None where the system does not say."""
    return parse_available_memory(_read(_MEMINFO))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
