"""ListOps: values against NumPy, the rules of both generators, files."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flax_linattn.data.generators.listops import (
    LISTOPS_TOKENS,
    GrownListOps,
    SampledListOps,
    evaluate_listops,
    parse_listops,
    read_listops,
)

OPERATIONS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(np.median(values)),
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
    "[SM": lambda values: int(np.sum(values)) % 10,
}
UPPER = OPERATIONS | {"[MED": lambda values: int(np.sort(values)[len(values) // 2])}


def as_tree(tokens):
    """Nested lists of names and digits."""
    stack = [[]]
    for token in tokens:
        name = LISTOPS_TOKENS[token]
        if name == "]":
            done = stack.pop()
            stack[-1].append(done)
        elif name.startswith("["):
            stack.append([name])
        else:
            stack[-1].append(int(name))
    ((tree,),) = stack
    return tree


def value_of(tree, operations=OPERATIONS):
    if isinstance(tree, int):
        return tree
    name, *values = tree
    return operations[name]([value_of(value, operations) for value in values])


def lists_of(tree, depth=1):
    """Depth and number of values of each list."""
    if isinstance(tree, list):
        yield depth, len(tree) - 1
        for value in tree[1:]:
            yield from lists_of(value, depth + 1)


trees = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(
        st.sampled_from(sorted(OPERATIONS)), st.lists(inner, min_size=1, max_size=5)
    ).map(lambda pair: [pair[0], *pair[1]]),
    max_leaves=20,
)


def text_of(tree):
    return str(tree) if isinstance(tree, int) else " ".join([tree[0], *map(text_of, tree[1:]), "]"])


@settings(max_examples=50, deadline=None)
@given(trees)
def test_values_are_those_of_nested_lists(tree):
    tokens = parse_listops(text_of(tree))
    assert as_tree(tokens) == tree
    assert evaluate_listops(tokens) == value_of(tree)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the end of the expression, got no more"),
        ("[MAX 1", "got no more tokens"),
        ("[MAX ]", "a value before the end of a list, at token 1"),
        ("1 2", "the end of the expression at token 1"),
        ("]", "a value before the end"),
        ("[MAX 1 ] ]", "at token 3"),
        ("[SUM 1 ]", r"expected digits, .* got '\[SUM'"),
        ("10", "got '10'"),
    ],
)
def test_what_is_no_expression_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        evaluate_listops(parse_listops(text))
    with pytest.raises(ValueError, match="a token from 0 to 16, got 17 at token 0"):
        evaluate_listops([17])


@pytest.mark.parametrize("length", [4, 5, 6, 7, 9, 10, 11, 50, 300])
def test_grown_expressions_have_their_length_and_rules(length):
    task = GrownListOps(length, length, max_depth=4, max_arguments=5)
    batch = task.sample(np.random.default_rng(length), 8)
    assert batch["tokens"].shape == (8, length) and batch["mask"].all()
    for tokens, label in zip(batch["tokens"], batch["labels"], strict=True):
        tree = as_tree(tokens)
        assert value_of(tree, UPPER) == label
        depths, sizes = zip(*lists_of(tree), strict=True)
        assert max(depths) <= 4 and set(sizes) <= set(range(2, 6))


def test_a_batch_has_one_length_and_lengths_are_uniform():
    task = GrownListOps(10, 19, multiple_of=8)
    batches = [task.sample(np.random.default_rng(seed), 2) for seed in range(400)]
    lengths = [batch["mask"].sum(axis=1) for batch in batches]
    assert all(len(set(own.tolist())) == 1 for own in lengths)
    counts = np.bincount([own[0] for own in lengths], minlength=20)[10:]
    assert len(counts) == 10 and stats.chisquare(counts).pvalue > 0.001
    for batch, own in zip(batches, lengths, strict=True):
        assert batch["tokens"].shape[1] == -(-own[0] // 8) * 8
        assert not batch["tokens"][:, own[0] :].any() and not batch["mask"][:, own[0] :].any()
    again = task.sample(np.random.default_rng(0), 2)
    assert all(np.array_equal(again[name], batches[0][name]) for name in again)


def test_grown_trees_turn_each_digit_as_often():
    """Of a list of two digits one turns into a list of two, the first as often as the second."""
    task = GrownListOps(9, 9, max_arguments=2)  # of 4 tokens, then 7, of which none has room
    with pytest.raises(ValueError, match="none of 1,000 expressions grew to 9"):
        task.sample(np.random.default_rng(0), 1)
    task = GrownListOps(9, 11, max_arguments=4)
    trees = [
        as_tree(tokens)
        for seed in range(300)
        for tokens in task.sample(np.random.default_rng(seed), 2)["tokens"]
    ]
    places = [place for tree in trees for place in (1, 2) if isinstance(tree[place], list)]
    assert stats.binomtest(places.count(1), len(places)).pvalue > 0.001


def naive(rng, depth, share, max_depth, max_arguments):
    """Long Range Arena's rule, as it is told: a value, or a list of values."""
    if depth > max_depth or rng.random() >= share:
        return int(rng.integers(10))
    size = int(rng.integers(2, max_arguments + 1))
    name = ("[MIN", "[MAX", "[MED", "[SM")[rng.integers(4)]
    return [name, *(naive(rng, depth + 1, share, max_depth, max_arguments) for _ in range(size))]


def test_sampled_expressions_are_those_of_the_rule_that_have_the_length():
    options = {"max_depth": 3, "max_arguments": 4}
    task = SampledListOps(4, 14, list_probability=0.4, **options)
    batch = task.sample(np.random.default_rng(0), 1500)
    drawn = []
    for tokens, mask, label in zip(*(batch[n] for n in ("tokens", "mask", "labels")), strict=True):
        tree = as_tree(tokens[mask])
        assert value_of(tree) == label and mask[: mask.sum()].all()
        assert max(depth for depth, _ in lists_of(tree)) <= 3
        drawn.append(int(mask.sum()))
    rng = np.random.default_rng(1)
    expected = collections.Counter()
    for _ in range(12_000):
        length = len(text_of(naive(rng, 1, 0.4, **options)).split())
        expected[length] += 4 <= length <= 14
    lengths = [length for length, count in expected.items() if count >= 60]
    counts = [[drawn.count(length) for length in lengths], [expected[n] for n in lengths]]
    assert stats.chi2_contingency(counts).pvalue > 0.001


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GrownListOps(3, 9), "min_length must be at least 4"),
        (lambda: GrownListOps(9, 8), "max_length must be at least 9"),
        (lambda: GrownListOps(9, 99, max_depth=2, max_arguments=3), "half can be asked for"),
        (
            lambda: SampledListOps(list_probability=1.0),
            "must be above 0 and below 1",
        ),
        (lambda: SampledListOps(max_arguments=3), "raise list_probability"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_files_of_both_kinds_are_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("9\t( ( [MAX 9 ) 2 ) ]\n1\t[SM 5 6 ]\n")
    found = read_listops(path)
    assert found.labels.tolist() == [9, 1] and found.tokens[1].tolist() == [15, 5, 6, 16]
    path.write_text("Source\tTarget\n( [MAX 9 2 X )\t9\n")
    assert read_listops(path).labels.tolist() == [9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.tsv.*expected expressions, got none"),
        ("9\t[MAX 9 ]\n8\t[MAX 9 ]\n", r"a\.tsv:2: expected the value 9, got '8'"),
        ("9 [MAX 9 ]\n", r"a\.tsv:1: expected a label, a tab and an expression"),
        ("9\t[MAX 9\n", r"a\.tsv:1: expected an expression"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, message):
    path = tmp_path / "a.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_listops(path)


def test_the_official_labels_are_the_values(data_dir):
    """All 10,000 of them: reading compares each."""
    found = read_listops(data_dir / "listops" / "nyu_test_d20s.tsv.gz")
    assert len(found.tokens) == 10_000 and np.bincount(found.labels).min() > 500
