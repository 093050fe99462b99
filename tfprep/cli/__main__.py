"""Runs the console script as `python -m tfprep.cli`."""

from tfprep.cli import main

main()
