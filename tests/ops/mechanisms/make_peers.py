"""Numbers of other programs that mechanisms are compared with, ``peers.npz``.

The other programs are run, none of them is copied: what they give for seeded inputs is kept, with
the gradients of a weighted sum of outputs and last state. ``draw`` makes the inputs and weights
again from their seed, for this script and for the tests. To make the file again::

    python -m pip install numpy torch einops timm     # in an environment of its own, on a CPU
    git clone https://github.com/fla-org/flash-linear-attention fla
    git clone https://github.com/BlinkDL/ChatRWKV rwkv
    git clone https://github.com/lucidrains/reformer-pytorch reformer
    git clone https://github.com/HKUNLP/efficient-attention eva
    git -C fla checkout bc3b101dcb713ddc5bd8924b66754eb68b5ccf89
    git -C rwkv checkout 965e40b85288a91c94c02bfa56adc3ce0fa20a82
    git -C reformer checkout 66a19b6caf481a880c97d331306aba55d2ae4b9c
    git -C eva checkout 531ff5169b56fcec9d0a361125cffb62ab5e8781
    python tests/ops/mechanisms/make_peers.py fla rwkv reformer eva

Without folders it makes the numbers of PyTorch's own ``scaled_dot_product_attention`` only, and
keeps the others.

flash-linear-attention (MIT) has plain recurrences in PyTorch, ``fla/ops/*/naive.py``, which compute
in float32; here their float32 is made to mean float64, so that an error that a test finds is ours.
RWKV-4 is ``time_mixing`` of its author's ``RWKV_in_150_lines.py`` (Apache 2.0), with projections
that pass receptance, key and value on, and without its just-in-time compiler. Reformer is
``LSHAttention`` of reformer-pytorch 1.4.4 (MIT), which is given its rotations, and told to mask
other buckets and to count a pair once, as the paper has it. EVA is its authors' module (Apache
2.0), with queries, keys and values in place of their projections and ``noise`` in place of its
draw: 24 tokens in 3 chunks, windows of 4 that overlap by 2.

All is kept as float32, [B, T, H, ...] for tokens and [B, H, ...] for states.
"""

import ast
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(__file__).with_name("peers.npz")
BATCH, LENGTH, HEADS, KEY_DIM, VALUE_DIM = 2, 17, 2, 4, 5
EVA_LENGTH, EVA_CHUNKS, EVA_WINDOW = 24, 3, 4

_TOKEN = (BATCH, LENGTH, HEADS)
_KEY, _VALUE = (*_TOKEN, KEY_DIM), (*_TOKEN, VALUE_DIM)
_QKV: dict[str, tuple[int, ...]] = {"q": _KEY, "k": _KEY, "v": _VALUE}
REFORMER = 4, 3
"""Its bucket size, and rounds."""
_LSH = (BATCH, 24, HEADS, KEY_DIM)
_STATE: dict[str, tuple[int, ...]] = {"state": (BATCH, HEADS, KEY_DIM, VALUE_DIM)}
_EVA = (BATCH, EVA_LENGTH, HEADS, KEY_DIM)
_CHANNELS: dict[str, tuple[int, ...]] = {name: (BATCH, HEADS, KEY_DIM) for name in ("w", "u", "m")}
SDPA_HEADS, SDPA_WINDOW = 4, 4
SDPA: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": SDPA_WINDOW},
    "mask": {"mask": True},
    "bias": {"bias": True},
    "scale": {"is_causal": True, "scale": 0.7},
    "grouped": {"is_causal": True, "num_kv_heads": 2},
    "multi_query": {"mask": True, "num_kv_heads": 1},
    "all": {
        "is_causal": True,
        "window": SDPA_WINDOW,
        "mask": True,
        "bias": True,
        "num_kv_heads": 2,
    },
}
"""Cases of ``torch.nn.functional.scaled_dot_product_attention`` (SDPA)."""

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "forgetting_aaren": {"q": (HEADS, KEY_DIM), "k": _KEY, "v": _VALUE, "log_decay": _TOKEN},
    "gated_linear": {**_QKV, "log_decay": _KEY, **_STATE},
    "retention": _QKV,
    "retention_state": {**_QKV, **_STATE},
    "delta": {**_QKV, "beta": _TOKEN, **_STATE},
    "gated_delta": {**_QKV, "log_decay": _TOKEN, "beta": _TOKEN, **_STATE},
    "rwkv": {
        **{name: _KEY for name in ("q", "k", "v")},
        "time_decay": (HEADS, KEY_DIM),
        "time_first": (HEADS, KEY_DIM),
        **_CHANNELS,
    },
    "reformer": {"x": _LSH, "v": _LSH},
    **{
        f"sdpa_{case}": {
            "q": (BATCH, LENGTH, SDPA_HEADS, KEY_DIM),
            "k": (BATCH, LENGTH, options.get("num_kv_heads", SDPA_HEADS), KEY_DIM),
            "v": (BATCH, LENGTH, options.get("num_kv_heads", SDPA_HEADS), VALUE_DIM),
            **({"bias": (1, SDPA_HEADS, LENGTH, LENGTH)} if "bias" in options else {}),
        }
        for case, options in SDPA.items()
    },
    "eva": {
        **{name: _EVA for name in ("q", "k", "v")},
        "mean_query_kernel": (KEY_DIM, KEY_DIM),
        "mean_query_bias": (KEY_DIM,),
        "mean_key_kernel": (KEY_DIM, KEY_DIM),
        "mean_key_bias": (KEY_DIM,),
        "noise": (HEADS, EVA_CHUNKS, KEY_DIM),
    },
}
"""Of each peer's inputs, by name; of RWKV's state w, u, m are its aa, bb, pp."""


def draw(peer: str) -> dict[str, Any]:
    """The inputs of a peer, float64: log-decays down to -4, keys of the delta rule of length 1."""
    rng = np.random.default_rng(26)
    inputs: dict[str, Any] = {}
    for name, shape in SHAPES[peer].items():
        x = rng.normal(size=shape)
        if name == "log_decay":
            x = -(10.0 ** (0.6 - 1.5 * np.abs(x)))
        elif name == "beta":
            x = 1 / (1 + np.exp(-x))
        elif name == "u":
            x = np.exp(x)
        elif name == "k" and "beta" in SHAPES[peer]:
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        inputs[name] = x
    return inputs


def rotations() -> Any:
    """Those of Reformer's rounds, float64 [rounds, K, b / 2]: no gradient passes them."""
    size, rounds = REFORMER
    return np.random.default_rng(28).normal(size=(rounds, KEY_DIM, _LSH[1] // size // 2))


def pair_mask() -> Any:
    """The mask of SDPA's cases, bool [B, 1, T, S]: every query may attend to itself."""
    drawn = np.random.default_rng(29).uniform(size=(BATCH, 1, LENGTH, LENGTH)) < 0.7
    return drawn | np.eye(LENGTH, dtype=bool)


def weights(peer: str, outputs: dict[str, Any]) -> dict[str, Any]:
    """Of the sum whose gradients are kept: normal numbers, in the order of the outputs' names."""
    rng = np.random.default_rng(27)
    return {name: rng.normal(size=outputs[name].shape) for name in sorted(outputs)}


def main(*folders: Path) -> None:
    """Runs the peers and writes ``peers.npz``."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    peers = _sdpa(torch) | (_peers(torch, *folders) if folders else {})
    with np.load(PEERS) as file:
        before = {name: x for name, x in file.items() if name.split(".")[0] not in peers}
    kept: dict[str, Any] = {}
    for peer, run in peers.items():
        inputs = {
            name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
            for name, x in draw(peer).items()
        }
        outputs = run(**inputs)
        weighted = weights(peer, outputs)
        sum((torch.tensor(weighted[name]) * x).sum() for name, x in outputs.items()).backward()
        kept |= {f"{peer}.{name}": x.detach() for name, x in outputs.items()}
        kept |= {f"{peer}.gradient.{name}": x.grad for name, x in inputs.items()}
    for name, x in kept.items():
        if str(x.dtype) != "torch.float64":
            raise TypeError(f"{name} was computed as {x.dtype}, expected float64.")
    numbers: dict[str, Any] = {name: x.numpy().astype(np.float32) for name, x in kept.items()}
    np.savez_compressed(PEERS, **before, **numbers)


def _sdpa(torch: Any) -> dict[str, Callable[..., Any]]:
    """By case, PyTorch's attention: window and mask are its ``attn_mask``, with the bias."""
    mask, ahead = torch.tensor(pair_mask()), torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)

    def case(options: dict[str, Any]) -> Callable[..., Any]:
        visible = mask if "mask" in options else torch.ones_like(mask)
        if "is_causal" in options:
            visible = visible & (ahead >= 0)
        if "window" in options:
            visible = visible & (ahead < options["window"])

        def run(q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
            y = torch.nn.functional.scaled_dot_product_attention(
                *map(_swap_time_and_heads, (q, k, v)),
                attn_mask=torch.where(visible, bias, torch.tensor(-torch.inf, dtype=q.dtype)),
                scale=options.get("scale"),
                enable_gqa="num_kv_heads" in options,
            )
            return {"y": _swap_time_and_heads(y)}

        return run

    return {f"sdpa_{name}": case(options) for name, options in SDPA.items()}


def _peers(
    torch: Any, fla: Path, rwkv: Path, reformer: Path, eva: Path
) -> dict[str, Callable[..., Any]]:
    """By peer, the function from its inputs to outputs and last state, both by name."""
    for_heads = _swap_time_and_heads

    def naive(op: str, function: str) -> Callable[..., Any]:
        return getattr(_fla(torch, fla, op), function)

    def forgetting_aaren(q: Any, k: Any, v: Any, log_decay: Any) -> Any:
        run = naive("forgetting_attn", "naive_forgetting_attn")
        return {"y": run(q.expand(k.shape), k, v, log_decay)}

    def gated_linear(q: Any, k: Any, v: Any, log_decay: Any, state: Any) -> Any:
        run = naive("gla", "naive_recurrent_gla")
        y, last = run(q, k, v, log_decay, initial_state=state, output_final_state=True)
        return {"y": y, "last": last}

    def retention(q: Any, k: Any, v: Any) -> Any:
        y = naive("retention", "naive_retention")(*map(for_heads, (q, k, v)))
        return {"y": for_heads(y)}

    def retention_state(q: Any, k: Any, v: Any, state: Any) -> Any:
        run = naive("simple_gla", "naive_recurrent_simple_gla")
        decay = torch.log1p(-(2.0 ** (-5.0 - torch.arange(HEADS, dtype=torch.float64))))
        y, last = run(q, k, v, decay.expand(q.shape[:3]), initial_state=state)
        return {"y": y, "last": last}

    def delta(q: Any, k: Any, v: Any, beta: Any, state: Any) -> Any:
        run = naive("delta_rule", "delta_rule_recurrence")
        y, last = run(*map(for_heads, (q, k, v)), for_heads(beta), initial_state=state)
        return {"y": for_heads(y), "last": last}

    def gated_delta(q: Any, k: Any, v: Any, log_decay: Any, beta: Any, state: Any) -> Any:
        run = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
        y, last = run(q, k, v, beta, log_decay, initial_state=state, output_final_state=True)
        return {"y": y, "last": last}

    def rwkv_4(**inputs: Any) -> Any:
        return _rwkv(torch, rwkv, **inputs)

    def lsh(**inputs: Any) -> Any:
        return _reformer(torch, reformer, **inputs)

    def eva_1d(**inputs: Any) -> Any:
        return {"y": _eva(torch, eva, **inputs)}

    return {
        "forgetting_aaren": forgetting_aaren,
        "gated_linear": gated_linear,
        "retention": retention,
        "retention_state": retention_state,
        "delta": delta,
        "gated_delta": gated_delta,
        "rwkv": rwkv_4,
        "reformer": lsh,
        "eva": eva_1d,
    }


def _swap_time_and_heads(x: Any) -> Any:
    return x.transpose(1, 2)


def _fla(torch: Any, folder: Path, op: str) -> Any:
    """A module of theirs whose float32 is float64."""
    path = folder / "fla" / "ops" / op / "naive.py"
    spec = importlib.util.spec_from_file_location(op, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"expected flash-linear-attention's {path}, found nothing to run.")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wide = {"float": torch.float64, "float32": torch.float64}
    module.torch = types.SimpleNamespace(**{**vars(torch), **wide})
    torch.Tensor.float = torch.Tensor.double
    return module


def _rwkv(
    torch: Any,
    folder: Path,
    q: Any,
    k: Any,
    v: Any,
    time_decay: Any,
    time_first: Any,
    w: Any,
    u: Any,
    m: Any,
) -> Any:
    """Row by row: a token is (receptance, key, value), of which each projection takes its own."""
    tree = ast.parse((folder / "RWKV_in_150_lines.py").read_text())
    (function,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "time_mixing"
    )
    function.decorator_list = []
    scope = {"torch": torch}
    exec(compile(ast.Module([function], []), "time_mixing", "exec"), scope)
    mix: Any = scope["time_mixing"]

    channels = HEADS * KEY_DIM
    one = torch.eye(3 * channels, dtype=torch.float64)
    receptance, key, value = one.split(channels)
    rows, states = [], []
    for b in range(BATCH):
        tokens = torch.cat([x[b].reshape(LENGTH, channels) for x in (q, k, v)], dim=1)
        state = [None, torch.zeros(3 * channels, dtype=torch.float64)]
        state += [x[b].reshape(channels) for x in (w, u, m)]
        outputs = [
            mix(
                *(None, token, state, 0, 1.0, 1.0, 1.0, time_first.reshape(channels)),
                *(-torch.exp(time_decay.reshape(channels)), key, value, receptance),
                one[:channels, :channels],
            )
            for token in tokens
        ]
        rows.append(torch.stack(outputs).reshape(LENGTH, HEADS, KEY_DIM))
        states.append([x.reshape(HEADS, KEY_DIM) for x in state[2:]])
    w, u, m = (torch.stack(leaves) for leaves in zip(*states, strict=True))
    return {"y": torch.stack(rows), "last_w": w, "last_u": u, "last_m": m}


def _reformer(torch: Any, folder: Path, x: Any, v: Any) -> Any:
    """Heads are rows of theirs. Of their module only what this class needs is run."""
    tree = ast.parse((folder / "reformer_pytorch" / "reformer_pytorch.py").read_text())
    missing = ("local_attention", "axial_positional_embedding", "product_key_memory")

    def needed(node: ast.stmt) -> bool:
        if isinstance(node, ast.ImportFrom):
            return not (node.module or "").startswith((*missing, "reformer_pytorch"))
        return not isinstance(node, ast.ClassDef) or node.name == "LSHAttention"

    scope: Any = {}
    body = [node for node in tree.body if needed(node)]
    exec(compile(ast.Module(body, []), "reformer_pytorch", "exec"), scope)
    drawn = torch.tensor(rotations()).transpose(0, 1)[None]
    scope["torch"] = types.SimpleNamespace(**{**vars(torch), "randn": lambda *_, **__: drawn})
    size, rounds = REFORMER
    attend = scope["LSHAttention"](
        bucket_size=size,
        n_hashes=rounds,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
    ).eval()
    rows = (BATCH * HEADS, -1, KEY_DIM)
    y = attend(*(_swap_time_and_heads(each).reshape(rows) for each in (x, v)))[0]
    return {"y": _swap_time_and_heads(y.reshape(BATCH, HEADS, -1, KEY_DIM))}


def _eva(torch: Any, folder: Path, q: Any, k: Any, v: Any, noise: Any, **maps: Any) -> Any:
    """In training, where the module draws, with maps that have no layer norm."""
    sys.path.insert(0, str(folder / "efficient-attention"))
    theirs: Any = importlib.import_module("efficient_attention.eva")
    draw = {"randn_like": lambda mean: noise.expand(mean.shape)}
    theirs.torch = types.SimpleNamespace(**{**vars(torch), **draw})
    module = theirs.EVA(
        dim=HEADS * KEY_DIM,
        num_heads=HEADS,
        adaptive_proj="no-ln",
        num_landmarks=EVA_CHUNKS,
        window_size=EVA_WINDOW,
        overlap_window=True,
    ).double()
    module.proj_and_split_heads = lambda x: tuple(map(_swap_time_and_heads, (q, k, v)))
    module.proj = torch.nn.Identity()
    layers = {}
    for letter, of in (("q", "query"), ("k", "key")):
        layers[f"adaptive_mu_{letter}.0.weight"] = maps[f"mean_{of}_kernel"].T
        layers[f"adaptive_mu_{letter}.0.bias"] = maps[f"mean_{of}_bias"]
    y = torch.func.functional_call(module, layers, (q.reshape(BATCH, EVA_LENGTH, -1),))
    return y.reshape(q.shape)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
