"""Run folders with one thing wrong: a byte, a value, a file. Seeded, and told in words."""

import json
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 100_000, 10**9, 10**12, -(10**12), 10**400, 0.5, -0.5, 1e12,
    1e308, float("nan"), float("inf"), "", "8", "aaren", "softmax:chunk_size=7",
    "elementwise_series:order=4", "/nowhere/at/all", "\x00", "\ud800", "-" * 100_000,
    "aaren:chunk_size=" + "-" * 100_000, "aaren:chunk_size=" + "(" * 150, "x" * 10_000, [], {},
    [1], ["a"], [1e12], [10**12], [[1]], {"a": 1}, [None] * 50, {"": {}}, list(range(1000)),
]  # fmt: skip
TEXTS: list[bytes] = [
    b"", b"null", b"5", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500,
    b"\xff\xfe{}", b'{"task": "\xff"}', b"1" * 10_000, b"\x00" * 100,
]  # fmt: skip


def doctor(run_dir: Path, rng: random.Random) -> str:
    """Does one thing to a run folder; says what."""
    files = sorted(p for p in run_dir.rglob("*") if p.is_file())
    read = [p for p in files if p.name in ("config.json", "problem.json", "progress.json")]
    path = rng.choice(read if rng.random() < 0.85 else files)
    does = [_flip, _cut, _repeat, _replace, _delete, _make_folder]
    if path.suffix == ".json":
        does += [_change_value] * 8 + [_drop_key] * 2
    what = rng.choice(does)
    return f"{path.relative_to(run_dir)}: {what.__name__} {what(path, rng)}"


def _flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    places = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 3)))] if data else []
    for place in places:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{places}"


def _cut(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    size = rng.randrange(len(data) + 1)
    path.write_bytes(data[:size])
    return f"{size}"


def _repeat(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    begin = rng.randrange(len(data) + 1)
    path.write_bytes(data[:begin] + data[begin : begin + 40] * 2 + data[begin + 40 :])
    return f"{begin}"


def _replace(path: Path, rng: random.Random) -> str:
    text = rng.choice(TEXTS)
    path.write_bytes(text)
    return f"{text[:20]!r}"


def _delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return ""


def _make_folder(path: Path, rng: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return ""


def _change_value(path: Path, rng: random.Random) -> str:
    value = rng.choice(VALUES)

    def change(parent: Any, key: Any) -> None:
        parent[key] = value

    return f"{_edit(path, rng, change)} = {repr(value)[:60]}"


def _drop_key(path: Path, rng: random.Random) -> str:
    def drop(parent: Any, key: Any) -> None:
        del parent[key]

    return _edit(path, rng, drop)


def _edit(path: Path, rng: random.Random, change: Callable[[Any, Any], None]) -> str:
    """Edits a place in a JSON file; a checksum is made to fit, mostly."""
    content = json.loads(path.read_text())
    places = list(_places(content, ()))
    parent, key, name = rng.choice(places)
    change(parent, key)
    signed = path.name == "progress.json" and name[0] == path.stem and rng.random() < 0.8
    if signed and path.stem in content:
        content["crc32"] = zlib.crc32(json.dumps(content[path.stem]).encode())
    path.write_text(json.dumps(content))
    return ".".join(map(str, name))


def _places(value: Any, name: tuple[Any, ...]):
    """Where something can be changed: not in each of many rows, but in the first ones."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 3))
    for key in keys:
        yield value, key, (*name, key)
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key], (*name, key))


def copy(run_dir: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(run_dir, to))
