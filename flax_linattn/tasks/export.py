"""Bundles of trained runs, for every task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax_linattn.checks import OptionError
from flax_linattn.inference.linattn_runtime import Bundle, BundleError
from flax_linattn.tasks.run import Checkpoint, load_run


def export_run(
    run_dir: str | Path,
    out: str | Path,
    options: Any = None,
    *,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
    chunk_sizes: Sequence[int] = (128,),
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    again: bool = False,
) -> dict[str, Any]:
    """Writes a trained run as a bundle, which runs without this library.

    See ``inference.export`` for the file, and ``inference/linattn_runtime.py`` for its loader.

    Args:
        run_dir: Run folder.
        out: File to write.
        options: ``StreamOptions`` of the run's task, such as ``max_length`` for mechanisms with a
            cache. Default: its default options.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value.
        checkpoint: "best" (the selected parameters) or "last" (the last parameters).
        chunk_sizes: Numbers of observations that ``prefill`` processes in parallel.
        platforms: Platforms to compile for: "cpu", "cuda", "rocm", "tpu".
        again: Replace a bundle of the same task that exists, to renew its programs.

    Returns:
        The signature of the bundle.

    Raises:
        FileNotFoundError: If the run is missing.
        ValueError: If the run cannot stream, an option is out of range, or the file exists and
            ``again`` is not set, or is a bundle of another task.
    """
    out, run = Path(out), load_run(run_dir, seed_index, checkpoint=checkpoint)
    if out.exists():
        _check_renewal(out, run.task.name, again)
    stream = run.task.stream(run, run.task.StreamOptions() if options is None else options)
    facts = {"name": run.task.name, "seed_index": run.seed_index, "checkpoint": checkpoint}
    return stream.export(out, facts, chunk_sizes=chunk_sizes, platforms=platforms)


def _check_renewal(out: Path, task: str, again: bool) -> None:
    """Refuses to replace a file, unless it is a bundle of the task that is to be renewed."""
    if not again:
        raise OptionError(
            f"{out} exists; choose another file, or renew it with again=True.", "out", "again"
        )
    try:
        name = (Bundle.read_signature(out)["task"] or {}).get("name")
    except BundleError as error:
        raise OptionError(f"expected a bundle to renew: {error}", "out") from error
    if name != task:
        raise OptionError(
            f"{out} is a bundle of the task {name!r}, and the run is one of {task!r}; choose "
            "another file.",
            "out",
        )
