"""How tests compile: nearly all their time goes into it, hardly any into running.

By default programs are compiled without most optimizations, in a third of the time, and kept in a
folder that worker processes, the processes that tests start and later runs share (jax compresses
them by ``zstandard`` where that is installed, in an eighth of the time). With
``FLAX_LINATTN_COMPILE=full`` they are compiled as users compile them, and not kept. A test of the
numbers or the memory that users see compiles its program by :func:`compile_as_users`.

The folder is that of ``flax_linattn.compilation``, outside the clone, so that a fresh clone finds
the programs of an earlier one. ``JAX_COMPILATION_CACHE_DIR`` names another one.
``python -m tests.compilation`` prints the folder of this machine.
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from typing import Any

from flax_linattn.compilation import programs_folder

MODE = os.environ.get("FLAX_LINATTN_COMPILE", "quick")
if MODE not in ("quick", "full"):
    raise ValueError(f"FLAX_LINATTN_COMPILE must be quick or full, got {MODE!r}.")

JAXLIB = importlib.metadata.version("jaxlib")
_HAS_EMITTERS = JAXLIB.startswith("0.10.")
_EMITTERS = "xla_cpu_use_fusion_emitters"

AS_USERS = {_EMITTERS: True} if _HAS_EMITTERS else {}
"""``compiler_options`` that undo what ``environment`` switches off by a flag."""


def programs() -> str:
    """The folder of the programs of tests."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(programs_folder())


def environment() -> dict[str, str]:
    """What jax and XLA read when they start, here and in processes that tests start."""
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
    if MODE == "full":
        return {"XLA_FLAGS": " ".join(flags).strip(), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    # For small programs these two cost more time than all the rest together.
    flags.append("--xla_cpu_parallel_codegen_split_count=1")  # threads of the compiler
    if _HAS_EMITTERS:
        flags.append(f"--{_EMITTERS}=false")
    return {
        "XLA_FLAGS": " ".join(flags).strip(),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": programs(),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


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
