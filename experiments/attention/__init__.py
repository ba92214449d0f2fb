"""Attention weights of the mechanisms, and accuracy of their polynomial approximations."""
