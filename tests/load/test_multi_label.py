"""Several classes per image, from a table to `fit`: multi-hot vectors, selections, splits and statistics."""

import csv
from collections import Counter

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.photos import write_photos
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import LoaderError

TAGS = ("dog", "owl", "rare", "sun")
COUNT = 120


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Photos whose tags are in a column, and in a column for each tag; the tags by image."""
    root = tmp_path_factory.mktemp("tags")
    write_photos(root, COUNT, "images/{number}.png")
    rng = np.random.default_rng(0)
    shares = dict(zip(TAGS, (0.5, 0.3, 0.07, 0.6), strict=True))
    tags = {
        f"images/{number}.png": [tag for tag, share in shares.items() if rng.random() < share]
        for number in range(COUNT)
    }
    tags = {path: of_image or ["sun"] for path, of_image in tags.items()}
    with (root / "tags.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "tags", *TAGS])
        for path, of_image in tags.items():
            writer.writerow([path, ", ".join(of_image), *(int(tag in of_image) for tag in TAGS)])
    return root, tags


SPLITS = sources.Fractions(train=0.75, val=0.25, stratify="label")
BY_CELL = {"label": "tags", "separator": ","}
BY_COLUMN = {"label": TAGS}


@pytest.fixture(scope="module", params=[BY_CELL, BY_COLUMN], ids=["one column", "a column for each class"])
def made(request, table, tmp_path_factory):
    root, tags = table
    source = sources.Table("tags.csv", image="path", splits=SPLITS, **request.param)
    recipe = Recipe("tags", source, {"image": codecs.Png(), "label": codecs.Scalar()})
    out = tmp_path_factory.mktemp("built") / "out"
    summary = tfprep.build(recipe, out, root, options=BuildOptions(workers=0))
    assert summary.samples == COUNT
    return tfprep.open(out), tags


def keys_of(loader):
    return [str(key) for batch in loader for key in batch["key"]]


def test_labels_are_multi_hot(made):
    data, tags = made
    seen = set()
    for split in ("train", "val"):
        for batch in data.numpy_loader(split, 8, training=False, fields=["label", "key"], remainder="keep"):
            assert batch["label"].dtype == np.float32
            assert batch["label"].shape[1:] == (len(TAGS),)
            for key, vector in zip(batch["key"], batch["label"], strict=True):
                assert vector.tolist() == [float(tag in tags[str(key)]) for tag in TAGS]
                seen.add(str(key))
    assert seen == set(tags)


def test_where_asks_for_one_of_several_classes(made):
    data, tags = made
    train = set(keys_of(data.numpy_loader("train", 8, training=False, fields=["key"], remainder="keep")))
    owl = data.class_names.index("owl")
    where = [owl in classes for classes in data.index("train").column("label").to_pylist()]
    loader = data.numpy_loader("train", 4, training=False, fields=["key"], where=where, remainder="keep")
    assert sorted(keys_of(loader)) == sorted(key for key in train if "owl" in tags[key])
    with pytest.raises(LoaderError, match="no kernel matching input types"):
        data.numpy_loader("train", 4, training=False, fields=["key"], where=pc.field("label") == owl)


def rarest(tags):
    counts = Counter(tag for of_image in tags.values() for tag in of_image)
    return {key: min(of_image, key=lambda tag: (counts[tag], tag)) for key, of_image in tags.items()}


def test_balance_draws_rare_classes_as_often(made):
    data, tags = made
    train = keys_of(data.numpy_loader("train", 8, training=False, fields=["key"], remainder="keep"))
    of_train = rarest({key: tags[key] for key in train})
    loader = data.numpy_loader("train", 4, seed=0, fields=["key"], balance="label")
    drawn = Counter(of_train[key] for key in keys_of(loader))
    assert set(drawn) == set(of_train.values())
    assert max(drawn.values()) - min(drawn.values()) <= 4  # a partial batch is left out


def test_statistics_count_every_class_of_an_image(made):
    data, tags = made
    for split in ("train", "val"):
        keys = keys_of(data.numpy_loader(split, 8, training=False, fields=["key"], remainder="keep"))
        expected = tuple(sum(tag in tags[key] for key in keys) for tag in TAGS)
        assert data.manifest.class_counts["label"][split] == expected
    assert tuple(data.class_names) == TAGS


def mixed_with_the_next(made, **options):
    """The samples of a training run, those after them in the batch, and both mixed: each as (images, labels)."""
    data, _ = made
    options |= {"seed": 4, "fields": ["image", "label"], "remainder": "drop"}
    plain = data.numpy_loader("train", 8, **{**options, "mix": (), "one_hot": False})
    for before, after in zip(plain, data.numpy_loader("train", 8, **options), strict=True):
        others = {name: np.roll(values, -1, axis=0) for name, values in before.items()}
        for row in range(8):
            yield [(part["image"][row].astype(int), part["label"][row]) for part in (before, others, after)]


@pytest.mark.parametrize("op", [augment.MixUp(0.4), augment.CutMix()])
def test_multi_hot_labels_are_mixed_as_the_images_are(made, op):
    """The weights are found from the pixels: by least squares, and by the area of the box."""
    shares = set()
    for (own, first), (other, second), (image, label) in mixed_with_the_next(made, mix=[op]):
        if isinstance(op, augment.MixUp):
            difference = own - other
            share = ((image - other) * difference).sum() / (difference**2).sum()
        else:
            cut = np.argwhere((image != own).any(axis=2))
            height, width = np.ptp(cut, axis=0) + 1 if len(cut) else (0, 0)
            share = 1 - height * width / own[..., 0].size
        np.testing.assert_allclose(label, share * first + (1 - share) * second, atol=0.005)
        shares.add(share)
    assert len(shares) > 10


def test_one_hot_leaves_multi_hot_labels_as_they_are(made):
    for one_hot in (True, len(TAGS)):
        for (_, first), _, (_, label) in mixed_with_the_next(made, one_hot=one_hot):
            np.testing.assert_array_equal(label, first)
    with pytest.raises(LoaderError, match="'label' has 4 classes, not 5"):
        made[0].numpy_loader("train", 8, fields=["image", "label"], one_hot=5)


def test_fit(made):
    keras = pytest.importorskip("keras")
    data, _ = made
    train = data.keras_loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    layers = keras.layers
    model = keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(len(TAGS), "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(multi_label=True)])
    history = model.fit(train, epochs=2, shuffle=False, verbose=0).history
    assert len(history["loss"]) == 2
    assert np.isfinite(history["loss"]).all()
