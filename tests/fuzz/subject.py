"""What the suite has to know of a kind of file."""

import abc
import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.fuzz.damage import PIECES, WRAPPED, mutated


class Case(NamedTuple):
    """A file on disk.

    Attributes:
        name: of the sample that it was made from, by which outcomes are counted.
        path: what an error has to name.
        read: reads the file, and fails where it holds anything that its type does not promise.
        note: what was done to it, for the message of a failure.
    """

    name: str
    path: Path
    read: Callable[[], Any]
    note: str = ""


class Subject(abc.ABC):
    """A kind of file; ``Subject(folder)`` writes whole ones into an empty folder.

    Attributes:
        counts: numbers of damaged files of the fast and of the slow test; 0 leaves a test out.
        outcomes: what has to become of some files, or of some that were made from a sample.
        most_valid: the fraction of damaged files that may be valid.
        seconds: of a core, the most that one file may take; most take a thousandth.
        megabytes: the most by which the memory of the process may grow over all files.
        longest: characters of a message beside the path.
        errors: what a reader may raise.
        context: what the suite runs in.
    """

    counts: ClassVar[tuple[int, int]]
    outcomes: ClassVar[set[Any]] = {"refused", "valid"}
    most_valid: ClassVar[float] = 1.0
    seconds: ClassVar[float] = 2.0
    megabytes: ClassVar[int] = 300
    longest: ClassVar[int] = 3000
    errors: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    context: ClassVar[Callable[[], AbstractContextManager[Any]]] = contextlib.nullcontext

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abc.abstractmethod
    def samples(self) -> Iterator[Case]:
        """Whole files, each of which is valid."""

    @abc.abstractmethod
    def damage(self, draw: random.Random) -> Case:
        """A whole file with some changes."""

    def everywhere(self) -> Iterator[Case]:
        """Whole files with one change at each of many places."""
        return iter(())

    def refusal(self, error: Exception, case: Case) -> str:
        """Which of ``outcomes`` an error is; fails where it does not name the file in few words."""
        assert str(case.path) in str(error), error
        assert len(str(error).replace(str(case.path), "")) < self.longest, error
        return "refused"


class TextSubject(Subject):
    """Files of lines, as they are and compressed.

    Attributes:
        texts: a small file of each format, by its name.
    """

    texts: ClassVar[dict[str, str]]

    @abc.abstractmethod
    def case(self, path: Path, draw: random.Random | None = None) -> Case:
        """How a file is read; options may be drawn, too."""

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def samples(self) -> Iterator[Case]:
        for name, text in self.texts.items():
            for suffix, wrap in WRAPPED.items():
                yield self.case(self.write(name + suffix, wrap(text.encode())))

    def damage(self, draw: random.Random) -> Case:
        name = draw.choice(list(self.texts))
        content = self.texts[name].encode()
        for _ in range(draw.randint(1, 4)):
            content = mutated(content, draw)
        suffix = draw.choice(("", "", "", ".gz", ".xz"))
        stored = WRAPPED[suffix](content)
        if suffix and draw.random() < 0.5:
            stored = mutated(stored, draw)
        return self.case(self.write(name + suffix, stored), draw)

    def everywhere(self) -> Iterator[Case]:
        for name, text in self.texts.items():
            content = text.encode()
            for at in range(0, len(content), 7):
                piece = PIECES[at // 7 % len(PIECES)]
                yield self.case(self.write(name, content[:at] + piece + content[at:]))
