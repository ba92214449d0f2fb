"""Finds the JAX version that this machine needs, without importing JAX, which is not yet installed.

python experiments/accelerator/machine.py

It prints the name of an extra of this package: cuda12, cuda13 or tpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

TPU_DEVICES = ("accel0", "vfio/0")
NONE = (
    "This machine has neither an NVIDIA GPU (nvidia-smi lists none) nor a TPU (no /dev/accel0, no "
    "TPU_NAME). Run this on one; without one, python -m experiments.accelerator --smallest runs "
    "every piece on the CPU, and --lower lowers its programs for both."
)


def extra(nvidia_smi: str | None, environment: Mapping[str, str], devices: Iterable[str]) -> str:
    """The name of the extra for this machine: cuda12, cuda13, tpu, or "" for none.

    Args:
        nvidia_smi: what it prints; None where there is none.
        environment: variables.
        devices: paths below /dev that exist.
    """
    if nvidia_smi is not None:
        version = re.search(r"CUDA Version:\s*(\d+)", nvidia_smi)
        if version is not None:
            return "cuda13" if int(version[1]) >= 13 else "cuda12"
    if "TPU_NAME" in environment or set(TPU_DEVICES) & set(devices):
        return "tpu"
    return ""


def nvidia_smi(*arguments: str) -> str | None:
    """The output of nvidia-smi; None where it is missing or lists no GPU."""
    command = ("nvidia-smi", *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def main() -> int:
    devices = [name for name in TPU_DEVICES if Path("/dev", name).exists()]
    extra_name = extra(nvidia_smi(), os.environ, devices)
    print(extra_name or NONE, file=sys.stdout if extra_name else sys.stderr)
    return 0 if extra_name else 1


if __name__ == "__main__":
    sys.exit(main())
