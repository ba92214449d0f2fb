"""The papers' experiments: one folder a kind of figure or table.

A module with an ``EXPERIMENT`` is one of them: a ``measured.Measured``, whose rows are timed or
counted, or a ``tables.Table`` of trained runs. Its command, its page and ``report`` come with it.
"""
