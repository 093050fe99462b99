"""Benchmarks, and what tests take from them. A package by its own name: the wheel of Arrow 17 holds one that is called so too."""
