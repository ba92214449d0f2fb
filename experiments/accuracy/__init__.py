"""Errors of every mechanism against its float64 reference."""
