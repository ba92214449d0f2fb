"""Batches as a pure function of the step: from arrays, generators and your own data sets."""
