"""Speed and memory of the mechanisms as ratios to named peers, measured in one process.

``run_bench`` measures a suite, like the command ``flax-linattn bench``. The other functions measure
any programs in the same way: compiled, in turns, with medians, spread, memory and compile time.
"""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
