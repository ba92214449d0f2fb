"""Forecasting tables of the papers, and the default forecaster."""
