"""Forecasting: the papers' tables."""
