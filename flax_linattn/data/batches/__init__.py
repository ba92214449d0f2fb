"""Batches as a pure function of the step: of arrays, generators and users' own data sets."""
