"""This library compared with the Triton kernels of flash-linear-attention, on a GPU.

    python -m experiments.efficiency.flash_linear_attention

Needs an NVIDIA GPU, PyTorch for it, and ``pip install fla-core``. The comparison covers what both
libraries have: causal linear attention with elu(x) + 1, with 64 channels per head, and Taylor
features of order 2, with 16 channels per head (the maximum of their kernel). 8 heads, one sequence,
float32 (their kernels by TensorFloat-32), in turns in one process, after a check that both compute
the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from experiments.efficiency.pytorch import Size, check, import_torch, measure_all, table
from experiments.measured import Measured
from flax_linattn.bench import Comparison, Journal
from flax_linattn.bench.comparison import mechanism

OURS = {
    "linear, causal": ("linear", 64),
    "Taylor features, causal, d = 16": ("taylor_features", 16),
}
TENSOR_FLOAT_32 = 2e-2


def kernels(torch: Any) -> dict[str, dict[str, Callable[..., Any]]]:
    """Theirs, by the name of the comparison."""
    try:
        from fla.ops.based import fused_chunk_based
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError:
        raise SystemExit(
            "this comparison needs flash-linear-attention: pip install fla-core"
        ) from None

    def features(x: Any) -> Any:
        return torch.nn.functional.elu(x) + 1

    def linear(q: Any, k: Any, v: Any) -> Any:
        return chunk_linear_attn(features(q), features(k), v, scale=1.0, normalize=True)[0]

    return {
        "linear, causal": {"fla, chunk_linear_attn": linear},
        "Taylor features, causal, d = 16": {"fla, fused_chunk_based": fused_chunk_based},
    }


def measure(size: Size, journal: Journal) -> None:
    if jax.default_backend() != "gpu":
        raise SystemExit(
            f"flash-linear-attention's kernels need a GPU; jax computes on "
            f"{jax.default_backend()!r} here."
        )
    torch = import_torch()
    functions = kernels(torch)
    ours = {
        name: Comparison(name, size.lengths, mechanism(spec, is_causal=True), {}, dim=dim)
        for name, (spec, dim) in OURS.items()
    }
    for name, (kernel,) in ((name, peers.values()) for name, peers in functions.items()):
        check(torch, ours[name], kernel, TENSOR_FLOAT_32)
    measure_all(torch, ours, functions, size, journal)


EXPERIMENT = Measured(
    module="experiments.efficiency.flash_linear_attention",
    about="not a table of any of the papers",
    sizes={"paper": Size(lengths=(4096, 16384, 65536), rounds=20)},
    measure=measure,
    table=table,
    left_out={"paper": "their kernels for heads of more channels with Taylor features: none"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
