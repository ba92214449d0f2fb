"""How tests compile: nearly all their time goes into it, hardly any into running.

By default programs are compiled without most optimizations, in a third of the time, and kept in a
folder that worker processes, the processes that tests start and later runs share (jax compresses
them by ``zstandard`` where that is installed, in an eighth of the time). With
``FLAX_LINATTN_COMPILE=full`` they are compiled as users compile them, and not kept. A test of the
numbers or the memory that users see compiles its program by :func:`compile_as_users`.

The folder stands outside the clone, so that a fresh clone finds the programs of an earlier one:
``FLAX_LINATTN_PROGRAMS``, or ``flax-linattn/programs`` in the user's cache folder. In it each
jaxlib and each kind of processor has its own folder. ``JAX_COMPILATION_CACHE_DIR`` overrides both.
``python -m tests.compilation`` prints the folder of this machine.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODE = os.environ.get("FLAX_LINATTN_COMPILE", "quick")
if MODE not in ("quick", "full"):
    raise ValueError(f"FLAX_LINATTN_COMPILE must be quick or full, got {MODE!r}.")

JAXLIB = importlib.metadata.version("jaxlib")
_HAS_EMITTERS = JAXLIB.startswith("0.10.")
_EMITTERS = "xla_cpu_use_fusion_emitters"

AS_USERS = {_EMITTERS: True} if _HAS_EMITTERS else {}
"""``compiler_options`` that undo what ``environment`` switches off by a flag."""

MAX_BYTES = 1 << 30
"""Of all compiled programs together; those of a run of the fast tests take about a fifth."""


def root() -> Path:
    """The folder of all programs."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("FLAX_LINATTN_PROGRAMS") or Path(cache, "flax-linattn", "programs")
    return Path(folder).absolute()


def programs() -> Path:
    """The folder of the programs that this jaxlib compiles on this kind of processor.

    A program may hold instructions that another processor does not know.
    """
    if own := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(own)
    kind = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next((line for line in lines if re.match("(flags|Features)\\b", line)), kind)
    return root() / f"jaxlib-{JAXLIB}-{platform.machine()}-{zlib.crc32(kind.encode()):08x}"


def environment() -> dict[str, str]:
    """What jax and XLA read when they start, here and in processes that tests start."""
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
    if MODE == "full":
        return {"XLA_FLAGS": " ".join(flags).strip()}
    # For small programs these two cost more time than all the rest together.
    flags.append("--xla_cpu_parallel_codegen_split_count=1")  # threads of the compiler
    if _HAS_EMITTERS:
        flags.append(f"--{_EMITTERS}=false")
    return {
        "XLA_FLAGS": " ".join(flags).strip(),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(programs()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def prune(max_bytes: int = MAX_BYTES) -> None:
    """Removes the programs that were used longest ago, of all kinds, beyond ``max_bytes``."""
    used = []
    for path in root().rglob("*"):
        with contextlib.suppress(OSError):  # another run may prune at the same time
            if path.is_file():
                used.append((path.stat().st_atime, path.stat().st_size, path))
    size = sum(file_size for _, file_size, _ in used)
    for _, file_size, path in sorted(used):
        if size <= max_bytes:
            return
        size -= file_size
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def optimized() -> Iterator[None]:
    """Compiles with optimizations inside, but what is compiled already stays as it is."""
    import jax

    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, False)
    try:
        yield
    finally:
        jax.config.update(name, before)


def compile_as_users(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """``function`` compiled for such arguments as users compile it."""
    import jax

    with optimized():
        return jax.jit(function).lower(*arguments, **named).compile(AS_USERS)


if __name__ == "__main__":
    print(programs())
