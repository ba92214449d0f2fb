"""Next-symbol prediction: the evaluation of the expressive-attention paper, and additions to it."""
