"""Events at irregular times: the Aaren paper's table 2, known processes, streams."""
