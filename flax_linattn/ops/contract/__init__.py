"""What every attention mechanism keeps: its interface, checks, masks and numerics."""
