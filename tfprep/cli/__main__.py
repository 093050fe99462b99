"""`python -m tfprep.cli`: the same as the console script."""

from tfprep.cli import main

main()
