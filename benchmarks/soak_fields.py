"""Kill `tfprep fields add` into an object store at random moments: the continued run gives the bytes of an undisturbed one.

    python benchmarks/soak_fields.py [--kills 20] [--seed 0] [--json FILE]

The store is moto's S3 server behind a proxy that counts requests (that of the tests). Each run is killed with SIGKILL after a
random number of its requests, and the next one continues. After as many kills as `--kills` says, the last run ends undisturbed,
and what it published is compared with what a run without kills published elsewhere: every object of the fields, and
`tfprep.json`. Where a run ends before its kill, its fields are removed with all that they left, and the next one begins anew.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import harness

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.model_fields.conftest import Site, killed_at_store, objects_of_fields
from tests.storage.server import s3_server
from tfprep.dataset.clean import clean
from tfprep.model_fields import add_fields, remove_fields


def main() -> None:
    options = harness.arguments(__doc__ or "", kills=(20, "Kills"), seed=(0, "Seed"))
    draws, results = random.Random(options.seed), {"kills": 0, "runs_that_ended": 0}
    with tempfile.TemporaryDirectory() as folder, s3_server() as s3:
        os.environ |= s3.environment
        site = Site(Path(folder))
        for number in range(32):
            site.photo(f"{'train' if number < 24 else 'val'}/{'cat' if number % 2 else 'dog'}/{number:02d}.png", number)
        site.build()
        site.define("time.sleep(0.05)")
        undisturbed, url = s3.copy(site.out), s3.copy(site.out)
        add_fields(undisturbed, site.fields)
        expected = objects_of_fields(undisturbed)
        while results["kills"] < options.kills:
            if killed_at_store(s3, site, url, draws.randrange(1, 120)):
                results["kills"] += 1
                continue
            assert objects_of_fields(url) == expected, "a continued run gave other bytes"
            results["runs_that_ended"] += 1
            remove_fields(url, "score")
            clean(url, remove=True)
        add_fields(url, site.fields)
        assert objects_of_fields(url) == expected, "the last run gave other bytes"
    print(
        f"{results['kills']} kills; {results['runs_that_ended'] + 1} runs ended, with the bytes of an undisturbed one"
    )
    harness.finish(options, results)


if __name__ == "__main__":
    main()
