"""The on-the-fly pipeline delivers the pixels that a build stores, every sample once per epoch, with another variant in each."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.photos import write_photos
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.bench.training import on_the_fly
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.errors import SourceError

RECIPE = Recipe(
    name="tiny",
    source=sources.Paired(image="{split}/*.png", mask="{split}mask/*.png"),
    geometry=[augment.Rotate(30), augment.Crop(24, 20)],
    derive={"distance": derive.Distance(mask="mask", target=1)},
    fill={"mask": 255},
    color=[augment.Brightness(0.3)],
    variants={"train": 3},
    store={"image": codecs.Raw(), "mask": codecs.Png(), "distance": codecs.Raw("uint8")},
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("raw")
    draws = np.random.default_rng(0)
    for name in ("train", "trainmask", "val", "valmask"):
        (root / name).mkdir()
        for number in range(8):
            shape, values = ((32, 30), 2) if name.endswith("mask") else ((32, 30, 3), 256)
            Image.fromarray(draws.integers(0, values, shape).astype(np.uint8)).save(root / name / f"{number}.png")
    return root


def record(sample):
    return b"".join(np.asarray(sample[name]).tobytes() for name in ("image", "mask", "distance"))


def test_pixels_equal_those_of_a_build_and_every_variant_comes_once(data, tmp_path):
    build(RECIPE, tmp_path / "built", data, options=BuildOptions(workers=0))
    built = open_dataset(tmp_path / "built")
    stored = [Counter(record(sample) for sample in built.samples("train", variant)) for variant in range(3)]
    pipeline = on_the_fly(RECIPE, data, "train", batch_size=4, seed=1)
    assert {name: tuple(spec.shape) for name, spec in pipeline.element_spec.items()} == {
        "image": (4, 24, 20, 3),
        "mask": (4, 24, 20),
        "distance": (4, 24, 20),
    }
    batches = [{name: value.numpy() for name, value in batch.items()} for batch in pipeline.take(6)]
    seen = [{name: value[row] for name, value in batch.items()} for batch in batches for row in range(4)]
    assert seen[0]["distance"].dtype == np.uint8
    assert Counter(map(record, seen)) == sum(
        stored, Counter()
    )  # Three epochs contain all three variants of all eight samples.
    first = {record(sample) for sample in seen[:8]}
    for sample in built.samples("train"):
        assert len({record(sample)} & first) <= 1
    assert Counter(map(record, seen[:8])) != Counter(map(record, seen[8:16]))


def test_labels_have_their_stored_shape(tmp_path):
    write_photos(tmp_path, 4, noise=(8, 8))
    recipe = Recipe("labels", sources.Folder("{label}/*.png"), {"image": codecs.Jpeg(), "label": codecs.Scalar()})
    batch = next(iter(on_the_fly(recipe, tmp_path, "train", batch_size=4)))
    assert sorted(batch["label"].numpy().tolist()) == [0, 0, 1, 1]
    assert batch["image"].shape == (4, 8, 8, 3)


def test_a_split_without_samples_is_named(data):
    with pytest.raises(SourceError, match="split 'test' has no sample; available: train, val"):
        on_the_fly(RECIPE, data, "test")
