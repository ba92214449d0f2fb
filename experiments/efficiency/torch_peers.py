"""The papers' formulations in plain PyTorch, and PyTorch's own softmax attention.

Arguments are tensors q, k, v [B, T, H, K]; Aaren takes scores [B, T, H] and v. Functions receive
``torch`` as an argument and use the methods of tensors, so this module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Tensor = Any


def aaren_scan(torch: Any) -> Callable[..., Tensor]:
    """The prefix scan of Aaren's appendix B on (m, u, w), after Hillis and Steele.

    Strides are 1, 2, 4, ...; the printed listing begins with 2, which is wrong.
    """

    def attend(score: Tensor, v: Tensor) -> Tensor:
        m, u, w = score, torch.ones_like(score), v
        stride = 1
        while stride < score.shape[1]:
            high = torch.maximum(m[:, stride:], m[:, :-stride])
            x, y = (torch.exp(part - high) for part in (m[:, :-stride], m[:, stride:]))
            later_u = x * u[:, :-stride] + y * u[:, stride:]
            later_w = x[..., None] * w[:, :-stride] + y[..., None] * w[:, stride:]
            m = torch.cat([m[:, :stride], high], dim=1)
            u = torch.cat([u[:, :stride], later_u], dim=1)
            w = torch.cat([w[:, :stride], later_w], dim=1)
            stride *= 2
        return w / u[..., None]

    return attend


def elementwise_series(torch: Any, order: int = 6) -> Callable[..., Tensor]:
    """EA-series by cumulative sums of all powers (equations 7-11, figure 2)."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exponent = torch.arange(order + 1, device=q.device)
        factorial = torch.tensor([float(math.factorial(n)) for n in range(order + 1)])
        powers = k[..., None] ** exponent * torch.exp(-(k**2))[..., None]
        s = torch.cumsum(powers * v[..., None], dim=1)
        z = torch.cumsum(powers, dim=1)
        terms = (2 * q)[..., None] ** exponent / factorial.to(q.device)
        return (terms * s).sum(-1) / (terms * z).sum(-1)

    return attend


def taylorshift(torch: Any) -> Callable[..., Tensor]:
    """Efficient TaylorShift as algorithm 1 prints it, not causal."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, dim = q.shape[1], q.shape[-1]
        alpha = dim**0.25
        q, k = (alpha * x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        ones = torch.full_like(v[..., :1], (dim / length) ** 0.5)
        v = torch.cat([ones, v], dim=-1) / length

        def box(x: Tensor) -> Tensor:
            return (x[..., :, None] * x[..., None, :]).flatten(-2)

        a = torch.einsum("bshf,bshv->bhfv", box(k), v)
        y = torch.einsum("bthf,bhfv->bthv", box(q), a) / 2
        kv = torch.einsum("bshk,bshv->bhkv", k, v)
        y = y + alpha**2 * torch.einsum("bthk,bhkv->bthv", q, kv)
        y = y + alpha**4 * v.sum(dim=1, keepdim=True)
        return y[..., 1:] / y[..., :1]

    return attend


def softmax(torch: Any, *, is_causal: bool = True) -> Callable[..., Tensor]:
    """``scaled_dot_product_attention``, PyTorch's fused softmax attention."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return attention(q, k, v, is_causal=is_causal).transpose(1, 2)

    return attend
