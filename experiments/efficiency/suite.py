"""The published suite: comparisons of the package, and the papers' formulations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

from experiments.efficiency import peers
from flax_linattn import bench
from flax_linattn.bench.comparison import FORWARD, mechanism
from flax_linattn.typing import Array

FORMULATIONS: Mapping[str, Mapping[str, Callable[..., Array]]] = {
    "aaren": {"associative_scan": peers.aaren_scan},
    "elementwise_series, order 6, causal": {
        "the paper's cumulative sums": peers.elementwise_series_cumsum,
        "the same, powers by products": partial(peers.elementwise_series_cumsum, products=True),
    },
    "taylorshift": {"algorithm 1 as printed": peers.taylorshift_algorithm_1},
    "expressive, causal": {"its T x T weights": peers.expressive_dense},
}
"""The papers', by comparison and name."""


def comparisons(platform: str | None = None) -> list[bench.Comparison]:
    """All comparisons of the published suite; see ``bench.comparisons``."""
    papers = [
        dataclasses.replace(ours, peers={**FORMULATIONS[ours.name], **ours.peers})
        for ours in bench.comparisons(platform)
    ]
    return [*papers, *(taylorshift_forms(dim) for dim in (16, 32, 64))]


def taylorshift_forms(dim: int, *, order: int = 2, is_causal: bool = False) -> bench.Comparison:
    """TaylorShift's ``auto`` against both of its forms, from 128 to 16,384 tokens.

    Args:
        dim: d, channels a head.
        order: of the polynomial.
        is_causal: see ``ops.Mechanism.attend``.
    """
    attend = partial(mechanism, f"taylorshift:order={order}", is_causal=is_causal)
    return bench.Comparison(
        f"taylorshift, auto, d = {dim}" + (", causal" if is_causal else ""),
        tuple(2**n for n in range(7, 15)),
        attend(),
        {"direct": attend(form="direct"), "efficient": attend(form="efficient")},
        dim=dim,
        passes=(FORWARD,),
        curve=False,
    )
