"""Next symbols: the expressive-attention paper's evaluation, and what it leaves out."""
