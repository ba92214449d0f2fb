"""TaylorShift, from section 5.3 on: accuracy of encoders on long sequences and images."""
