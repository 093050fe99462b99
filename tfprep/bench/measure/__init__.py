"""Rates, and what they are made of."""
