"""Public data sets: their catalog, their downloads, and the embedded data sets."""
