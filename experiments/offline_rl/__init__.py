"""Offline RL: the Aaren paper's table 1, inference modes, target returns and speed."""
