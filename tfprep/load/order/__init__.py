"""The order of an epoch: which samples each step reads, computed from the index. Imports no TensorFlow."""
