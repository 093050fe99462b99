"""What is in a dataset: leaks between its splits, differences from another one, statistics and suspicious samples.

All of it reads the index first, and records only for what the index does not hold. Nothing is written into the dataset.
"""
