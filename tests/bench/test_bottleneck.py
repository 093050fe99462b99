"""The stage with the bottleneck is named. Each stage is slowed down in turn by a sleep that is far longer than all other
stages.
"""

import time
from dataclasses import replace

import pytest

from tfprep.bench.bottleneck import Change, Cost, LoaderFacts, _gain, _side_by_side, changes_of, cost, explain
from tfprep.bench.rounds import Budget, Measurement, Rounds, Spread, Used, compare
from tfprep.bench.run import BenchOptions, bench
from tfprep.bench.stages import StageCost, StageCosts, stage_candidates, stage_costs
from tfprep.codecs import Png

SHORT = BenchOptions(batch_size=4, rounds=1, seconds=0.2, changes=False, loader={"threads": 2, "cache": False})


def test_a_slow_disk_is_named(raw_data, slow_reads):
    slow_reads(0.01)
    result = bench(raw_data, SHORT)
    assert result.limit.stage == "reading"
    assert "the disk limits" in result.limit.words
    assert result.stages.stage("reading").share > 0.5


def test_a_slow_decoder_is_named(png_data, monkeypatch):
    decode = Png.decode_into

    def slow(*arguments):
        time.sleep(0.02)
        decode(*arguments)

    monkeypatch.setattr(Png, "decode_into", slow)
    result = bench(png_data, SHORT)
    assert result.limit.stage == "decoding"
    assert "cores busy" in result.limit.words


def test_other_forms_are_recommended_for_a_large_png(png_data):
    """All CPU time is spent on decoding: raw storage is many times as fast, and takes the bytes of the pixels."""
    image = next(png_data.samples("train"))["image"]
    codec = png_data.codecs["image"]
    decode_ms = cost(codec, "image", [image]).decode_ms
    size = sum(file.bytes for files in png_data.split("train").files for file in files)
    record = size / png_data.split("train").samples
    reading = StageCost(
        "reading", Spread.of([1e5]), Spread.of([1e5 * record]), Spread.of([0.01]), Spread.of([2.0]), 0.1
    )
    top = StageCost("decoding", Spread.of([100.0]), Spread.of([100.0]), Spread.of([decode_ms]), Spread.of([2.0]), 0.9)
    changes = {change.then: change for change in changes_of(png_data, "train", StageCosts((reading, top)), 2)}
    assert changes["raw"].speed > 3
    assert changes["raw"].disk == pytest.approx(384 * 384 * 3 / record, rel=0.01)
    assert changes["JPEG 95 at 192 x 192"].disk < changes["JPEG 95"].disk < 1
    assert changes["Zstd"].speed > 3
    assert "PNG" not in changes


@pytest.mark.parametrize(
    ("decoding_ms", "side", "speed"),
    [
        (1.1, 1.0, 1.2 / 0.3),  # Decoding costs as much as measured alone.
        (
            2.1,
            2.0,
            5.0,
        ),  # It costs twice as much side by side, and so does the saving: 2.2 / 0.4 is more than is predicted.
        (0.5, 1.0, 1.2 / 0.3),  # It never counts as cheaper than alone,
        (9.1, 3.0, 5.0),  # nor as more than three times as expensive.
    ],
)
def test_the_saving_of_another_form(decoding_ms, side, speed):
    """1 ms of decoding on one core becomes 0.1 ms; reading takes 0.1 ms and the rest another 0.1 ms."""
    reading = replace(stage("reading", 1000), cpu_ms=Spread.of([0.1]), cores=Spread.of([2.0]))
    decoding = replace(stage("decoding", 500), cpu_ms=Spread.of([decoding_ms]))
    top = replace(stage("tensorflow", 400), cpu_ms=Spread.of([side + 0.2]))
    stages = StageCosts((reading, decoding, top))
    assert _side_by_side(stages, 1.0) == pytest.approx(side)
    found, disk = _gain(stages, Cost(500, 1.0), Cost(1500, 0.1), side, 2)
    assert found == pytest.approx(speed)
    assert disk == pytest.approx(2.0)


def test_a_slow_map_is_named(raw_data):
    import tensorflow as tf

    def slow(batch):
        label = tf.py_function(lambda label: time.sleep(0.04) or label, [batch["label"]], tf.int64)
        return {**batch, "label": label}

    result = bench(
        raw_data,
        BenchOptions(batch_size=4, rounds=1, seconds=0.2, changes=False, map_function=slow, loader={"threads": 2}),
    )
    assert result.limit.stage == "map"
    assert "your .map" in result.limit.words
    assert result.rounds.images_per_s("loader").median < 0.5 * result.rounds.images_per_s("tensorflow").median


# --- what is made of figures ----------------------------------------------------------------------------------------


def stage(name, rate, cores=1.0, share=0.0):
    return StageCost(name, Spread.of([rate]), Spread.of([1000 * rate]), Spread.of([1.0]), Spread.of([cores]), share)


def measurements(rate):
    return [Measurement(int(rate), 0, 1, 0.1, Used(1.0, 1.0, 0, None, ()))]


def test_a_stage_costs_its_additional_time():
    rounds = Rounds({"reading": measurements(1000), "decoding": measurements(250), "tensorflow": measurements(200)})
    shares = {stage.name: stage.share for stage in stage_costs(rounds).costs}
    assert shares == pytest.approx({"reading": 0.2, "decoding": 0.6, "tensorflow": 0.2})
    assert stage_costs(rounds).limit.name == "decoding"


def test_a_stage_that_is_faster_than_the_one_before_costs_nothing():
    rounds = Rounds({"reading": measurements(100), "decoding": measurements(110), "tensorflow": measurements(100)})
    assert [round(stage.share, 2) for stage in stage_costs(rounds).costs] == [0.92, 0.0, 0.08]


@pytest.mark.parametrize(
    ("name", "cores", "facts", "words", "followed"),
    [
        ("reading", 0.1, {}, "the disk limits", "copying"),
        ("reading", 1.9, {}, "copying the bytes into memory limits", "faster disk"),
        ("decoding", 1.9, {}, "decoding: 1.9 of 2 cores busy, 90% of the time per image", ";"),
        ("batching", 1.0, {}, "batching: 1.0 of 2 cores busy", "larger batches"),
        ("tensorflow", 1.0, {"batch_size": 4}, "larger batches need fewer hand-overs", "prefetch"),
        ("tensorflow", 1.0, {"batch_size": 64}, "handing batches to TensorFlow", "larger batches"),
        ("map", 1.0, {}, "your .map: 1.0 of 2 cores busy, 90% of the time per image; move its work", "TensorFlow ops"),
        ("map", 1.0, {"python": True}, "or write it with TensorFlow ops", "prefetch"),
    ],
)
def test_every_limit_has_its_evidence_and_no_advice_that_is_followed(name, cores, facts, words, followed):
    steps = StageCosts((stage("reading", 10, cores), stage(name, 5, cores, share=0.9)))
    found = explain(steps, 2, facts=LoaderFacts(**facts)).words
    assert words in found
    assert followed not in found


def test_a_busy_machine_is_not_called_a_slow_disk():
    """Half a core of work means a slow disk on two idle cores, but is all that is available if other programs use 70 % of
    them."""
    steps = StageCosts((stage("reading", 10, 0.5, share=1.0),))
    assert "the disk limits" in explain(steps, 2).words
    assert "other programs take 1.4 of 2 cores" in explain(steps, 2, others=0.7).words


def test_only_changes_that_help_are_listed_with_the_best_first():
    changes = [Change("image", "PNG", then, speed, 1.0) for then, speed in (("a", 1.05), ("b", 2.0), ("c", 5.0))]
    steps = StageCosts((stage("reading", 10), stage("decoding", 5, share=0.9)))
    advice = explain(steps, 2, changes).lines()[1:]
    assert [line.split(" as ")[1].split(" ")[0] for line in advice] == ["c", "b"]
    assert advice[0] == "store 'image' as c instead of PNG: 5.0 times the speed or more, 1.0 times the disk"
    assert "2.0 times the speed, " in advice[1]
    assert not explain(StageCosts((stage("tensorflow", 5, share=1.0),)), 2, changes).changes


FULL = {"cache": "full", "images_per_s": 5000.0}
CAUSES = [
    # limit, other programs, facts, words, and advice that is already followed
    ("processors", 0.7, {}, "other programs take 1.4 of 2 cores (70%), and the loader gets 0.5", "larger batches"),
    ("processors", 0.84, FULL, "Of the loader itself, copying: ", "uint8"),
    ("processors", 0.7, {}, "Of the loader itself, decoding: ", "memory_budget"),
    ("processors", 0.7, {"starved": 1.5}, "other programs take 1.4 of 2 cores", "disk"),
    ("decoding", 0.7, {"starved": 0.1}, "decoding: 0.5 of 2 cores busy", "other programs"),
    # One thread beside two programs gets two thirds of a core: it would limit without them too.
    ("decoding", 0.67, {"cores": 0.67, "starved": 0.4}, ". As well, other programs take 1.3 of 2 cores", "end them"),
    ("memory", 0.0, {"prefetch": 1}, "the loader's memory_budget has room for 1 batch in advance, 0.5 of 2", "disk"),
    ("memory", 0.97, {"prefetch": 1, "starved": 0.1}, "room for 1 batch in advance", "other programs"),
    ("filling", 0.0, {"cache": "filling"}, "reaches 100 images/s; later epochs copy", "memory_budget"),
    ("copying", 0.0, {**FULL, "map_share": 0.1}, "from the loader's full cache at 5,000 images/s", "uint8"),
    ("copying", 0.0, {**FULL, "floats": 1}, "1 array delivered as floats: deliver uint8", "drop"),
    ("map", 0.0, {**FULL, "map_share": 0.9}, "the .map then adds 90% of the time per image", "TensorFlow ops"),
    ("decoding", 0.0, {"prefetch": 8}, "decoding: 0.5 of 2 cores busy", "memory_budget"),
]


@pytest.mark.parametrize("case", CAUSES, ids=lambda case: case[0])
def test_each_cause_is_named_with_advice_of_its_own(case):
    """Decoding takes most of the time, on half a core; only a loader that decodes is told to store another form."""
    name, others, facts, words, followed = case
    stages = StageCosts((replace(stage("decoding", 100), cores=Spread.of([0.5]), share=1.0),))
    limit = explain(stages, 2, [Change("image", "PNG", "raw", 4.0, 8.0)], others, LoaderFacts(**facts))
    assert limit.stage == name
    assert words in limit.words
    assert followed not in limit.words
    decodes = facts.get("cache") != "full" and name != "memory"
    assert bool(limit.changes) == decodes


def test_all_stages_count_the_same_records(raw_data):
    """Every stage delivers all samples of an epoch, so that none is faster because it does less."""
    candidates = stage_candidates(raw_data, "train", 4, None, threads=2)
    assert [candidate.name for candidate in candidates] == ["reading", "decoding", "batching", "tensorflow"]
    rounds = compare(candidates, Budget(1, 0.1, 0.0))
    record = rounds.of("reading", "bytes_per_s").median / rounds.images_per_s("reading").median
    files = [file for files in raw_data.split("train").files for file in files]
    assert record == pytest.approx(sum(file.bytes for file in files) / sum(file.records for file in files), rel=0.02)
    pixels = rounds.of("tensorflow", "bytes_per_s").median / rounds.images_per_s("tensorflow").median
    assert pixels == pytest.approx(16 * 16 * 3 + 8)
