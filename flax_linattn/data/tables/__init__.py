"""Tables as data frames: text formats, cells, and indices of times."""
