"""How tests compile: nearly all their time goes into it, hardly any into running.

Unless ``FLAX_LINATTN_COMPILE=full``, programs are compiled without most
optimisations, in a third of the time, and kept in a folder that all worker processes, the
processes that tests start and later runs share. What a program's numbers or its memory are as users
compile it is asked for by ``as_users``.
"""

import contextlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FULL = os.environ.get("FLAX_LINATTN_COMPILE") == "full"
_HAS_EMITTERS = importlib.metadata.version("jaxlib").startswith("0.10.")
_EMITTERS = "xla_cpu_use_fusion_emitters"

PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs" / platform.node()
"""The folder of compiled programs, unless JAX_COMPILATION_CACHE_DIR names another. Those of another
host are not used: its processor may know other instructions."""

AS_USERS = {_EMITTERS: True} if _HAS_EMITTERS else {}
"""``compiler_options`` of a program that is compiled as users do, beside ``as_users``."""


def environment() -> dict[str, str]:
    """What jax and XLA read when they start, here and in processes that tests start."""
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
    quick = {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if not FULL:
        # For small programs these two cost more time than all the rest together.
        flags.append("--xla_cpu_parallel_codegen_split_count=1")
        if _HAS_EMITTERS:
            flags.append(f"--{_EMITTERS}=false")
    return {"XLA_FLAGS": " ".join(flags).strip()} | ({} if FULL else quick)


def prune(most: int = 1 << 30) -> None:
    """Empties the folder of compiled programs, of all hosts, where it is beyond ``most`` bytes."""
    folder = PROGRAMS.parent
    with contextlib.suppress(FileNotFoundError):  # another run may empty it at the same time
        if sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > most:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def as_users() -> Iterator[None]:
    """Compiles with all optimisations inside, as far as they are not XLA's flags."""
    import jax

    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, False)
    try:
        yield
    finally:
        jax.config.update(name, before)


def compile_as_users(function: Callable[..., Any], *arguments: Any) -> Any:
    """``jax.jit(function)`` compiled for such arguments, as users do."""
    import jax

    with as_users():
        return jax.jit(function).lower(*arguments).compile(AS_USERS)
