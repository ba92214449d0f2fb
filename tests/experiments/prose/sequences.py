"""Numbers in docs/sequences.md."""

from tests.experiments.prose import Allowed, Sentence

SENTENCES: tuple[Sentence, ...] = ()
ALLOWED = (
    Allowed("Table 3: accuracy by mechanism on four data sets", "the paper's number of the table"),
    Allowed("Table 4 and figure 4: effect of normalization", "the paper's number of the table"),
    Allowed("Figure 4: evaluation without", "the paper's number of the figure"),
    Allowed("Table 5: accuracy by number of heads", "the paper's number of the table"),
    Allowed("Figure 7: distribution of query-key products", "the paper's number of the figure"),
    Allowed("centered near 0, as in the paper", "a point, not a result"),
    Allowed("Table 8: convolutional vs. linear embedding", "the paper's number of the table"),
    Allowed("Figure 8: accuracy beyond the training lengths", "the paper's number of the figure"),
    Allowed("Longest sequence that trains in 4 GB", "what is asked"),
)
