"""Time series and labelled collections of them: their types, file formats and transforms."""
