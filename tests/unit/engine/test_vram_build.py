"""What a build says of itself, against a CPU; and a build that cannot even say it."""

from __future__ import annotations

import pytest

from engine.vram import build
from engine.vram.build import BuildBroken, compare_cpu, cpu_flags, describe_build, parse_features
from engine.vram.child import Answer

INFO = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | REPACK = 1 | CUDA : ARCHS = 860 | USE_GRAPHS = 1 | "
OLD_CPU = "processor : 0\nflags\t\t: fpu pni ssse3 avx avx2 fma f16c bmi2\nbugs : none\n"


def test_features_are_read_by_backend() -> None:
    features = parse_features(INFO)
    assert features["CPU"]["AVX512"] == "1"
    assert features["CUDA"] == {"ARCHS": "860", "USE_GRAPHS": "1"}


def test_what_the_cpu_lacks_and_what_lies_idle() -> None:
    features = parse_features(INFO)["CPU"]
    lacking, unused = compare_cpu(features, cpu_flags(OLD_CPU))
    assert lacking == ("AVX512",)
    assert unused == ("SSSE3", "F16C", "FMA", "BMI2")
    assert compare_cpu(features, frozenset({"pni", "avx", "avx2", "avx512f", "amx_int8"})) == (
        (),
        (),
    )


def test_arm_has_other_names() -> None:
    flags = cpu_flags("Features\t: fp asimd asimddp i8mm sve\n")
    assert compare_cpu({"NEON": "1", "SVE": "1", "MATMUL_INT8": "1"}, flags) == ((), ("DOTPROD",))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(b"", "Fatal Python error: Illegal instruction", -4), "it was built for another CPU"),
        (Answer(b"", "a\nlibcuda.so.1: cannot open\n", 1), r"status 1\): libcuda.so.1: cannot open"),
        (Answer(b"", "x\nGGML_ASSERT(a) failed\nlater", -6), r"SIGABRT\): GGML_ASSERT\(a\) failed"),
    ],
)  # fmt: skip
def test_a_build_that_does_not_start(
    answer: Answer, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ask", lambda *_: answer)
    with pytest.raises(BuildBroken, match=says):
        describe_build()


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> Answer:
        raise TimeoutError("llama.cpp did not answer within 60 s")

    monkeypatch.setattr(build, "ask", hang)
    with pytest.raises(BuildBroken, match="a graphics driver may hang"):
        describe_build()


def test_this_build() -> None:
    this = describe_build()
    assert "CPU" in this.backends
    assert this.has_rpc
    assert this.features["CPU"]
    assert any(device.kind == "cpu" and device.total > 2**28 for device in this.devices)
