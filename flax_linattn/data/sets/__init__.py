"""Data sets that come with the package as files, and those that are drawn by a rule."""
