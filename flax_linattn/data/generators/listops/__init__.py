"""ListOps: generators and evaluation of nested lists of operations on digits.

Source: N. Nangia, S. R. Bowman, "ListOps: A diagnostic dataset for latent tree learning" (2018); Y.
Tay et al., "Long Range Arena" (2021); T. Nauen et al., "TaylorShift" (2024).
"""

from flax_linattn.data.generators.listops.expressions import (
    LISTOPS_TOKENS,
    evaluate_listops,
    parse_listops,
    read_listops,
)
from flax_linattn.data.generators.listops.generated import GrownListOps, SampledListOps

__all__ = [
    "LISTOPS_TOKENS",
    "GrownListOps",
    "SampledListOps",
    "evaluate_listops",
    "parse_listops",
    "read_listops",
]
