"""Names of arrays in checkpoints of earlier versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RENAMED = {"input_embedding.": ""}
"""Part of a name -> what stood there before 2026-11-23: a backbone's embedding was no module."""


def saved_names(names: Iterable[str], saved: Mapping[str, str]) -> dict[str, str]:
    """The name that each array was saved by.

    Args:
        names: of the arrays asked for.
        saved: those of the checkpoint, its keys.

    Returns:
        Name -> the name in the checkpoint; the same where the checkpoint has none of both.

    Example:
        >>> saved_names(["backbone.input_embedding.values.kernel"], {"backbone.values.kernel": ""})
        {'backbone.input_embedding.values.kernel': 'backbone.values.kernel'}
    """
    return {name: _saved_name(name, saved) for name in names}


def _saved_name(name: str, saved: Mapping[str, str]) -> str:
    for new, old in RENAMED.items():
        earlier = name.replace(new, old, 1)
        if name not in saved and earlier in saved:
            return earlier
    return name
