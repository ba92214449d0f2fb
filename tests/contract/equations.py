"""Every mechanism's equation in NumPy, a query at a time: the judge of ``reference``.

Nothing of the package computes here; only its draws of random features are used. Who sees whom is
decided by loops over tokens, weights come from the papers' formulas without any guard, and a masked
or lonely position is 0 because nothing is computed for it. Choices look at real parts alone, so
that complex numbers pass through and give exact derivatives (:func:`derivative`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flax_linattn import ops
from flax_linattn.ops.engine import random_features


class VisibleTokens(NamedTuple):
    """What one query sees: its tokens in their order, and where it and they stand.

    Attributes:
        k: [n, H, K].
        v: [n, H, V].
        position: of the query among the real tokens of its segment.
        positions: the same of the tokens, n numbers.
        queries: of all real tokens of the row [m, H, K]; q itself where it is learned.
        gates: arguments of the seen tokens by name, [n, ...].
    """

    k: Any
    v: Any
    position: int
    positions: list[int]
    queries: Any
    gates: dict[str, Any]


def segments(mask: Any, ids: Any) -> list[int]:
    """The number of the segment of each token, -1 for padding, which splits none."""
    numbers, number, last = [], -1, None
    for real, segment in zip(mask, ids, strict=True):
        if not real:
            numbers.append(-1)
            continue
        if number < 0 or segment != last:
            number, last = number + 1, segment
        numbers.append(number)
    return numbers


def attend(
    mechanism: ops.Mechanism,
    q: Any,
    k: Any,
    v: Any,
    *,
    is_causal: bool,
    mask: Any = None,
    segment_ids: Any = None,
    **parameters: Any,
) -> np.ndarray:
    """What ``reference`` has to give for these arguments, in self-attention."""
    (batch, length), heads = k.shape[:2], k.shape[2]
    mask = np.ones((batch, length), bool) if mask is None else mask
    ids = np.zeros((batch, length), int) if segment_ids is None else segment_ids
    names = [each.name for each in mechanism.token_arguments]
    gates = {name: parameters.pop(name) for name in names}
    y = np.zeros(
        (batch, length, heads, v.shape[-1]),
        np.result_type(q, k, v, *gates.values(), *parameters.values()),
    )
    for row in range(batch):
        number = segments(mask[row], ids[row])
        whole = [j for j in range(length) if mask[row, j]]
        for t in whole:
            mine = [j for j in whole if number[j] == number[t]]
            place = {j: position for position, j in enumerate(mine)}
            visible = [j for j in mine if j <= t] if is_causal else mine
            learned = mechanism.capabilities.learned_query
            query, queries = (q, q) if learned else (q[row, t], q[row, whole])
            places = [place[j] for j in visible]
            own = {name: gate[row, visible] for name, gate in gates.items()}
            seen = VisibleTokens(k[row, visible], v[row, visible], place[t], places, queries, own)
            y[row, t] = EQUATIONS[mechanism.name](mechanism, query, seen, **parameters)
    return y


def derivative(function: Callable[..., Any], arguments: Any, direction: Any) -> np.ndarray:
    """The derivative of ``function(*arguments)`` along ``direction``, without differences.

    For analytic f, Im f(x + i h d) / h is f'(x) d up to h^2, and h may be tiny.
    """
    tiny = 1e-30
    moved = [x + 1j * tiny * d for x, d in zip(arguments, direction, strict=True)]
    return np.imag(function(*moved)) / tiny


# -- equations: (mechanism, q [H, K], what it sees, its own arguments) -> y [H, V] -------------


def _scores(q: Any, k: Any) -> Any:
    return np.einsum("hk,nhk->nh", q, k)


def _average(weight: Any, v: Any) -> Any:
    """Weights [n, H], or [n, H, K] for channels by themselves."""
    weight = weight if weight.ndim == 3 else weight[..., None]
    return (weight * v).sum(axis=0) / weight.sum(axis=0)


def _softmax(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    n, cap = len(seen.k), getattr(mechanism, "soft_cap", None)
    window, sinks = getattr(mechanism, "window", None) or n, getattr(mechanism, "sinks", 0)
    own = [j for j in range(n) if j >= n - window or j < sinks]
    score = scale * _scores(q, seen.k[own])
    score = score if cap is None else cap * np.tanh(score / cap)
    return _average(np.exp(score), seen.v[own])


def _bidirectional_aaren(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    """The first half of the heads, the larger one, sees what came before, the other what comes."""
    places, heads = np.array(seen.positions), np.arange(q.shape[0])
    forwards = 2 * heads < q.shape[0]
    before, after = places <= seen.position, places >= seen.position
    sees = np.where(forwards, before[:, None], after[:, None])
    return _average(np.exp(scale * _scores(q, seen.k)) * sees, seen.v)


def _elementwise(mechanism: Any, q: Any, seen: VisibleTokens) -> Any:
    return _average(np.exp(-((q - seen.k) ** 2)), seen.v)


def _elementwise_series(mechanism: Any, q: Any, seen: VisibleTokens) -> Any:
    """e^(-k^2) sum_n (2 q k)^n / n!, whose e^(-q^2) cancels."""
    factorial, polynomial = 1.0, 1.0
    for n in range(1, mechanism.order + 1):
        factorial *= n
        polynomial = polynomial + (2 * q * seen.k) ** n / factorial
    return _average(np.exp(-(seen.k**2)) * polynomial, seen.v)


def _unit(x: Any) -> Any:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


def _taylorshift(mechanism: Any, q: Any, seen: VisibleTokens, temperature: Any) -> Any:
    """Section 3.3: N tokens of unit length, outputs times sqrt(N / d)."""
    x = temperature * _scores(_unit(q), _unit(seen.k))
    weight, term = 1 + x, x
    for n in range(2, mechanism.order + 1):
        term = term * x / n
        weight = weight + term
    return _average(weight, seen.v) * np.sqrt(len(seen.k) / q.shape[-1])


def _expressive(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    z = scale * _scores(q, seen.k)
    return _average(z**2 / (1 + z**2), seen.v)


def _expressive_quadratic(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    return _average(_scores(q, seen.k) ** 2 * scale**2, seen.v)


def _linear(mechanism: Any, q: Any, seen: VisibleTokens) -> Any:
    q, k = (np.where(np.real(x) > 0, x + 1, np.exp(x)) for x in (q, seen.k))
    return _average(_scores(q, k), seen.v)


def _aft(mechanism: Any, q: Any, seen: VisibleTokens, position_bias: Any) -> Any:
    bias = position_bias[seen.position, seen.positions][:, None, None]
    return _average(np.exp(seen.k + bias), seen.v) / (1 + np.exp(-q))


def _aft_simple(mechanism: Any, q: Any, seen: VisibleTokens) -> Any:
    return _average(np.exp(seen.k), seen.v) / (1 + np.exp(-q))


def _taylor_features(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    x = scale * _scores(q, seen.k)
    return _average(1 + x + x**2 / 2, seen.v)


def _performer(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any, projection: Any) -> Any:
    """exp(w x - |x|^2 / 2) for x = sqrt(scale) q and k; |q|^2 cancels."""
    q, k = np.sqrt(scale) * q, np.sqrt(scale) * seen.k
    of_query = np.exp(np.einsum("hk,mk->hm", q, projection))
    size = (k * k).sum(axis=-1)[..., None] / 2
    of_key = np.exp(np.einsum("nhk,mk->nhm", k, projection) - size)
    return _average(np.einsum("hm,nhm->nh", of_query, of_key), seen.v)


def _rfa(mechanism: Any, q: Any, seen: VisibleTokens, feature_scale: Any) -> Any:
    """The mean of cos(w . (q - k)) over the rows w of the draw."""
    w = random_features.gaussian(mechanism.num_features, q.shape[-1], mechanism.seed)
    angle = (_unit(q) - _unit(seen.k)) * feature_scale
    return _average(np.cos(np.einsum("nhk,mk->nhm", angle, w)).mean(axis=-1), seen.v)


def _linformer(
    mechanism: Any,
    q: Any,
    seen: VisibleTokens,
    scale: Any,
    key_projection: Any,
    value_projection: Any,
) -> Any:
    n = len(seen.k)
    k = np.einsum("np,nhk->phk", key_projection[:n], seen.k)
    v = np.einsum("np,nhv->phv", value_projection[:n], seen.v)
    return _average(np.exp(scale * _scores(q, k)), v)


def _nystrom(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    """softmax(Q Kl^T) Z softmax(Ql K^T) V with Z near the inverse of softmax(Ql Kl^T)."""
    n = len(seen.k)
    landmarks = min(n, mechanism.num_landmarks)
    groups = [[j for j in range(n) if j * landmarks // n == g] for g in range(landmarks)]

    def rows(scores: Any) -> Any:
        weight = np.exp(scores)
        return weight / weight.sum(axis=-1, keepdims=True)

    outputs = []
    for h in range(q.shape[0]):
        k, v, every = seen.k[:, h], seen.v[:, h], scale * seen.queries[:, h]
        ql, kl = (np.stack([x[group].mean(axis=0) for group in groups]) for x in (every, k))
        a = rows(ql @ kl.T)
        columns = a.sum(axis=0)
        z = a.T / columns[np.argmax(np.real(columns))]
        for _ in range(mechanism.iterations):
            p, one = a @ z, np.eye(landmarks)
            z = z @ (13 * one - p @ (15 * one - p @ (7 * one - p))) / 4
        outputs.append(rows(scale * q[h] @ kl.T) @ z @ (rows(ql @ k.T) @ v))
    return np.stack(outputs)


def _reformer(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any, rotations: Any) -> Any:
    """One softmax over all tokens but itself that share a bucket and two chunks in any round."""
    n, size = len(seen.k), mechanism.bucket_size
    half = (mechanism.num_buckets or 2 * -(-n // (2 * size))) // 2
    me = seen.positions.index(seen.position)
    outputs = []
    for h in range(q.shape[0]):
        x, v, met = seen.k[:, h], seen.v[:, h], set()
        for rotation in rotations:
            turned = np.real(x) @ np.real(rotation[:, :half])
            bucket = np.argmax(np.concatenate([turned, -turned], axis=1), axis=1)
            line = sorted(range(n), key=lambda j, bucket=bucket: (bucket[j], j))
            if mechanism.num_buckets is not None:  # a line for each bucket
                line = [j for j in line if bucket[j] == bucket[me]]
            chunk = {j: place // size for place, j in enumerate(line)}
            met |= {j for j in line if bucket[j] == bucket[me] and chunk[me] - chunk[j] in (0, 1)}
        others = sorted(met - {me}) or [me]
        score = scale * _unit(x[others]) @ x[me]
        outputs.append(_average(np.exp(score)[:, None], v[others][:, None])[0])
    return np.stack(outputs)


def _eva(
    mechanism: Any,
    q: Any,
    seen: VisibleTokens,
    scale: Any,
    mean_query_kernel: Any,
    mean_query_bias: Any,
    mean_key_kernel: Any,
    mean_key_bias: Any,
    noise: Any,
) -> Any:
    """Softmax over the tokens of the window and a key and a value of each chunk not all in it."""
    n, reach = len(seen.k), max(1, mechanism.window_size // 2)
    chunks = min(n, mechanism.num_chunks)
    window = seen.position // mechanism.window_size
    near = [j for j in range(n) if -reach <= j - window * mechanism.window_size]
    near = [j for j in near if j < (window + 1) * mechanism.window_size + reach]
    keys, values = [seen.k[j] for j in near], [seen.v[j] for j in near]
    for c in range(chunks):
        core = [j for j in range(n) if j * chunks // n == c]
        chunk = [j for j in range(n) if core[0] - reach <= j <= core[-1] + reach]
        if set(chunk) <= set(near):
            continue
        width = len(core) + 2 * reach
        q_bar = seen.queries[chunk].sum(axis=0) / width @ mean_query_kernel + mean_query_bias
        k_bar = seen.k[chunk].sum(axis=0) / width @ mean_key_kernel + mean_key_bias
        omega = (q_bar + k_bar) / 2 + noise[:, c]
        feature = _scores(omega, seen.k[chunk]) - (seen.k[chunk] ** 2).sum(axis=-1) / 2
        keys.append(k_bar)
        values.append(_average(np.exp(scale * feature), seen.v[chunk]))
    return _average(np.exp(scale * _scores(q, np.stack(keys))), np.stack(values))


def _later(x: Any) -> Any:
    """For each token the sum over those after it, [n, ...]."""
    return np.array([x[j + 1 :].sum(axis=0) for j in range(len(x))])


def _forgetting(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    fallen = scale * _scores(q, seen.k) + _later(seen.gates["log_decay"])
    return _average(np.exp(fallen), seen.v)


def _gated_linear(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    left = np.exp(_later(seen.gates["log_decay"]))
    return scale * np.einsum("hk,nhk,nhk,nhv->hv", q, left, seen.k, seen.v)


def _retention(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    gamma = 1 - 2.0 ** (-5 - np.arange(q.shape[0]))
    age = np.arange(len(seen.k))[::-1, None]
    return scale * np.einsum("nh,nh,nhv->hv", gamma**age, _scores(q, seen.k), seen.v)


def _gated_delta(mechanism: Any, q: Any, seen: VisibleTokens, scale: Any) -> Any:
    heads, one = q.shape[0], np.eye(q.shape[1])
    y = []
    for h in range(heads):
        s = np.zeros((q.shape[1], seen.v.shape[-1]))
        for n in range(len(seen.k)):
            k, v, beta = seen.k[n, h], seen.v[n, h], seen.gates["beta"][n, h]
            alpha = np.exp(seen.gates["log_decay"][n, h])
            s = alpha * (one - beta * np.outer(k, k)) @ s + beta * np.outer(k, v)
        y.append(scale * q[h] @ s)
    return np.stack(y)


def _rwkv(mechanism: Any, q: Any, seen: VisibleTokens, time_decay: Any, time_first: Any) -> Any:
    rate, last = np.exp(time_decay), len(seen.k) - 1
    weight = [np.exp(seen.k[i] - (last - 1 - i) * rate) for i in range(last)]
    weight = np.stack([*weight, np.exp(time_first + seen.k[last])])
    return _average(weight, seen.v) / (1 + np.exp(-q))


EQUATIONS: dict[str, Callable[..., Any]] = {
    "softmax": _softmax,
    "aaren": _softmax,
    "elementwise": _elementwise,
    "elementwise_series": _elementwise_series,
    "taylorshift": _taylorshift,
    "expressive": _expressive,
    "expressive_quadratic": _expressive_quadratic,
    "bidirectional_aaren": _bidirectional_aaren,
    "forgetting_aaren": _forgetting,
    "forgetting": _forgetting,
    "gated_linear": _gated_linear,
    "retention": _retention,
    "gated_delta": _gated_delta,
    "rwkv": _rwkv,
    "linear": _linear,
    "aft": _aft,
    "aft_simple": _aft_simple,
    "taylor_features": _taylor_features,
    "performer": _performer,
    "rfa": _rfa,
    "linformer": _linformer,
    "nystrom": _nystrom,
    "reformer": _reformer,
    "eva": _eva,
}
