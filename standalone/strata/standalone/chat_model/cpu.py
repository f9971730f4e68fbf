"""Detects the features of the processor and the available memory."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from strata.shared.processors import processor_features, read_system_file, usable_cores

_MEMINFO = Path("/proc/meminfo")

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
    """The properties of the processor that matter for building and running the runtime.

    Attributes:
        machine: The architecture, such as `x86_64`.
        features: The kernel's feature names; empty if it does not list them.
        threads: How many threads the model should use.
    """

    machine: str
    features: frozenset[str]
    threads: int

    @property
    def too_old(self) -> bool:
        """Whether an x86 processor lacks AVX2, without which the model is too slow."""
        return self.machine == "x86_64" and bool(self.features) and "avx2" not in self.features

    def build_switches(self) -> dict[str, str]:
        """The CMake definitions for code that runs on this processor.

        On x86 each feature is named, because `-march=native` would use AMX where a virtual machine
        advertises it. On other architectures the compiler detects the features.
        """
        if self.machine != "x86_64" or not self.features:
            return {"GGML_NATIVE": "ON"}
        switches = {
            switch: "ON" if self.features.issuperset(needed) else "OFF"
            for switch, needed in _SWITCHES.items()
        }
        return {"GGML_NATIVE": "OFF", **switches}

    def fingerprint(self) -> str:
        """A short text that differs between processors that may not run the same code."""
        switches = "".join(f"{name}={value};" for name, value in self.build_switches().items())
        return hashlib.sha256(f"{self.machine};{switches}".encode()).hexdigest()[:12]


def detect() -> Cpu:
    """Returns the processor of this machine."""
    return Cpu(platform.machine(), processor_features(), min(usable_cores(), _MOST_USEFUL_THREADS))


def parse_available_memory(text: str) -> int | None:
    """Returns the available bytes of memory from the text of /proc/meminfo; None if missing."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def available_memory() -> int | None:
    """Returns the bytes of memory that can be used without swapping; None if unknown."""
    return parse_available_memory(read_system_file(_MEMINFO))
