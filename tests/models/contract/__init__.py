"""What holds of every head, over one table of heads."""
