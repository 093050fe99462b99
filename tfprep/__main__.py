"""`python -m tfprep`: the same as the console script."""

from tfprep.cli import run

run()
