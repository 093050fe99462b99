"""How fast a dataset loads, what limits it, and what to change. Importing this imports no TensorFlow."""

from tfprep.bench.run import Bench, BenchOptions, bench

__all__ = ["Bench", "BenchOptions", "bench"]
