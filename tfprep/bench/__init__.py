"""Benchmarks of a dataset's loading: its rate, what limits it, and what would help. Importing this imports no TensorFlow."""

from tfprep.bench.run import Bench, BenchOptions, bench

__all__ = ["Bench", "BenchOptions", "bench"]
