"""The contract of mechanisms: what it refuses, masks, numerics, weights."""
