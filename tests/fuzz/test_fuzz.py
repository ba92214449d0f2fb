"""Damaged files of every kind: each is refused with a message that names it, or is valid.

``python -m tests.fuzz.test_fuzz series 10000 SEED`` counts what becomes of so many of a kind.
"""

import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.episodes import EpisodeFiles
from tests.fuzz.events import Events
from tests.fuzz.excel import ExcelFiles
from tests.fuzz.images import Images
from tests.fuzz.runs import StoredRuns, TrainedRuns
from tests.fuzz.series import Series
from tests.fuzz.states import States
from tests.fuzz.subject import Case, Subject, TextSubject

KINDS: dict[str, type[Subject]] = {
    "series": Series,
    "excel": ExcelFiles,
    "events": Events,
    "episodes": EpisodeFiles,
    "images": Images,
    "states": States,
    "stored-runs": StoredRuns,
    "runs": TrainedRuns,
}


def outcome(subject: Subject, case: Case) -> str:
    """What became of a file; anything but a valid one or an error that names it fails."""
    begin = time.process_time()
    try:
        case.read()
    except subject.errors as error:
        found = subject.refusal(error, case)
    else:
        found = "valid"
    assert time.process_time() - begin < subject.seconds
    return found


def fuzz(subject: Subject, count: int, seed: int) -> Counter[tuple[str, str]]:
    """What became of so many damaged files, by kind and outcome."""
    draw, counts = random.Random(seed), Counter[tuple[str, str]]()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(count):
        case = subject.damage(draw)
        try:
            counts[case.name, outcome(subject, case)] += 1
        except BaseException as error:
            error.add_note(f"file {index} of seed {seed}: {case.path}, {case.note}")
            raise
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 1024 * subject.megabytes
    return counts


@pytest.fixture
def subject(request, tmp_path):
    """A kind of file, by its name."""
    kind = KINDS[request.param]
    with kind.context():
        yield kind(tmp_path)


def of_kinds(condition):
    names = [name for name, kind in KINDS.items() if condition(kind)]
    return pytest.mark.parametrize("subject", names, indirect=True)


@of_kinds(lambda kind: kind.counts[0])
def test_whole_files_are_valid(subject):
    assert {outcome(subject, case) for case in subject.samples()} == {"valid"}


@of_kinds(lambda kind: kind.counts[0])
def test_damaged_files_are_refused_or_valid(subject):
    check_outcomes(subject, fuzz(subject, subject.counts[0], seed=0))


@pytest.mark.slow
@of_kinds(lambda kind: kind.counts[1])
def test_many_damaged_files_are_refused_or_valid(subject):
    check_outcomes(subject, fuzz(subject, subject.counts[1], seed=1))


def check_outcomes(subject: Subject, counts: Counter[tuple[str, str]]) -> None:
    """Damage does not go unseen, nor does it spoil everything."""
    assert subject.outcomes <= {*counts, *(found for _, found in counts)}
    valid = sum(number for (_, found), number in counts.items() if found == "valid")
    assert valid < subject.most_valid * counts.total()


@of_kinds(lambda kind: issubclass(kind, TextSubject))
def test_a_change_anywhere_is_refused_or_valid(subject):
    for case in subject.everywhere():
        outcome(subject, case)


@pytest.mark.slow
@of_kinds(lambda kind: kind is EpisodeFiles)
def test_every_byte_may_be_wrong(subject):
    for case in subject.everywhere():
        outcome(subject, case)


if __name__ == "__main__":
    name, count, seed = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, KINDS[name].context():
        found = fuzz(KINDS[name](Path(folder)), int(count), int(seed))
    for (sample, what), number in sorted(found.items()):
        print(f"{sample:<26}{what:<24}{number:>6}")
