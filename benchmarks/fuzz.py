"""Damaged input: tfprep's own error or a right result, and no crash, hang or foreign traceback.

    python benchmarks/fuzz.py datasets|images|odd-files [--count N] [--seed 0] [--json FILE]

The modules `fuzz_*.py` say what each of them does. `scripts/fuzz` runs all of them.
"""

from __future__ import annotations

import importlib

import harness

COUNTS = {"datasets": 2000, "images": 10_000, "odd-files": 0}
"""Cases of each subcommand where `--count` is not given; odd files are all taken."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", list(COUNTS), count=(int, "Number of cases"), seed=(0, "Seed of all cases"),
        folders=([], "Folders of odd files; by default pydicom's test files"),
    )  # fmt: skip
    options.count = COUNTS[options.command] if options.count is None else options.count
    importlib.import_module(f"fuzz_{options.command.replace('-', '_')}").run(options)


if __name__ == "__main__":
    main()
