"""The user's cache of compiled programs, which commands, estimators and tests share."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flax_linattn.storage import user_cache

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
MAX_BYTES = 1 << 30
"""Maximum size of all cached programs; a training needs less than a megabyte."""

SECONDS_UNTIL_PRUNED = 24 * 3600


def cache_root() -> Path:
    """The folder of all cached programs: ``FLAX_LINATTN_PROGRAMS``, or one in ``user_cache``."""
    own = os.environ.get("FLAX_LINATTN_PROGRAMS")
    return Path(own or user_cache() / "flax-linattn" / "programs").expanduser().absolute()


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
    for path in cache_root().glob("jaxlib-*/*-cache"):
        with suppress(OSError):  # another process may prune at the same time
            status = path.lstat()
            used.append((status.st_atime, status.st_size, path))
    size = sum(file_size for _, file_size, _ in used)
    for _, file_size, path in sorted(used):
        if size <= max_bytes:
            return
        size -= file_size
        with suppress(OSError):
            path.unlink()


def check_writable(folder: str | Path) -> None:
    """Raises OSError for a folder that is read-only, or on a full disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(2**20))


@functools.cache  # one note in a process
def _usable_folder() -> Path | None:
    """Makes the folder of programs, and prunes it once a day; None if it is not to be used."""
    try:
        folder = programs_folder()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise PermissionError(f"others may write to {folder}, or it is not yours")
        pruned = folder / "pruned"
        if not pruned.exists() or time.time() - pruned.stat().st_mtime > SECONDS_UNTIL_PRUNED:
            prune()
            pruned.write_bytes(b"")
        check_writable(folder)
    except (OSError, RuntimeError) as error:
        print(
            f"note: compiled programs are not cached: {error}; set FLAX_LINATTN_PROGRAMS to "
            "another folder",
            file=sys.stderr,
        )
        return None
    return folder


@contextmanager
def cached_programs() -> Iterator[None]:
    """A context in which JAX reads and writes compiled programs in the user's cache.

    Afterwards JAX's settings are as before, so that programs of the caller are not cached. JAX's
    own settings take precedence: ``JAX_COMPILATION_CACHE_DIR`` names another folder, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` disables the cache. If the folder cannot be written, or
    others may write to it, a note says so; JAX warns of a program that it cannot read, and compiles
    it again.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    is_set = config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache
    folder = None if is_set else _usable_folder()
    if folder is None:
        yield
        return
    before = {name: getattr(config, name) for name in SETTINGS}
    set_compilation_cache(folder)
    try:
        yield
    finally:
        for name, value in before.items():
            config.update(name, value)
        compilation_cache.reset_cache()  # JAX reads its settings at the next compilation


def set_compilation_cache(folder: str | Path) -> None:
    """Caches the programs that JAX compiles from now on in a folder."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    directory, min_seconds = SETTINGS
    jax.config.update(directory, str(folder))
    if getattr(jax.config, min_seconds) == 1.0:  # JAX's default
        jax.config.update(min_seconds, 0.0)
    compilation_cache.reset_cache()
