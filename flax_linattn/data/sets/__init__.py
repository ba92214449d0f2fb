"""Public data sets: their catalog, their downloads, and those that come with the package."""
