"""Tables as data frames: how a text table is written, its cells, and its index of times."""
