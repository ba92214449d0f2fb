"""A trained classifier over a long stream: time and memory an observation (Aaren, figure 5)."""
