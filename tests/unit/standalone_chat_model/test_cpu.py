"""Reading the processor, and naming the build switches for it."""

from strata.standalone.chat_model.cpu import (
    Cpu,
    detect,
    parse_available_memory,
)

HASWELL = frozenset({"sse4_2", "avx", "avx2", "bmi2", "fma", "f16c"})
SAPPHIRE = HASWELL | {
    *("avx_vnni", "avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    *("avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
}


def test_the_build_enables_the_processor_features_except_amx() -> None:
    switches = Cpu("x86_64", SAPPHIRE, 2).build_switches()
    assert switches["GGML_NATIVE"] == "OFF"
    assert switches["GGML_AVX512_BF16"] == "ON"
    assert not any("AMX" in name for name in switches)


def test_an_older_processor_gets_no_avx512_switches() -> None:
    switches = Cpu("x86_64", HASWELL, 2).build_switches()
    assert switches["GGML_AVX2"] == "ON"
    assert {value for name, value in switches.items() if "512" in name} == {"OFF"}


def test_other_architectures_use_native_compilation() -> None:
    assert Cpu("arm64", frozenset(), 4).build_switches() == {"GGML_NATIVE": "ON"}


def test_the_fingerprint_changes_with_the_inputs_of_the_build() -> None:
    new, old = Cpu("x86_64", SAPPHIRE, 2), Cpu("x86_64", HASWELL, 2)
    without_amx = Cpu("x86_64", SAPPHIRE - {"amx_tile"}, 8)
    assert new.fingerprint() != old.fingerprint()
    assert new.fingerprint() == without_amx.fingerprint()


def test_a_processor_without_avx2_is_too_old() -> None:
    assert Cpu("x86_64", HASWELL - {"avx2"}, 2).too_old
    assert not Cpu("x86_64", HASWELL, 2).too_old
    assert not Cpu("x86_64", frozenset(), 2).too_old  # unknown is not old
    assert not Cpu("aarch64", frozenset({"asimd"}), 2).too_old


def test_the_available_memory_is_parsed() -> None:
    assert parse_available_memory("MemTotal: 9 kB\nMemAvailable:  2048 kB\n") == 2 << 20
    assert parse_available_memory("MemTotal: 9 kB\n") is None


def test_the_processor_of_this_machine_is_detected() -> None:
    assert detect().threads >= 1
