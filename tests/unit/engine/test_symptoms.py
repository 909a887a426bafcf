"""The table of symptoms by what people see and paste: every row by real words, and nothing by harmless ones."""

from __future__ import annotations

import pytest

from engine.vram.symptoms import SYMPTOMS, find_symptoms

SEEN = {
    "out of device memory": (
        "ggml_cuda_device_malloc: CUDA out of memory",
        "ggml_cuda_compute_forward: CUDA error: out of memory",
        "ggml_vulkan: vkAllocateMemory failed: ErrorOutOfDeviceMemory",
        "ggml_gallocr_reserve_n: failed to allocate buffer of size 540672000",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 412.00 MiB on device 0: cudaMalloc failed: out of memory",
    ),
    "long prompt": (
        "load works, then it dies in a long chat",
        "the worker crashed during prefill of 3900 tokens",
    ),
    "damaged file": (
        "llama_model_load: error loading model: missing tensor 'blk.3.ffn_up.weight'",
        "llama_model_load: error loading model: check_tensor_dims: tensor 'blk.2.attn_norm.weight' not found",
        "gguf_init_from_file: tensor 'output.weight' has offset 4096, expected 8192",
        "tensor 'blk.9.attn_k.weight' data is not within the file bounds, model is corrupted or incomplete",
    ),
    "no model file": (
        "gguf_init_from_file: failed to open '/models/qwen.gguf'",
        "/models/qwen.gguf: No such file or directory",
    ),
    "driver too old": (
        "vk::createInstance: ErrorIncompatibleDriver VK_ERROR_INCOMPATIBLE_DRIVER",
        "CUDA driver version is insufficient for CUDA runtime version",
        "error: 'VkLayerSettingEXT' does not name a type",
    ),
    "swapping": ("RAM climbs and the machine swaps", "2.1 of 8.0 GiB swap in use", "speed jumps up and down"),
    "answer cut": ('{"finish_reason": "length"}', "the answer is cut in the middle"),
    "device lost": (
        "NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.",
        "vk::Queue::submit: ErrorDeviceLost",
        "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!",
    ),
    "integrated GPU": ("ggml_vulkan: 0 = Intel(R) Graphics (ADL GT2) | uma: 1 | fp16: 1",),
    "desktop short of VRAM": ("browser pictures break while the model runs",),
    "fragmentation": ("error in the middle of a talk, memory looks free",),
    "layers on the CPU": ("load_tensors: offloaded 22/28 layers to GPU", "-ngl 99 but slow"),
    "other CPU": ("Fatal Python error: Illegal instruction", "the engine child ended (SIGILL)"),
    "unstable memory": ("random crash after hours", "nvidia: uncorrectable ECC error detected"),
    "shader compilation": ("the first start is slow", "ggml_vulkan: Compiling shaders..."),
    "out of memory": (
        "Out of memory: Killed process 4711 (python) total-vm:18874368kB",
        "std::bad_alloc",
    ),
}  # fmt: skip


def test_every_row_is_tried_here() -> None:
    assert {symptom.name for symptom in SYMPTOMS} == set(SEEN)


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in SEEN.items() for text in texts]
)
def test_words_lead_to_the_row(name: str, text: str) -> None:
    found = {symptom.name: line for symptom, line in find_symptoms(f"loading …\n  {text}\nbye")}
    assert name in found
    assert found[name] == text


@pytest.mark.parametrize(
    "text",
    [
        "load_tensors: offloaded 28/28 layers to GPU",
        "llama_context: n_ctx = 4096, pinned memory, flash attention on",
        "listening on 127.0.0.1:8080; the database is up to date",
        "llama_kv_cache: size = 48.00 MiB (4096 cells, 30 layers), K (q8_0), V (q8_0)",
        '{"finish_reason": "stop"}',
    ],
)
def test_harmless_words_lead_nowhere(text: str) -> None:
    assert find_symptoms(text) == ()


def test_every_row_has_a_cause_and_a_cure() -> None:
    assert all(symptom.cause and symptom.cure for symptom in SYMPTOMS)
