"""Claims without an experiment: checked by tests, or not measured, with the reason."""

from __future__ import annotations

from experiments.statements import Statement
from experiments.verdicts import FAILS, HOLDS, IMPOSSIBLE, IN_PART, Verdict


def _fixed(word: str, where: str, says: str, ours: str) -> Statement:
    """A claim whose verdict needs no rows."""
    return Statement(where, says, lambda rows: Verdict(word, ours))


def _tested(where: str, says: str, *tests: str) -> Statement:
    """A claim on equations or arithmetic that tests check; each test is FILE::NAME in tests/."""
    return _fixed(HOLDS, where, says, "; ".join(f"`tests/{test}`" for test in tests))


EQUATION = "contract/test_reference.py::test_the_reference_is_the_equation"
FORMS = "contract/test_forms.py::test_forms_are_the_loop_of_step"
CYCLES = "data/generators/test_nt.py::test_the_paper_s_cycles"
SHIFT = "ops/mechanisms/test_taylorshift.py"

CHECKED = (
    _tested(
        "Aaren, section 3.1, figures 1 and 2",
        "attention for one query is a recurrent network over (a, c, m)",
        "ops/mechanisms/test_aaren.py::test_the_recurrence_of_section_3_1",
    ),
    _tested(
        "Aaren, section 3.2 and appendix B",
        "the operator on (m, u, w) is associative, so that a prefix scan gives all outputs",
        "contract/test_merge.py::test_merge_is_a_monoid",
    ),
    _fixed(
        FAILS,
        "Aaren, algorithm 1",
        "algorithm 1 as printed computes all prefixes",
        "arithmetic: its strides 2^1, 2^2, ... never merge a token with the previous one; with "
        "2^0, 2^1, ... they do",
    ),
    _tested(
        "Aaren, section 3.3, figures 3 and 4",
        "a stack of Aaren layers updates token by token, with the outputs of the parallel form",
        FORMS,
        "contract/test_merge.py::test_states_of_layers",
    ),
    _fixed(
        IN_PART,
        "Aaren, section 5",
        "RWKV, RetNet and the Linear Transformer bias tokens by their time stamp; Aaren does not",
        "by their equations: `rwkv` and `retention` decay with the distance, `linear` does not",
    ),
    _tested(
        "Element-wise attention, equations 1 to 6, figures 1 and 2",
        "the series is the listing of figure 2, with t terms and exponents up to t - 1",
        "ops/mechanisms/test_elementwise.py::test_terms_reproduce_the_listing",
        EQUATION,
    ),
    _tested(
        "Element-wise attention, equations 7 to 16",
        "causal EA-series is a recurrent network with a state of constant size",
        FORMS,
    ),
    _tested(
        "Element-wise attention, section 3.2",
        "Taylor polynomials of even order are positive everywhere",
        "ops/mechanisms/test_elementwise.py::test_even_orders_are_positive_and_odd_ones_are_not",
    ),
    _tested(
        "TaylorShift, equations 1 to 4, algorithm 1, figure 1",
        "the direct and the efficient form compute the same function",
        f"{SHIFT}::test_direct_efficient_and_algorithm_1_agree",
    ),
    _tested(
        "TaylorShift, section 3.1",
        "Taylor softmax of even order gives a probability distribution",
        "ops/mechanisms/test_taylorshift_order.py::test_weights_are_positive",
    ),
    _tested("TaylorShift, table 2", "N0 and N1 for d = 8 to 128", f"{SHIFT}::test_table_2"),
    _tested(
        "TaylorShift, equations 5 to 9",
        "N0 and N1 are where the counts of operations and of entries cross",
        f"{SHIFT}::test_the_switching_points_are_where_the_costs_cross",
    ),
    _tested(
        "TaylorShift, equation 11",
        "the efficient form needs the least memory with heads of less than one channel",
        f"{SHIFT}::test_the_optimal_dimension_of_heads",
    ),
    _fixed(
        IN_PART,
        "TaylorShift, equation 10",
        "the efficient form takes the fewest operations with heads of 0.52 channels",
        "arithmetic: 8 d^3 + 10 d^2 = 4, instead of 9 d^3, gives 0.53; both mean as many heads as "
        "possible "
        f"(`tests/{SHIFT}::test_the_optimal_dimension_of_heads`)",
    ),
    _tested(
        "TaylorShift, appendix B.3",
        "a factor of d^(-1/2) makes no difference before normalization",
        f"{SHIFT}::test_the_scale_of_queries_and_keys_cancels",
    ),
    _tested(
        "Expressive attention, equations 1 and 2, figure 1",
        "expressive and dot-product attention compute equations 1 and 2",
        EQUATION,
    ),
    _tested(
        "Expressive attention, equations 3 to 9, figure 2",
        "NT, NT-S and NT-R have the printed numbers of cycles, with mean lengths of 47.6 and 23.8",
        CYCLES,
        "data/generators/test_nt.py::test_the_paper_s_mean_length_of_a_rare_event",
    ),
)
"""Claims on equations and arithmetic."""

FILES = "the files are not available here, and nothing is downloaded"
GPUS = "these depend on the authors' GPUs"

NOT_MEASURED = (
    _fixed(IMPOSSIBLE, "Aaren, table 1", "scores on the data sets of D4RL", FILES),
    _fixed(IMPOSSIBLE, "Aaren, table 2", "MIMIC-II and MOOC", FILES),
    _fixed(IMPOSSIBLE, "Aaren, tables 3 and 5", "Weather, Traffic and ETTm1", FILES),
    _fixed(
        IMPOSSIBLE,
        "Aaren, table 4",
        "EthanolConcentration, FaceDetection, Handwriting, Heartbeat, PEMS-SF, SelfRegulationSCP1 "
        "and SelfRegulationSCP2",
        FILES,
    ),
    Statement(
        "Aaren, abstract and section 4",
        "Aaren is comparable on 38 data sets",
        why="26 of the 38, or substitutes for them, were run; each table has its own line",
    ),
    _fixed(IMPOSSIBLE, "Aaren, appendix F", "hours of training", GPUS),
    _fixed(
        FAILS,
        "Element-wise attention, section 3.4",
        "the Taylor polynomial keeps the monotonicity of the exponential function",
        "arithmetic: a polynomial of even order that is positive everywhere falls before it rises, "
        "1 + x + x^2 / 2 below x = -1",
    ),
    Statement(
        "Element-wise attention, section 3.2",
        "the arguments of the exponential function stay near the origin",
        why="arguments in trained models were not recorded",
    ),
    Statement(
        "Element-wise attention, introduction and section 3.4",
        "recurrent networks compress the history into one vector, which gradually diminishes it",
        why="no experiment here distinguishes information that a state has lost from information "
        "that it was not trained to store; `recall` compares attention mechanisms only",
    ),
    Statement(
        "Element-wise attention, table 1",
        "memory in training grows as t L D, in t and D, too",
        why="memory was measured at several L only",
    ),
    Statement(
        "Element-wise attention, table 1",
        "AFT costs O(D) per cached token in inference",
        why="the operations of a step were not counted, because its position biases have as many "
        "rows as its cache; `cache` measures the time of steps at one D only",
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, section 3.4",
        "a feature map per channel allows more comprehensive interactions",
        "the paper does not say what would show it",
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, tables 2 and 3",
        "SelfRegulationSCP1 and SelfRegulationSCP2",
        FILES,
    ),
    _fixed(
        IMPOSSIBLE,
        "Element-wise attention, table 4",
        "Traffic",
        f"{FILES}; one sensor of another data set replaces it",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 3 and section 5.3",
        "on ImageNet TaylorShift gains 4.3 points from size Ti to S, the Transformer gains 3.5",
        "ImageNet at size S takes days on GPUs",
    ),
    Statement(
        "TaylorShift, table 3 (stars)",
        "Performer, Reformer and Nyströmformer (S) train in full precision only",
        why="our runs of table 3 are in float32; our half precision sums in float32, so it would "
        "not show what theirs does",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 7",
        "training hours and memory on CIFAR, IMDB and ImageNet",
        f"{GPUS}; one training step of the ListOps model has lines of its own",
    ),
    _fixed(
        IMPOSSIBLE,
        "TaylorShift, table 8",
        "convolutions lose 0.8 points on ImageNet (S)",
        "ImageNet at size S takes days on GPUs",
    ),
    Statement(
        "Expressive attention, figure 5",
        "with a larger context dot-product attention reaches 0.44 on N16T5",
        why="longer contexts than 128 take too long here",
    ),
    Statement(
        "Expressive attention, introduction",
        "changing a single line of code introduces expressive attention into production code",
        why="a remark on code; here it is one option, `expressive` instead of `softmax`",
    ),
    Statement(
        "Expressive attention, figure 3",
        "with ever smaller contexts both attentions become trapped",
        why="contexts below 24 were not run; with 24, expressive attention still reaches 100 %",
    ),
    Statement(
        "Expressive attention, figure 7",
        "training progress is slow, with non-monotonic events",
        why="the paper gives no number; the figure shows the curves of all runs",
    ),
    Statement(
        "Expressive attention, discussion",
        "expressive attention may raise performance in language and reasoning",
        why="beyond the scope of the paper, and of this project",
    ),
)
"""Claims without a measurement, and why."""
