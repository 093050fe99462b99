"""Advice from measurements: how to store a dataset, and the settings of its loader."""
