"""The models of ``nnx_models`` in plain PyTorch: its fused attention, its GRU and LSTM.

Functions receive ``torch`` as an argument, so that results can be read without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.efficiency.nnx_models import DROPOUT, sinusoids

Tensor = Any


class Modules(NamedTuple):
    """Subclasses of ``torch.nn.Module``, which need torch to exist."""

    Encoder: Any
    Classifier: Any
    Forecaster: Any
    Block: Any
    Recurrent: Any


def modules(torch: Any) -> Modules:
    """Encoder, what stands on one, and its layers."""
    nn: Any = torch.nn

    class Encoder(nn.Module):
        """Embedding and layers, with the arguments of ``nnx_models.Encoder``."""

        def __init__(self, channels: int, length: int, features: int, layers: list[Any]) -> None:
            super().__init__()
            self.embedding = nn.Conv1d(
                channels, features, 3, padding=1, padding_mode="circular", bias=False
            )
            self.register_buffer("positions", torch.from_numpy(sinusoids(length, features)))
            self.layers = nn.ModuleList(layers)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embedding(x.transpose(1, 2)).transpose(1, 2)
            h = self.dropout(h + self.positions)
            for layer in self.layers:
                h = layer(h)
            return h

    class Classifier(nn.Module):
        """A linear layer on all positions of an encoder."""

        def __init__(self, encoder: Any, classes: int) -> None:
            super().__init__()
            self.encoder, self.head = encoder, nn.Linear(encoder.positions.numel(), classes)
            self.dropout = nn.Dropout(DROPOUT)

        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            h = nn.functional.gelu(self.encoder(batch["values"]))
            h = self.dropout(h) * batch["mask"][..., None]
            return nn.functional.cross_entropy(self.head(h.flatten(1)), batch["labels"].long())

    class Forecaster(nn.Module):
        """All rows of a horizon by a linear layer on the last position of an encoder."""

        def __init__(self, encoder: Any, horizon: int) -> None:
            super().__init__()
            self.encoder, self.horizon = encoder, horizon
            channels, features = encoder.embedding.in_channels, encoder.embedding.out_channels
            self.head = nn.Linear(features, horizon * channels)

        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            values = batch["values"]
            future = values[:, -self.horizon :]
            forecasts = self.head(self.encoder(values[:, : -self.horizon])[:, -1])
            return nn.functional.mse_loss(forecasts.view_as(future), future)

    class Block(nn.Module):
        """Causal softmax attention and a feed-forward layer, normalized behind their residuals."""

        def __init__(self, features: int, hidden: int, num_heads: int) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (
                nn.Linear(features, features) for _ in range(4)
            )
            self.num_heads = num_heads
            self.expand, self.contract = nn.Linear(features, hidden), nn.Linear(hidden, features)
            self.attention_norm, self.norm = nn.LayerNorm(features), nn.LayerNorm(features)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, h: Tensor) -> Tensor:
            q, k, v = (
                layer(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = self.out(y.transpose(1, 2).flatten(2))
            h = self.attention_norm(h + self.dropout(y))
            y = self.dropout(nn.functional.gelu(self.expand(h)))
            return self.norm(h + self.dropout(self.contract(y)))

    class Recurrent(nn.Module):
        """A recurrent network, with dropout behind it."""

        def __init__(self, kind: Callable[..., Any], features: int) -> None:
            super().__init__()
            self.network = kind(features, features, batch_first=True)
            self.dropout = nn.Dropout(DROPOUT)

        def forward(self, h: Tensor) -> Tensor:
            return self.dropout(self.network(h)[0])

    return Modules(Encoder, Classifier, Forecaster, Block, Recurrent)


def training_step(
    torch: Any, model: Any, optimizer: Any, clip_norm: float | None, batch: dict[str, np.ndarray]
) -> Callable[[], Any]:
    """A call without arguments: one training step, on clipped gradients if so; its loss."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}

    def step() -> Any:
        optimizer.zero_grad()
        loss = model.loss(tensors)
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return loss.item()

    return step


def num_parameters(model: Any) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())
