"""The papers' experiments: one folder a table or figure."""
