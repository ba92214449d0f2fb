"""What the suite may cost."""

from collections import Counter

import pytest

from tests import times


def test_a_folder_has_its_share():
    """Whatever the whole takes; unless programs of an earlier run were found."""
    share = times.SHARES["ops"]
    seconds = Counter({folder: float(limit) for folder, limit in times.SHARES.items()})
    assert times.faults(seconds) == []
    seconds["ops"] += 2 * share + 20
    (fault,) = times.faults(seconds)
    assert fault.startswith("ops: ") and f"at most {share}" in fault
    assert times.faults(seconds, warm=True) == []


def test_a_folder_without_a_share_has_the_default():
    (fault,) = times.faults(
        Counter({"models": 10.0, "tasks": 10.0, "training": 2.0, "another": 20.0, "data": 0.8})
    )
    assert fault.startswith("another: ") and f"at most {times.DEFAULT_SHARE}" in fault


@pytest.mark.parametrize(("factor", "count"), [(1.0, 1), (2.0, 0)])
def test_the_whole_has_its_minutes_on_a_slow_machine_more(factor, count):
    seconds = 1.5 * 60 * times.MINUTES * times.CORES
    whole = Counter({folder: seconds / 100 * share for folder, share in times.SHARES.items()})
    whole = Counter({name: each * seconds / whole.total() for name, each in whole.items()})
    assert len(times.faults(whole, factor, warm=True)) == count


def test_the_report_has_seconds_by_folder_and_function(tmp_path):
    report = tmp_path / "times.xml"
    case = '<testcase classname="{}" name="{}"><properties>{}</properties></testcase>'
    spent = '<property name="processor_seconds" value="{}"/>'
    work = '<property name="work_seconds" value="{}"/>'
    cases = [
        case.format("tests.ops.engine.test_prefix", "test_a[x]", spent.format(1.5)),
        case.format("tests.ops.engine.test_prefix", "test_a[y]", spent.format(0.5)),
        case.format("tests.test_cli", "test_b", spent.format(1) + work.format(0.2)),
        case.format("tests.nn.test_block", "test_c", ""),
    ]
    report.write_text(f'<testsuites><testsuite time="9">{"".join(cases)}</testsuite></testsuites>')
    folders, functions, whole, seconds_of_work = times.read(str(report))
    assert folders == {"ops": 2, "cli": 1, "nn": 0} and whole == 9
    assert functions["ops/engine/test_prefix::test_a"] == 2
    assert seconds_of_work == [0.2]


def test_the_machine_is_as_slow_as_in_the_median_while_tests_ran():
    reference = times.REFERENCE_SECONDS
    assert times.slowness([reference, 3 * reference, 2 * reference]) == pytest.approx(2)
    assert times.slowness([reference / 2]) == 1 <= times.slowness([])
