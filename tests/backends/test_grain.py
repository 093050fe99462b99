"""Grain reads records by number: the tutorial, its states, and both of its APIs with worker processes."""

import re
import subprocess
import sys

import numpy as np
import pytest

import tfprep
from tests.docs.test_tutorials import BLOCK, DOCS, demo, follow, session  # noqa: F401 # fixtures

grain = pytest.importorskip("grain")


@pytest.fixture(scope="module")
def samples(photos):
    return tfprep.open(photos.path).random_access("train", variant="all", fields=["key", "variant", "lossless"])


def test_the_tutorial(session, capsys):  # noqa: F811
    blocks = BLOCK.findall((DOCS / "tutorials" / "grain.md").read_text())
    follow(blocks, session)
    accuracy = re.findall(r" accuracy: (\S+)", capsys.readouterr().out)
    assert float(accuracy[-1]) > 0.5  # guessing gives 0.33


def test_every_sample_once_an_epoch(photos, samples):
    assert isinstance(samples, grain.sources.RandomAccessDataSource)
    dataset = grain.MapDataset.source(samples).shuffle(seed=3)
    seen = [(sample["key"], int(sample["variant"])) for sample in dataset]
    assert sorted(seen) == sorted((key, variant) for key in photos.keys["train"] for variant in range(3))
    assert seen != sorted(seen)
    for sample in [dataset[number] for number in (0, 77, 149)]:
        row = photos.keys["train"].index(sample["key"])
        assert np.array_equal(sample["lossless"], photos.values["train"][sample["variant"]][row]["lossless"])


@pytest.mark.parametrize("step", [0, 1, 17, 40])
def test_a_state_resumes_exactly(samples, step):
    dataset = grain.MapDataset.source(samples).shuffle(seed=3).repeat(3).batch(10).to_iter_dataset()
    iterator = iter(dataset)
    for _ in range(step):
        next(iterator)
    state = iterator.get_state()
    expected = [next(iterator)["key"].tolist() for _ in range(4)]
    resumed = iter(dataset)
    resumed.set_state(state)
    assert [next(resumed)["key"].tolist() for _ in range(4)] == expected


def test_tfrecords_of_another_tool_are_shuffled_as_a_whole(indexed):
    """Those of `tfprep index`, whose records stay as they are."""
    data = tfprep.open(indexed)
    dataset = grain.MapDataset.source(data.random_access("train", fields=["key", "picture"])).shuffle(seed=2)
    expected = dict(zip(data.index("train")["key"].to_pylist(), data.samples("train"), strict=True))
    assert {sample["key"] for sample in dataset} == set(expected)
    for sample in dataset:
        assert np.array_equal(sample["picture"], expected[sample["key"]]["picture"])


WORKERS = """
import sys, absl.flags
absl.flags.FLAGS(sys.argv[:1])
import grain, tfprep

if __name__ == "__main__":
    samples = tfprep.open(sys.argv[1]).random_access("train", fields=["key"])
    dataset = grain.MapDataset.source(samples).shuffle(seed=1).batch(10)
    by_itself = [batch["key"].tolist() for batch in dataset]
    workers = dataset.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert [batch["key"].tolist() for batch in workers] == by_itself
    sampler = grain.samplers.IndexSampler(len(samples), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(data_source=samples, sampler=sampler, worker_count=2, operations=[grain.transforms.Batch(10)])
    iterator = iter(loader)
    seen = [next(iterator)["key"].tolist()]
    state = iterator.get_state()
    rest = [batch["key"].tolist() for batch in iterator]
    assert sorted(sum(seen + rest, [])) == sorted(sum(by_itself, []))
    resumed = iter(loader)
    resumed.set_state(state)
    assert [batch["key"].tolist() for batch in resumed] == rest
    print("the same in workers")
"""


def test_worker_processes_of_both_apis(photos, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, script, photos.path], capture_output=True, text=True, timeout=600, check=False
    )
    assert "the same in workers" in done.stdout, done.stderr[-3000:]
