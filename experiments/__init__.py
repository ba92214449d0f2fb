"""Experiments of the papers, one folder for each kind of figure or table.

A module with an ``EXPERIMENT`` is an experiment: a ``measured.Measured``, whose rows are timed or
counted, or a ``tables.Table`` of trained runs. The description provides its command and its page,
and includes it in ``experiments.report``.
"""
