"""A newcomer tunes the loader with the command that docs/bench.md shows, for a short time."""

from __future__ import annotations

import shutil

import pytest

import tfprep
from tfprep.cli import main


def test_the_search_ends_in_time_and_loaders_use_what_it_found(photos, tmp_path, capfd):
    folder = str(shutil.copytree(photos.path, tmp_path / "photos"))
    quick = ["--minutes", "0.001", "--rounds", "1", "--seconds", "0.05", "--batch-size", "8"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", folder, "--tune", *quick])
    assert not ended.value.code
    lines = capfd.readouterr().out.splitlines()
    tried = [line.split(":")[0].split()[-1] for line in lines if line.startswith(("  tried", "  kept"))]
    assert sorted(tried) == ["cache='decoded'", "cache='encoded'", "cache=False"]
    assert "  not tried for lack of time: threads, prefetch, order, allocator" in lines
    assert lines[-1] == f"  written to {folder}/tuning.json"
    assert tfprep.open(folder).numpy_loader("train", batch_size=8).report()["tuning"]["use"] == "used"
