"""Chunked scans whose hand-derived gradient stores only their inputs and recomputes the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from flax_linattn.ops.engine.forms import PerPlatform
from flax_linattn.ops.engine.prefix import Span
from flax_linattn.typing import Array, State


def recompute_vjp(
    plain: Callable[..., Any],
    gradients: Callable[..., Any],
    primal: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Makes a scan with a hand-derived gradient that stores only the inputs.

    Args:
        plain: Function (chunk, chunk_size, q, span, initial) -> (last state, outputs [B, T, ...]).
        gradients: Function of the same arguments and of the gradients of the results of ``plain``
            -> the gradients of q, of the span's tokens and of the initial state.
        primal: Function (chunk, sizes, q, span, initial) with the results of ``plain`` that runs
            where nothing is differentiated; None means ``plain``. Pass it here, and do not
            wrap the result in ``primal_only``: JAX cannot differentiate a ``custom_vjp`` in a
            ``custom_jvp`` under ``vmap``.

    Returns:
        Function (chunk, sizes, q, span, initial) with the results of ``plain``. ``sizes`` holds the
        chunk size of each platform, and ``chunk`` is hashable.
    """

    def run(
        chunk: Any, sizes: PerPlatform[int | None], q: Array, span: Span, initial: State
    ) -> Any:
        return sizes.run(partial(plain, chunk), q, span, initial)

    def forward(
        chunk: Any, sizes: PerPlatform[int | None], q: Array, span: Span, initial: State
    ) -> tuple[Any, Any]:
        # Not ``scan``: it has no forward mode, and then its gradients would have none either.
        return run(chunk, sizes, q, span, initial), (q, span, initial)

    def backward(
        chunk: Any, sizes: PerPlatform[int | None], residuals: Any, outer: Any
    ) -> tuple[Array, Span, State]:
        dq, dtokens, dinitial = sizes.run(partial(gradients, chunk), *residuals, outer)
        return dq, Span(dtokens, None, None), dinitial

    scan = jax.custom_vjp(primal or run, nondiff_argnums=(0, 1))
    scan.defvjp(forward, backward)
    return scan
