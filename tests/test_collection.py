"""A plain `pytest` collects every test file of the tree; it would not report a folder that it skips."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_file_is_collected():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    listing = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert listing.returncode == 0, listing.stdout[-2000:]
    collected = {line.partition("::")[0] for line in listing.stdout.splitlines() if "::" in line}
    # A file of tests for a package that is not installed is collected and skipped as a whole, with the reason.
    collected |= set(re.findall(r"^SKIPPED \[\d+\] (\S+\.py):\d+: could not import", listing.stdout, re.M))
    files = {str(path.relative_to(TESTS.parent)) for path in TESTS.rglob("test_*.py")}
    assert files - collected == set()
    assert len(files) > 80  # The search above finds the tests.
