"""Tables of trained runs: what all experiments on accuracy and error share.

A table has a row for each data set, a column a mechanism, and a run for each cell and seed.
Runs resume where they stopped; results are stored with the commit that made them.
"""

from experiments.tables.cells import Cell, Metric, Published
from experiments.tables.claims import Claim, Says
from experiments.tables.table import QUICK, Table

__all__ = ["QUICK", "Cell", "Claim", "Metric", "Published", "Says", "Table"]
