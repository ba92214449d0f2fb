"""Contract of all attention mechanisms: interface, checks, masks and numerics."""
