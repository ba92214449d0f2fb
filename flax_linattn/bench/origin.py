"""Provenance of results: command, commit, versions and machine."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import flax_linattn


def commit() -> str:
    """The short name of the commit of the code, with "-dirty" if the code has changed since.

    The code is the package with its data, and the programs of the experiments without their
    results; files that git does not know count. Empty where the package is installed.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[1],
        ).stdout.strip()

    try:
        if not git("ls-files", "py.typed"):  # an environment may lie in another repository
            return ""
        code = (":/flax_linattn", ":(top,glob)experiments/**/*.py")
        changed = git("status", "--porcelain", "--untracked-files=all", *code)
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except OSError:  # no git here
        return ""


def device() -> str:
    """The platform and kind of the device that jax computes on."""
    first = jax.devices()[0]
    return first.platform if first.platform == first.device_kind else first.device_kind


def provenance(command: str) -> dict[str, Any]:
    """Head of a results file: command, commit, versions, machine and date.

    Example:
        >>> sorted(provenance("flax-linattn bench"))[:4]
        ['command', 'commit', 'cores', 'date']
    """
    return {
        "command": command,
        "commit": commit(),
        "version": flax_linattn.__version__,
        "platform": jax.default_backend(),
        "device": device(),
        # Cores that this process may use.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        **{name: version(name) for name in ("jax", "flax", "optax")},
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }
