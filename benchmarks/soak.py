"""Kills and interrupts at random moments, again and again: every batch is right, and nothing is left.

    python benchmarks/soak.py nodes|resumes|store|workers [--count N] [--seed 0] [--json FILE]

The modules `soak_*.py` say what each of them does. `scripts/fuzz` runs all of them.
"""

from __future__ import annotations

import argparse
import importlib

import harness

COUNTS = {"nodes": 20, "resumes": 300, "store": 200, "workers": 50}
"""Kills or interruptions of each subcommand where `--count` is not given."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", list(COUNTS), count=(int, "Kills or interruptions"), seed=(0, "Seed of the moments"),
        kinds=([], "Kinds of loaders that resume, or commands at the store"), part=([], argparse.SUPPRESS),
    )  # fmt: skip
    options.count = COUNTS[options.command] if options.count is None else options.count
    importlib.import_module(f"soak_{options.command}").run(options)


if __name__ == "__main__":
    main()
