"""Baselines: other ways to load the same images."""
