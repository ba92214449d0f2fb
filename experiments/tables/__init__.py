"""Tables of trained runs: the common part of all experiments on accuracy and error.

A table has a row for each data set, a column for each mechanism, and a run for each cell and seed.
Runs resume where they stopped. Results are stored with the commit that produced them.
"""

from experiments.tables.cells import Cell, Metric, Published
from experiments.tables.claims import Claim, Says
from experiments.tables.table import QUICK, Table

__all__ = ["QUICK", "Cell", "Claim", "Metric", "Published", "Says", "Table"]
