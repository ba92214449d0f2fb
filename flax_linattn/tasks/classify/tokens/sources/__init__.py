"""Where sequences come from: drawn, bytes of texts, pixels of images."""

from flax_linattn.tasks.classify.tokens.sources.source import Source, open_source, read_test

__all__ = ["Source", "open_source", "read_test"]
