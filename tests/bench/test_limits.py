"""What limits a loader is named. Each stage is slowed down in turn by a sleep that is far longer than all others."""

import math
import time
from dataclasses import replace

import pytest

from tfprep import limits
from tfprep.bench.changes import Change, Cost, Rates, changes_of, cost, gain, side_by_side
from tfprep.bench.run import BenchOptions, bench, lines
from tfprep.codecs import Png

SHORT = BenchOptions(batch_size=4, rounds=1, seconds=0.3, changes=False, loader={"threads": 2, "cache": False})


def test_a_slow_disk_is_named(raw_data, slow_reads):
    slow_reads(0.05)  # a batch takes longer than a busy machine to hand it over
    result = bench(raw_data, SHORT)
    assert result.limit.causes[0] == "read"
    assert f"limit: {result.limit.limit}" in "\n".join(lines(result))


@pytest.fixture
def slow_decoder(monkeypatch):
    decode = Png.decode_into

    def slow(*arguments):
        time.sleep(0.05)
        decode(*arguments)

    monkeypatch.setattr(Png, "decode_into", slow)


def test_a_slow_decoder_is_named(png_data, slow_decoder):
    assert bench(png_data, SHORT).limit.causes[0] == "decode"


def test_a_slow_map_is_named(raw_data):
    import tensorflow as tf

    def slow(batch):
        label = tf.py_function(lambda label: time.sleep(0.04) or label, [batch["label"]], tf.int64)
        return {**batch, "label": label}

    result = bench(raw_data, replace(SHORT, map_function=slow))
    assert result.limit.causes[0] == "python map"


def test_a_full_cache_and_the_first_epoch_have_limits_of_their_own(png_data, slow_decoder):
    """With changes that help the first epoch only."""
    result = bench(png_data, replace(SHORT, changes=True, loader={"threads": 2}))
    assert result.limit.causes[0] in ("copy", "hand-over")  # which of the two takes longer is the machine's
    assert result.first_epoch.causes[0] == "decode"
    assert result.rounds.images_per_s("loader").median > result.rounds.images_per_s("first epoch").median
    printed = "\n".join(lines(result))
    assert "limit of the first epoch: decoding limits" in printed
    assert "store 'image' as " in printed


def test_other_programs_are_named_with_what_they_leave(png_data, monkeypatch):
    """The machine seems to have twice as many programs as processors, which take what this one asks for."""
    started = time.perf_counter()
    now = limits.CpuTimes.now

    def busy():
        seconds, own = time.perf_counter() - started, now()
        return limits.CpuTimes(own.own, own.lacking + 4 * seconds, 1.9 * seconds)

    monkeypatch.setattr(limits.CpuTimes, "now", busy)
    monkeypatch.setattr("tfprep.train.monitor.samples.usable_cpus", lambda: 2)
    result = bench(png_data, replace(SHORT, seconds=0.6))  # shorter ones do not tell the share of other programs
    assert "processors" in result.limit.causes
    assert "other programs limit: they take 1.9 of 2 processors" in result.limit.limit
    assert "note: other programs used " in "\n".join(lines(result))


def test_other_forms_are_recommended_for_a_large_png(png_data):
    """All CPU time is spent on decoding: raw storage is many times as fast, and takes the bytes of the pixels."""
    image = next(png_data.samples("train"))["image"]
    codec = png_data.codecs["image"]
    decode_ms = cost(codec, "image", [image]).decode_ms
    size = sum(file.bytes for files in png_data.split("train").files for file in files)
    record = size / png_data.split("train").samples
    changes = {one.then: one for one in changes_of(png_data, "train", Rates(decode_ms, decode_ms, record, math.inf, 2))}
    assert changes["raw"].speed > 3
    assert changes["raw"].disk == pytest.approx(384 * 384 * 3 / record, rel=0.01)
    assert changes["Zstd"].speed > 3
    assert len(changes) == 3
    speeds = [change.speed for change in changes.values()]
    assert speeds == sorted(speeds, reverse=True)
    assert "PNG" not in changes


@pytest.mark.parametrize(
    ("decode_ms", "side", "speed"),
    [
        (1.0, 1.0, 1.2 / 0.3),  # Decoding costs as much as measured alone.
        (
            2.0,
            2.0,
            5.0,
        ),  # It costs twice as much side by side, and so does the saving: 2.2 / 0.4 is more than is predicted.
        (0.4, 1.0, 1.2 / 0.3),  # It never counts as cheaper than alone,
        (9.0, 3.0, 5.0),  # nor as more than three times as expensive.
    ],
)
def test_the_saving_of_another_form(decode_ms, side, speed):
    """1 ms of decoding on one core becomes 0.1 ms; the rest takes 0.2 ms."""
    rates = Rates(side + 0.2, decode_ms, 1000, math.inf, 2)
    assert side_by_side(rates, 1.0) == pytest.approx(side)
    found, disk = gain(rates, Cost(500, 1.0), Cost(1500, 0.1), side)
    assert found == pytest.approx(speed)
    assert disk == pytest.approx(2.0)


def test_a_disk_that_limits_wants_smaller_records():
    """1,000 bytes at 10 kB/s: half the bytes are twice as fast, although they take 1 ms to decode."""
    found, disk = gain(Rates(0.1, 0.1, 1000, 10_000, 2), Cost(1000, 0.0), Cost(500, 1.0), 1.0)
    assert (found, disk) == (pytest.approx(2.0), pytest.approx(0.5))


def test_a_change_in_words():
    change = Change("image", "PNG", "raw", 5.0, 1.0)
    assert change.words == "store 'image' as raw instead of PNG: 5.0 times the speed or more, 1.0 times the disk"
    assert "2.0 times the speed, " in replace(change, speed=2.0).words
