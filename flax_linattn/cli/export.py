"""``flax-linattn export RUN``."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flax_linattn.checks import OptionError
from flax_linattn.cli import flags
from flax_linattn.storage import make_folder
from flax_linattn.tasks.config_file import read_task_options
from flax_linattn.tasks.options import Checkpoint, ExportFormat


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """File, format and parameters of an exported run, and programs of a bundle.

    Attributes:
        out: File to write, such as model.linattn, model.h or model.onnx.
        format: "bundle" for JAX, "c" for a C99 header, or "onnx" for an ONNX file. C and ONNX need
            a mechanism whose state has constant size.
        runtime: Also copy linattn_runtime.py, the loader of bundles, to this file.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation.
        checkpoint: Parameters to use: "best" (those with the best validation) or "last" (those at
            the end of training).
        chunk_sizes: Numbers of observations that prefill processes in parallel; a bundle has one
            program for each number.
        platforms: Platforms to compile for: cpu, cuda, rocm, tpu.
        require_state: Make the state a required input of an ONNX file, as ONNX Runtime in browsers
            needs.
        again: Replace an existing file, for example to renew a bundle, which JAX guarantees to read
            for six months.
    """

    main_options: ClassVar[tuple[str, ...]] = ("out", "format", "runtime", "again")
    out: Path | None = None
    format: ExportFormat = "bundle"
    runtime: Path | None = None
    seed_index: int | None = None
    checkpoint: Checkpoint = "best"
    chunk_sizes: tuple[int, ...] = (128,)
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    require_state: bool = False
    again: bool = False


SUFFIXES = {".linattn": "bundle", ".h": "c", ".onnx": "onnx"}
"""Suffixes of files, and the format that each one promises."""
PROG = "flax-linattn export RUN"
ABOUT = (
    "Exports a run to one file that streams its model without this library: a bundle for JAX, a C "
    "header or an ONNX file. The options of 'flax-linattn stream RUN' are options here, too."
)


def export_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn export`` and returns a function that exports."""
    if flags.asks_help(args, f"expected a run folder, got none; write {PROG} --out FILE."):
        flags.parse(flags.groups(ExportOptions()), args, PROG, ABOUT)
    task = read_task_options(Path(args[0]))
    groups = [*flags.groups(ExportOptions()), *flags.groups(task.StreamOptions(), task.name)]
    values = flags.parse(groups, args[1:], f"flax-linattn export {args[0]}", ABOUT)
    options = vars(flags.build(ExportOptions, values))
    stream: Any = flags.build(task.StreamOptions, values)
    out, runtime = options.pop("out"), options.pop("runtime")
    if out is None:
        raise OptionError("expected a file to write; set out=..., such as model.linattn.", "out")
    own = SUFFIXES.get(out.suffix, options["format"])
    if own != options["format"]:
        raise OptionError(
            f"{out} has the suffix of another format; set format={own!r}, or choose another name.",
            "out",
            "format",
        )
    if options["format"] != "bundle":
        given = {"runtime": runtime, **options}
        defaults = ExportOptions()
        for name in ("runtime", "chunk_sizes", "platforms"):
            if given[name] != getattr(defaults, name):
                raise OptionError(f"{name} is an option of bundles; remove it.", name, "format")
    if options["require_state"] and options["format"] != "onnx":
        raise OptionError(
            "require_state is an option of ONNX; remove it.", "require_state", "format"
        )
    if runtime is not None:
        if runtime.resolve() == out.resolve():
            raise OptionError("expected different files for out and runtime.", "out", "runtime")
        make_folder(runtime.parent)
    return partial(_export, args[0], out, runtime, stream, options)


def _export(
    run_dir: str, out: Path, runtime: Path | None, stream: Any, options: dict[str, Any]
) -> None:
    """Exports a run, and prints what the file holds."""
    from flax_linattn.inference import linattn_runtime
    from flax_linattn.tasks import export_run

    signature = export_run(run_dir, out, stream, **options)
    if options["format"] == "c":
        parts = ", ".join(f"{name} {size:,}" for name, size in signature.items())
        print(f"# {out}: bytes of its parts: {parts}", file=sys.stderr)
        return
    if options["format"] == "onnx":
        names = ", ".join(leaf["name"] for leaf in signature["state"])
        print(f"# {out}: {out.stat().st_size:,} bytes; its state: {names}", file=sys.stderr)
        return
    size, until = out.stat().st_size, signature["readable_until"]
    print(
        f"# {out}: {size:,} bytes, a state of {signature['state_bytes']:,} bytes; JAX promises to "
        f"read it until {until}",
        file=sys.stderr,
    )
    if not signature["task"]["inputs"]:
        print(
            "# note: the bundle takes the model's own arrays, because it cannot describe raw "
            "observations of this run",
            file=sys.stderr,
        )
    if runtime is not None:
        shutil.copyfile(linattn_runtime.__file__, runtime)
