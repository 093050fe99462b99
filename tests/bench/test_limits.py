"""What limits a loader is named. Each stage is slowed down in turn by a sleep that is far longer than all others."""

import time
from dataclasses import replace

import pytest

from tfprep import limits
from tfprep.bench.run import BenchOptions, bench, lines
from tfprep.codecs import Png

SHORT = BenchOptions(batch_size=4, rounds=1, seconds=0.3, loader={"threads": 2, "cache": False})


@pytest.fixture
def slow_decoder(monkeypatch):
    decode = Png.decode_into

    def slow(*arguments):
        time.sleep(0.05)
        decode(*arguments)

    monkeypatch.setattr(Png, "decode_into", slow)


def test_a_full_cache_and_the_first_epoch_have_limits_of_their_own(png_data, slow_decoder):
    result = bench(png_data, replace(SHORT, loader={"threads": 2}))
    assert result.limit.cause in ("copy", "hand-over")  # which of the two takes longer is the machine's
    assert result.first_epoch.cause == "decode"
    assert result.rounds.images_per_s("loader").median > result.rounds.images_per_s("first epoch").median
    printed = "\n".join(lines(result))
    assert "limit of the first epoch: decoding limits" in printed


def test_other_programs_are_named_with_what_they_leave(png_data, monkeypatch):
    """The machine seems to have two programs for each processor, which take what this one asks for."""
    started = time.perf_counter()

    def busy():
        seconds = time.perf_counter() - started
        return limits.CpuTimes(0.1 * seconds, 4 * seconds, 1.9 * seconds)

    monkeypatch.setattr(limits.CpuTimes, "now", busy)
    monkeypatch.setattr("tfprep.train.monitor.input_monitor.usable_cpus", lambda: 2)
    result = bench(png_data, replace(SHORT, seconds=0.6))  # shorter ones do not tell the share of other programs
    assert "processors" in {cause.kind for cause in result.limit.causes}
    assert "other programs limit: they take 1.9 of 2 processors" in result.limit.limit
    assert "note: other programs used " in "\n".join(lines(result))
