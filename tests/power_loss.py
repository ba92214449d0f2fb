"""What a power loss would leave of a folder, as strictly as POSIX allows."""

import os
from pathlib import Path

from flax_linattn.storage import sync_folder

UNSAVED = (".lock", ".tmp")
"""Suffixes of files that hold nothing to lose."""


class PowerLoss:
    """Records every ``os.fsync``: of a file it saves the content, of a folder the entries.

    A new file or folder survives if it was synced itself, and so was every folder above it after
    the entry below was made, up to ``root``. Renaming a file and syncing it alone saves no name.
    """

    def __init__(self, root, monkeypatch):
        self.root, self._synced, fsync = Path(root), {}, os.fsync

        def record(descriptor):
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            self._synced[path.stat().st_ino] = _content(path)

        monkeypatch.setattr(os, "fsync", record)
        sync_folder(self.root)

    def lost(self, path=None):
        """Names of the files and folders above, at and below a path that would be lost or old."""
        path = self.root if path is None else Path(path)
        above = [folder for folder in path.parents if folder.is_relative_to(self.root)]
        lost = [self._name(part) for part in (path, *above[:-1]) if self._is_lost(part)]
        for part in path.rglob("*") if path.is_dir() else ():
            if part.suffix not in UNSAVED and self._is_lost(part):
                lost.append(self._name(part))
        return lost

    def _name(self, path):
        return path.relative_to(self.root).as_posix()

    def _is_lost(self, path):
        if path == self.root:
            return False
        inode = path.stat().st_ino
        entries = self._synced.get(path.parent.stat().st_ino, {})
        is_old = path.is_file() and self._synced.get(inode) != path.read_bytes()
        return entries.get(path.name) != inode or is_old


def _content(path):
    if path.is_dir():
        return {entry.name: entry.stat().st_ino for entry in path.iterdir()}
    return path.read_bytes()
