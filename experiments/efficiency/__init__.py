"""Speed and memory: the papers' figures and tables, each by one command.

What is compared with the papers' formulations, written plainly, is ``ratios``; the rest of it is
``flax-linattn bench`` (``flax_linattn.bench``).
"""
