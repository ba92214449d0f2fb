"""The models, end to end."""
