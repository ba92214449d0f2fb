"""The user's cache of compiled programs, which commands, estimators and tests share."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 30
"""Maximum size of all cached programs; a training needs less than a megabyte."""


def user_cache() -> Path:
    """The folder of the user's caches on this platform, or ``XDG_CACHE_HOME`` if it is set.

    Raises:
        RuntimeError: If the user has no home folder.
    """
    if own := os.environ.get("XDG_CACHE_HOME"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def cache_root() -> Path:
    """The folder of all cached programs: ``FLAX_LINATTN_PROGRAMS``, or one in ``user_cache``."""
    own = os.environ.get("FLAX_LINATTN_PROGRAMS")
    return Path(own or user_cache() / "flax-linattn" / "programs").absolute()


def programs_folder() -> Path:
    """The folder of the programs that this jaxlib compiles on this kind of processor.

    A program may contain instructions that another type of CPU does not support.
    """
    kind = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next((line for line in lines if re.match("(flags|Features)\\b", line)), kind)
    name = f"jaxlib-{importlib.metadata.version('jaxlib')}-{platform.machine()}"
    return cache_root() / f"{name}-{zlib.crc32(kind.encode()):08x}"


def prune(max_bytes: int = MAX_BYTES) -> None:
    """Removes the least recently used programs, of all jaxlibs and CPU types, beyond a limit."""
    used = []
    for path in cache_root().rglob("*"):
        with suppress(OSError):  # another process may prune at the same time
            if path.is_file():
                used.append((path.stat().st_atime, path.stat().st_size, path))
    size = sum(file_size for _, file_size, _ in used)
    for _, file_size, path in sorted(used):
        if size <= max_bytes:
            return
        size -= file_size
        with suppress(OSError):
            path.unlink()


@functools.cache  # one note in a process
def use_compilation_cache() -> None:
    """Caches the programs that JAX compiles from now on, so that the next process reads them.

    JAX's own settings take precedence: ``JAX_COMPILATION_CACHE_DIR`` names another folder, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` disables the cache. If the folder cannot be written, a
    note says so; a program that cannot be read is compiled again.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        folder = programs_folder()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        prune()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))  # raises on a full disk
    except (OSError, RuntimeError) as error:
        print(
            f"note: compiled programs are not cached: {error}; set FLAX_LINATTN_PROGRAMS to "
            "another folder",
            file=sys.stderr,
        )
        return
    set_compilation_cache(folder)


def set_compilation_cache(folder: str | Path) -> None:
    """Caches the programs that JAX compiles from now on in a folder."""
    import jax

    # JAX compiles a program again if its cache entry cannot be read, which needs no warning.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
