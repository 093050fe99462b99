"""The memory of a training: GPUs, sessions, a report, the largest batch that fits."""
