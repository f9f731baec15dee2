"""An NVIDIA GPU through PyTorch and NVML; only `m2bayes measure` needs either."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from m2bayes.errors import DataError
from m2bayes.measuring.kernels import Reading

INSTALL = "pip install 'm2bayes[measure]'"
HEAD = 128  # width of an attention head
COLD = 3.0  # times the L2 that the operands of cold kernels take in turn
MOST_COPIES = 512
REASONS = {  # bits of NVML's clock event reasons
    0x1: "idle",
    0x2: "clocks setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class TorchDevice:
    """The current GPU of PyTorch, as `m2bayes.measuring.kernels.Device`.

    Operands are random bf16 numbers, made once a shape. Cold kernels take copies of the operands
    in turn, three times the L2 in all; warm ones always the same.
    """

    def __init__(self) -> None:
        torch, nvml = _libraries()
        self._torch, self._nvml = torch, nvml
        at = torch.cuda.current_device()
        facts = torch.cuda.get_device_properties(at)
        self._l2 = int(getattr(facts, "L2_cache_size", 64 * 2**20))
        self._handle = nvml.nvmlDeviceGetHandleByUUID(_uuid(facts))
        self.name = str(facts.name)
        self.software = f"{torch.__version__}, CUDA {torch.version.cuda}"
        self.power_limit = nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3
        self._held: dict[Any, Any] = {}

    def gemm(self, M: int, N: int, K: int, *, calls: int, cold: bool, during: Callable) -> float:
        """Time [s] of products of M × K activations with K × N weights."""
        torch = self._torch
        size = 2 * (M * K + N * K)

        def make() -> Any:
            return self._random(M, K), self._random(N, K)

        sets = self._sets(("gemm", M, N, K, cold), make, size, cold)
        return self._timed(
            lambda i: torch.nn.functional.linear(*sets[i % len(sets)]), calls, during
        )

    def attention(
        self, sizes: Mapping[str, int], *, calls: int, cold: bool, during: Callable
    ) -> float:
        """Time [s] of causal attention of ``batch`` sequences of ``length`` tokens."""
        batch, length, decode = sizes["batch"], sizes["length"], bool(sizes["phase"])
        heads, kv_heads = sizes["heads"], sizes["kv_heads"]
        queries = 1 if decode else length
        size = 2 * batch * HEAD * (queries * heads + 2 * length * kv_heads)

        def make() -> Any:
            query = self._random(batch, heads, queries, HEAD)
            return query, *(self._random(batch, kv_heads, length, HEAD) for _ in range(2))

        sets = self._sets(("attention", *sizes.items(), cold), make, size, cold)
        attend = self._torch.nn.functional.scaled_dot_product_attention

        def call(i: int) -> Any:
            return attend(*sets[i % len(sets)], is_causal=not decode, enable_gqa=heads != kv_heads)

        return self._timed(call, calls, during)

    def launch(self, *, calls: int, during: Callable) -> float:
        """Time [s] of kernels that add one to one number."""
        (one,) = self._sets(("launch",), lambda: self._random(1), 2, False)
        return self._timed(lambda i: one.add_(1), calls, during)

    def clock(self) -> Reading:
        """Return the driver's reading of this moment."""
        nvml, handle = self._nvml, self._handle
        bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Reading(
            sm_clock=1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            power=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            temperature=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle="+".join(name for bit, name in REASONS.items() if bits & bit),
        )

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(*shape, device="cuda", dtype=self._torch.bfloat16)

    def _sets(self, key: Any, make: Callable[[], Any], size: int, cold: bool) -> list[Any]:
        """Operands of a kernel, those of other kernels given up."""
        if key not in self._held:
            self._held.clear()
            copies = math.ceil(COLD * self._l2 / size) + 1 if cold else 1
            self._held[key] = [make() for _ in range(min(copies, MOST_COPIES))]
        held: list[Any] = self._held[key]
        return held

    def _timed(self, call: Callable[[int], Any], calls: int, during: Callable) -> float:
        """Time [s] between two events around all calls."""
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.inference_mode():
            call(0)
            torch.cuda.synchronize()
            begin.record()
            for i in range(calls):
                call(i + 1)
            end.record()
        during()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


def _libraries() -> tuple[Any, Any]:
    """PyTorch and NVML, or why there is nothing to measure."""
    try:
        import pynvml
        import torch
    except ImportError as fault:
        raise DataError(
            f"measure needs PyTorch, NVML and an NVIDIA GPU; no {fault.name} here: {INSTALL}"
        ) from None
    if not torch.cuda.is_available():
        raise DataError("measure needs an NVIDIA GPU and finds none; run it where one is")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as fault:
        raise DataError(f"measure needs NVML, which says: {fault}; update the driver") from None
    return torch, pynvml


def _uuid(facts: Any) -> str:
    text = str(facts.uuid)
    return text if text.startswith("GPU-") else f"GPU-{text}"
