"""TaylorShift, from section 5.3 on: what encoders learn of long sequences and images."""
