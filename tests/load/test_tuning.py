"""Settings of `tuning.json` are used below the options, overridden, switched off, or ignored; the batches stay the same."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import tfprep
import tfprep.load.pipeline as pipeline_module
from tfprep.errors import LoaderError
from tfprep.load import mix
from tfprep.load.options import LoaderOptions
from tfprep.load.reader.cache import EncodedCache
from tfprep.load.tuning import TUNING, Tuning, find_tuning, machine_key, write_tuning

FOUND = Tuning({"threads": 3, "prefetch": 5, "cache": "encoded"}, False, 1.3, 1.2)


@pytest.fixture
def data(make_dataset):
    return tfprep.open(make_dataset(samples={"train": 20, "val": 6}, fields=["image", "label"]).path)


@pytest.fixture
def allocator_calls(monkeypatch):
    """Records the calls, since the real thresholds would apply to all later tests."""
    calls = []
    monkeypatch.setattr(pipeline_module, "set_allocator", lambda: calls.append(1) or True)
    return calls


def tuned(data, tuning=FOUND):
    return write_tuning(data.path, data.manifest.fingerprint, tuning)


def opened(data, **options):
    """Returns (number of threads, prefetch, cache, text about the tuning) after the first batch."""
    loader = data.numpy_loader("train", 4, **options).repeat()
    batches = iter(loader)
    next(batches)
    (reader,) = loader.pipeline.readers
    report = loader.report()
    seen = len(reader.workers), report["memory"]["prefetch"], report["cache"]["kind"], report["tuning"]
    loader.close()
    return seen


def test_settings_are_used(data):
    tuned(data)
    threads, prefetch, cache, report = opened(data)
    assert (threads, prefetch, cache) == (3, 5, "encoded")
    assert report["use"] == "used"
    assert report["options"] == FOUND.options
    assert report["overridden"] == []
    assert report["gain"] == 1.2
    assert opened(data)[3] == report


def test_a_report_names_the_threads_at_work(data):
    tuned(data)
    assert data.numpy_loader("train", 4).report()["threads"] == 3
    assert data.numpy_loader("train", 4, threads=2).report()["threads"] == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"threads": 1}, (1, 5, "encoded")),
        ({"prefetch": 2}, (3, 2, "encoded")),
        ({"cache": "decoded"}, (3, 5, "decoded")),
        ({"cache": False}, (3, 5, "none")),
        ({"threads": 2, "prefetch": 3, "cache": False}, (2, 3, "none")),
    ],
)
def test_explicit_options_take_precedence(data, given, expected):
    tuned(data)
    *seen, report = opened(data, **given)
    assert tuple(seen) == expected
    assert report["use"] == "used"
    assert report["overridden"] == sorted(given)
    assert report["options"] == {name: value for name, value in FOUND.options.items() if name not in given}


def test_without_a_file(data):
    *_, report = opened(data)
    assert (report["use"], report["because"]) == ("none", "")


def test_switched_off(data, allocator_calls):
    defaults = opened(data)[:3]
    tuned(data, Tuning(FOUND.options, True))
    *seen, report = opened(data, tuning=False)
    assert tuple(seen) == defaults
    assert report == {"use": "off", "because": "tuning=False"}
    assert not allocator_calls
    with pytest.raises(LoaderError, match="tuning is True or False, not 'no'"):
        LoaderOptions(tuning="no")  # type: ignore[arg-type]


def changed(data, change):
    path = tuned(data)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_settings_of_another_machine_are_ignored(data):
    def moved(document):
        document["machines"] = {"128 cores, 512 GiB, nfs4": document["machines"].pop(machine_key(data.path))}

    defaults = opened(data)[:3]
    changed(data, moved)
    *seen, report = opened(data)
    assert tuple(seen) == defaults
    assert report["use"] == "passed over"
    assert "measured on 128 cores, 512 GiB, nfs4, this machine has " + machine_key(data.path) in report["because"]
    assert "tfprep bench --tune here" in report["because"]


def test_settings_of_another_build_are_ignored(data):
    write_tuning(data.path, "another", FOUND)
    *_, report = opened(data)
    assert report["use"] == "passed over"
    assert "another build of the dataset" in report["because"]


def entry(**values):
    def change(document):
        (found,) = document["machines"].values()
        found.update(values)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda document: document.update(format_version=9), "version 9"),
        (lambda document: document.pop("machines"), "damaged"),
        (lambda document: document.update(machines=3), "damaged"),
        (entry(options=[]), None),
        (entry(options=7), "damaged"),
        (entry(options={"threads": 0}), "threads is 0"),
        (entry(options={"threads": True}), "threads is True"),
        (entry(options={"threads": 10**9}), "threads is 1000000000"),
        (entry(options={"prefetch": "many"}), "prefetch is 'many'"),
        (entry(options={"cache": "disk"}), "cache is 'disk'"),
        (entry(options={"cache": 0}), "cache is 0"),
        (entry(allocator="yes"), "allocator is 'yes'"),
        (entry(gain=None), "damaged"),
    ],
)
def test_a_damaged_file_is_ignored(data, change, reason):
    changed(data, change)
    *_, report = opened(data)
    if reason is None:  # An empty list names no option, and neither does an empty object.
        assert report["use"] == "used"
        assert report["options"] == {}
    else:
        assert report["use"] == "passed over"
        assert reason in report["because"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"3"])
def test_a_file_of_another_format_is_ignored(data, content):
    (data.path / TUNING).write_bytes(content)
    *_, report = opened(data)
    assert report["use"] == "passed over"
    assert "damaged" in report["because"]
    assert "tfprep bench --tune again" in report["because"]


def test_a_folder_of_that_name_is_ignored(data):
    (data.path / TUNING).mkdir()
    assert find_tuning(data.path, data.manifest.fingerprint).use == "passed over"


def test_a_fifo_is_not_waited_for(data):
    os.mkfifo(data.path / TUNING)
    lookup = find_tuning(data.path, data.manifest.fingerprint)
    assert lookup.tuning is None
    assert "is no regular file" in lookup.because


def test_settings_never_change_the_batches(data):
    tuned(data, Tuning({**FOUND.options, "order": "block", "block": 2, "seed": 9, "batch_size": 2}))
    options = {"fields": ["key", "variant", "image"], "seed": 1}
    with_it, without = (iter(data.numpy_loader("train", 4, tuning=on, **options).repeat()) for on in (True, False))
    for _ in range(12):
        batch, expected = next(with_it), next(without)
        assert batch["key"].tolist() == expected["key"].tolist()
        assert np.array_equal(batch["image"], expected["image"])
    report = data.numpy_loader("train", 4).report()
    assert report["order"] == "global"
    assert report["tuning"]["options"] == FOUND.options


def test_the_allocator(data, allocator_calls):
    tuned(data)
    assert opened(data)[3]["allocator"] is False
    assert not allocator_calls
    tuned(data, Tuning({}, True))
    loader = data.numpy_loader("train", 4).repeat()
    assert loader.report()["tuning"]["allocator"] is True
    assert not allocator_calls  # TensorFlow sets its own threshold when it makes a dataset of the loader.
    for count in (1, 2):
        next(iter(loader))
        assert len(allocator_calls) == count


def test_prefetch_stays_within_the_budget(data):
    """The settings may have been measured with more memory or another batch size."""
    tuned(data, Tuning({"prefetch": 900}))
    loader = data.numpy_loader("train", 4, memory_budget="1MB").repeat()
    assert loader.report()["memory"]["batches_bytes"] <= 1 << 20


def test_a_cache_is_not_used_for_a_single_pass_or_images_of_different_sizes(make_dataset):
    sizes = {0: (20, 30), 1: (24, 18)}
    made = make_dataset(
        samples={"train": 6, "val": 6},
        fields=["image", "label"],
        make=lambda rng, number: {"image": np.full((*sizes[number % 2], 3), 9, np.uint8), "label": 0},
    )
    data = tfprep.open(made.path)
    tuned(data, Tuning({"cache": "decoded"}))
    assert data.numpy_loader("train", 2).pipeline.cache is None
    assert data.numpy_loader("val", 2, training=False, fields=["label"]).pipeline.cache is None
    tuned(data, Tuning({"cache": "encoded"}))
    assert isinstance(data.numpy_loader("train", 2).pipeline.cache, EncodedCache)


def test_a_mix_and_the_graph_path_use_no_settings(data):
    tuned(data)
    report = mix({data: 0.5, tfprep.open(data.path): 0.5}).numpy_loader("train", 4).report()["tuning"]
    assert (report["use"], report["because"]) == ("passed over", "a mix of datasets has no tuning of its own")
    report = data.numpy_loader("train", 4, path="graph").report()["tuning"]
    assert report["use"] == "passed over"
    assert "path='graph'" in report["because"]
