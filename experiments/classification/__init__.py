"""Time-series classification (Aaren paper, table 4)."""
