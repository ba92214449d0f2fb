"""Speed and memory: the papers' figures and tables, each by one command.

What is compared with plainly written peers is ``flax-linattn bench`` (``flax_linattn.bench``),
whose stored results lie here too.
"""
