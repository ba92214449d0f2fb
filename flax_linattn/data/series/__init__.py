"""Time series and labeled collections of them: their types, file formats and transforms."""
