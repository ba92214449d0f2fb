"""Export of a run to a file that runs its model without this library, for every task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from flax_linattn.checks import OptionError, check_choice
from flax_linattn.inference.c_step import HEADER_BEGIN
from flax_linattn.inference.linattn_runtime import Bundle, BundleError
from flax_linattn.inference.onnx_step import PRODUCER
from flax_linattn.tasks.options import Checkpoint, ExportFormat
from flax_linattn.tasks.run import load_run


def export_run(
    run_dir: str | Path,
    out: str | Path,
    options: Any = None,
    *,
    format: ExportFormat = "bundle",
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
    chunk_sizes: Sequence[int] = (128,),
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    require_state: bool = False,
    again: bool = False,
) -> dict[str, Any]:
    """Exports a trained run to a bundle, a C header or an ONNX file.

    The file runs without this library. See ``inference.export`` for bundles and
    ``inference/linattn_runtime.py`` for their loader, ``inference.export_c`` for C, and
    ``inference.export_onnx`` for ONNX. The names in a C header begin with the name of the file.

    Args:
        run_dir: Run folder.
        out: File to write.
        options: ``StreamOptions`` of the run's task, such as ``max_length`` for mechanisms with a
            cache. Default: its default options.
        format: "bundle", "c" for a C99 header, or "onnx".
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value.
        checkpoint: "best" (the selected parameters) or "last" (the last parameters).
        chunk_sizes: Numbers of observations that ``prefill`` of a bundle processes in parallel.
        platforms: Platforms to compile a bundle for: "cpu", "cuda", "rocm", "tpu".
        require_state: Whether the state is a required input of an ONNX file, for browsers.
        again: Replace an existing file: a bundle of the same task, a C header, or an ONNX file.

    Returns:
        The signature of the bundle or the ONNX file; for C, the size of each part in bytes.

    Raises:
        FileNotFoundError: If the run is missing.
        ValueError: If the run cannot stream, an option is out of range, the file exists and
            ``again`` is not set, or the file is a bundle of another task.
    """
    check_choice(get_args(ExportFormat), format=format)
    out, run = Path(out), load_run(run_dir, seed_index, checkpoint=checkpoint)
    if out.exists():
        _check_renewal(out, run.task.name, again, format)
    stream = run.task.stream(run, run.task.StreamOptions() if options is None else options)
    metadata = {"name": run.task.name, "seed_index": run.seed_index, "checkpoint": checkpoint}
    if format == "c":
        name = re.sub(r"\W", "_", out.stem, flags=re.ASCII)
        name = name if name[:1].isalpha() else f"_{name}"
        return stream.export(out, metadata, format, name=name)
    if format == "onnx":
        return stream.export(out, metadata, format, require_state=require_state)
    return stream.export(out, metadata, chunk_sizes=chunk_sizes, platforms=platforms)


def _check_renewal(out: Path, task: str, again: bool, format: ExportFormat) -> None:
    """Checks that an existing file is an exported model, and that it may be replaced."""
    if not again:
        raise OptionError(
            f"{out} exists; choose another file, or renew it with again=True.", "out", "again"
        )
    if format != "bundle":
        with out.open("rb") as file:
            begin = file.read(64)
        # The producer of a model is the second field of an ONNX file.
        if not begin.startswith(HEADER_BEGIN.encode()) and PRODUCER.encode() not in begin:
            raise OptionError(f"{out} is not an exported model; choose another file.", "out")
        return
    try:
        name = (Bundle.read_signature(out)["task"] or {}).get("name")
    except BundleError as error:
        raise OptionError(f"expected a bundle to renew: {error}", "out") from error
    if name != task:
        raise OptionError(
            f"{out} is a bundle of the task {name!r}, but the task of the run is {task!r}; choose "
            "another file.",
            "out",
        )
