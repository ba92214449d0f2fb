"""PatchTST and DLinear of neuralforecast, trained on the same batches as our runs.

They need the extra ``peers``: ``pip install 'flax-linattn[peers]'``.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.tasks.forecast.evaluate import Errors

PEERS: dict[str, tuple[dict[str, Any], ...]] = {
    # Of PatchTST the size of its paper for small sets, and one as wide as ours.
    "PatchTST": (
        {"hidden_size": 16, "n_heads": 4, "linear_hidden_size": 128, "dropout": 0.3},
        {"hidden_size": 64, "n_heads": 4, "linear_hidden_size": 128, "dropout": 0.2},
    ),
    "DLinear": ({"moving_avg_window": 25},),
}
"""The sizes of each that are tried."""
RATES = (3e-3, 1e-3, 3e-4)
"""The first learning rates that are tried."""


def available() -> bool:
    """Whether the libraries are installed."""
    try:
        import neuralforecast.models  # noqa: F401
    except ImportError:
        return False
    return True


def train_peer(
    name: str,
    options: dict[str, Any],
    rate: float,
    train: data.Windows,
    validation: data.Windows,
    test: data.Windows | None,
    *,
    lengths: tuple[int, int],
    seed: int,
    steps: int,
    validate_every: int,
) -> dict[str, float]:
    """Trains by Adam as ours is: the same batches, mean squared error, cosine, validation.

    Args:
        name: of ``PEERS``.
        options: its size.
        rate: the largest learning rate.
        train: windows of standardized values; each channel of one is an example.
        validation: windows that select the parameters.
        test: those to report on.
        lengths: context length and horizon.
        seed: of the first parameters and of dropout.
        steps: of training.
        validate_every: steps between validations.

    Returns:
        ``validation``, the least mean squared error; of the test ``mse`` and ``mae``; ``seconds``
        and ``parameters``.
    """
    import torch
    from neuralforecast import models

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    made = getattr(models, name)(input_size=lengths[0], h=lengths[1], random_seed=seed, **options)
    optimizer = torch.optim.Adam(made.parameters(), lr=rate)
    warmup = steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            (step + 1) / warmup
            if step < warmup
            else 0.01 + 0.99 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
        ),
    )
    best, best_state, begin = math.inf, made.state_dict(), time.perf_counter()
    made.train()
    for step, batch in enumerate(_batches(train, steps), start=1):
        past, future = (torch.from_numpy(part) for part in _examples(batch, lengths[0]))
        loss = torch.mean(torch.square(made({"insample_y": past[..., None]})[..., 0] - future))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % validate_every == 0 or step == steps:
            error = _test(made, validation, lengths[0])["mse"]
            if error < best:
                best, best_state = error, copy.deepcopy(made.state_dict())
            made.train()
    seconds = time.perf_counter() - begin
    made.load_state_dict(best_state)
    count = sum(parameter.numel() for parameter in made.parameters())
    results = {"validation": best, "seconds": seconds, "parameters": count}
    return results | ({} if test is None else _test(made, test, lengths[0]))


def _batches(windows: data.Windows, steps: int) -> Iterator[dict[str, NDArray]]:
    """Yields the batches of training, epoch after epoch."""
    return (windows.batch(step) for step in range(steps))


def _examples(batch: dict[str, NDArray], length: int) -> tuple[NDArray, NDArray]:
    """Past and future [N, rows] of each channel of the real windows."""
    values = np.swapaxes(batch["values"][batch["weight"] > 0], 1, 2)
    values = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return values[:, :length], values[:, length:]


def _test(made: Any, windows: data.Windows, length: int) -> dict[str, float]:
    """Errors of a model over all windows."""
    import torch

    errors = Errors(1)
    made.eval()
    with torch.inference_mode():
        for batch in windows:
            past, future = _examples(batch, length)
            y = made({"insample_y": torch.from_numpy(past)[..., None]})
            errors.add(y.numpy(), future[..., None])
    metrics = errors.metrics()
    return {"mse": metrics["mse"], "mae": metrics["mae"]}
