"""Numbers in docs/sequences.md."""

from tests.experiments.prose import Allowed, Sentence

SENTENCES: tuple[Sentence, ...] = ()
ALLOWED = (
    Allowed("Table 3: each mechanism on four data sets", "the paper's number of the table"),
    Allowed("Table 4 and figure 4: the normalisation", "the paper's number of the table"),
    Allowed("Table 5: more heads", "the paper's number of the table"),
    Allowed("Figure 7: the products of queries and keys", "the paper's number of the figure"),
    Allowed("around 0, as the paper finds", "a point, not a result"),
    Allowed("Table 8: convolutions before attention", "the paper's number of the table"),
    Allowed("Figure 8: beyond the lengths of training", "the paper's number of the figure"),
    Allowed("The longest sequence that trains in 4 GB", "what is asked"),
)
