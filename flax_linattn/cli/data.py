"""``flax-linattn data list``, ``info`` and ``fetch``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flax_linattn.cli import name_flags
from flax_linattn.data.sets.catalog import CATALOG, Entry
from flax_linattn.data.sets.fetch import fetch, find_entry
from flax_linattn.registry import get_task, list_tasks
from flax_linattn.tasks.protocols import InCatalog


def list_data() -> None:
    """Lists the public data sets with built-in readers."""
    takes = {name: _kinds(get_task(name)) for name in list_tasks()}
    by = {
        entry.kind: ", ".join(task for task, kinds in takes.items() if entry.kind in kinds)
        for entry in CATALOG.values()
    }
    width, wide = (max(map(len, words)) for words in (CATALOG, by.values()))
    for name, entry in CATALOG.items():
        here = " (comes with the package)" if entry.embedded else ""
        print(f"{name:<{width}}  {by[entry.kind]:<{wide}}  {entry.about}{here}")


def _kinds(task: object) -> tuple[str, ...]:
    """The kinds of data sets that a task trains on."""
    return task.kinds if isinstance(task, InCatalog) else ()


def info_data(names: tuple[str, ...], /, keep_unfinished: bool = False) -> None:
    """Shows the contents, license and files of a data set, and the commands that use it.

    Args:
        names: Name of a data set in "flax-linattn data list"; or one or more files or folders of
            episodes (D4RL, Minari or .npz) of one environment, whose statistics are shown.
        keep_unfinished: Include episodes whose end is unknown.
    """
    if not names:
        raise ValueError(
            "expected the name of a data set, or files of episodes, got none; "
            "'flax-linattn data list' lists the data sets."
        )
    if len(names) > 1:
        _info_files(names, keep_unfinished)
        return
    name = names[0]
    try:
        entry = find_entry(name)
    except ValueError as error:
        _info_file(name, keep_unfinished, error)
        return
    print(f"{name}: {entry.about}\nlicense: {entry.license}\nsee {entry.page}")
    for source in entry.sources:
        print(f"file {source.name}\n  from {source.url}\n  SHA-256 {source.sha256 or 'not known'}")
    print(_usage(name, entry, Path("data") / name))


def _info_file(name: str, keep_unfinished: bool, no_entry: ValueError) -> None:
    """Prints statistics of a file or folder of episodes."""
    from flax_linattn.data.episodes import episodes_as_text, load_episodes

    is_path = Path(name).suffix or Path(name).name != name
    if not Path(name).exists() and not is_path:
        raise ValueError(f"{no_entry} There is no file or folder of episodes {name} either.")
    episodes = load_episodes(name, keep_unfinished=keep_unfinished)
    text = episodes_as_text(episodes)
    print(text)
    known = text.splitlines()
    _print_notes([note for note in episodes.notes if note not in known])


def _info_files(names: Sequence[str], keep_unfinished: bool) -> None:
    """Prints the size of each of several files of episodes, and statistics of all of them."""
    from flax_linattn.data.episodes import episodes_as_text, join_episodes, load_episodes
    from flax_linattn.data.episodes.statistics import size_as_text

    for name in names:
        if name.lower() in map(str.lower, CATALOG) and not Path(name).exists():
            raise ValueError(
                f"{name} is the name of a data set; pass it alone, or only files of episodes."
            )
    parts = []
    for name in names:
        part = load_episodes(name, keep_unfinished=keep_unfinished)
        print(size_as_text(part))
        _print_notes(part.notes, "  ")
        parts.append(part)
    print(f"\n{episodes_as_text(join_episodes(parts))}")


def _print_notes(notes: Sequence[str], indent: str = "") -> None:
    """Prints a line for each note, with the flag of the option that it names."""
    for note in notes:
        flag = name_flags(["keep_unfinished"]) if "keep_unfinished" in note else ""
        print(f"{indent}note: {note}{flag}")


def fetch_data(name: str, /, to: Path | None = None) -> None:
    """Downloads the official files of a data set, and verifies their checksums.

    Args:
        name: Name of a data set in "flax-linattn data list".
        to: Folder to save the files in. Default: data/NAME.
    """
    entry = find_entry(name)
    (known,) = (own for own, other in CATALOG.items() if other is entry)
    folder = Path("data") / known if to is None else to
    fetch(name, folder)
    print(_usage(name, entry, folder))


def _usage(name: str, entry: Entry, folder: Path) -> str:
    """The commands that train on a data set."""
    lines = []
    for task_name in list_tasks():
        task = get_task(task_name)
        if isinstance(task, InCatalog) and entry.kind in task.kinds:
            options = task.options_for(entry, [folder / source.name for source in entry.sources])
            words = [w for k, v in options.items() for w in ("--" + k.replace("_", "-"), str(v))]
            lines.append(shlex.join(["flax-linattn", "train", task_name, *words]))
    return "\n".join(lines)
