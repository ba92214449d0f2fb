"""Damaged files of every kind: each is refused with a message that names it, or is valid."""
