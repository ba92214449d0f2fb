"""A trained classifier on a long stream: time and memory per observation (Aaren, figure 5)."""
