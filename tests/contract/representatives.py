"""Mechanisms that stand for the parts of the engine.

A mechanism is little more than its equation: its forms, splits, dtypes and transformations come
from the engine. So the fast tests take every mechanism through its equation, in ``attend`` and in
the reference, and these through all else, which compiles most. The other cases are slow, and CI
runs those of the mechanisms whose files a change touches (``changed.py``).
``python -m tests.contract.representatives`` prints an expression for the cases of ``MAIN``.
"""

from collections.abc import Iterable

ENGINE: dict[str, tuple[str, ...]] = {
    "softmax": ("block_plan", "blocks", "cache", "scored"),
    "softmax:window=3": ("window",),
    "forgetting": ("double_float",),
    "aaren": (
        "chunks",
        "exponential",
        "exponential_scan",
        "prefix",
        "shards",
        "streaming",
        "tiles",
    ),
    "forgetting_aaren": ("decays", "exponential_scan"),
    "elementwise": ("channel_blocks", "channelwise", "primal_only"),
    "elementwise_series": ("series", "series_scan"),
    "taylorshift": (
        *("features", "forms", "recompute_vjp", "kernel", "kernel_scan", "polynomials"),
        "polynomial_kernel",
    ),
    "taylorshift:order=4": ("monomials",),
    "gated_delta": ("chunk_scan", "gated", "gates"),
    "nystrom": ("stateless",),
    "reformer": ("buckets", "random_features"),
}
"""Mechanism -> the files of ``ops/engine`` that it stands for, in its main form and direction."""

MAIN = ("softmax", "aaren", "elementwise", "elementwise_series", "taylorshift", "gated_delta")
"""One of each family, whose further forms, dtypes, transformations and meshes are fast, too."""

CONTRACT = ("softmax", "aaren")
"""A cache and a monoid stand for ``ops/contract``, which every mechanism runs."""


def of_file(file: str) -> tuple[str, ...]:
    """The mechanisms that stand for ``engine/<name>.py`` or ``contract/<name>.py``; or none."""
    folder, _, name = file.removesuffix(".py").partition("/")
    if folder == "contract":
        return CONTRACT
    return tuple(each for each, parts in ENGINE.items() if folder == "engine" and name in parts)


def expression(names: Iterable[str]) -> str:
    """For ``-k``: cases whose identifiers begin with a name, variants too, and files of tests."""
    alternatives = []
    for name in names:
        base, equals, _ = name.partition("=")  # "=" has no place in an expression
        alternatives += [f"[{base}"] if equals else [f"[{name}{end}" for end in "-]:"]
        alternatives += [f"test_{base.partition(':')[0]}"]
    return " or ".join(alternatives)


if __name__ == "__main__":
    print(expression(MAIN))
