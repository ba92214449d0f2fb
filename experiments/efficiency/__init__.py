"""Speed and memory: the figures and tables of the papers, each by one command.

``ratios`` compares this library with plain implementations of the papers' formulations. The
comparisons that need no such implementation are in ``flax-linattn bench`` (``flax_linattn.bench``).
"""
