"""Decisions: the Aaren paper's table 1, ways to act, what is asked for, speed."""
