"""`pad`: fields of N rows as arrays of one shape, the same in NumPy and TensorFlow, into `fit`."""

import json

import numpy as np
import pytest

import tfprep
from tests.sources.building import write_picture
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import LoaderError, RecordError

COUNTS = (0, 3, 1, 5, 2, 4, 1)


def boxes_of(number):
    return [[at, 1, at + 4 + number, 9] for at in range(COUNTS[number])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("pad")
    for number in range(len(COUNTS)):
        write_picture(root / f"{number}.png", number)
    rows = [{"image": f"{n}.png", "boxes": boxes_of(n), "name": "x"} for n in range(len(COUNTS))]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = sources.Table(
        "rows.jsonl", image="image", fields={"boxes": ("boxes", "boxes"), "name": ("text", "name")}, splits=None
    )
    store = {"image": codecs.Raw(), "boxes": codecs.Scalar(), "name": codecs.Text()}
    tfprep.build(Recipe(name="pad", source=source, store=store), root / "out", root, options=BuildOptions(workers=0))
    return tfprep.open(root / "out")


def expected(keys, rows):
    found = np.full((len(keys), rows, 4), -1, np.float32)
    for row, key in enumerate(keys):
        boxes = boxes_of(int(str(key).partition(".")[0]))
        found[row, : len(boxes)] = np.reshape(boxes, (-1, 4))
    return found


def check(batches, rows):
    samples = 0
    for batch in batches:
        keys = [key.decode() if isinstance(key, bytes) else key for key in np.asarray(batch["key"]).tolist()]
        np.testing.assert_array_equal(np.asarray(batch["boxes"]), expected(keys, rows))
        assert np.asarray(batch["boxes"]).dtype == np.float32
        samples += len(keys)
    assert samples == len(COUNTS)


OPTIONS = {"batch_size": 3, "training": False, "fields": ["boxes", "key", "image"], "pad": {"boxes": 6}}


def test_arrays_of_numpy(data):
    check(data.numpy_loader("train", **OPTIONS), 6)


def test_tensors_of_tensorflow(data):
    loader = data.loader("train", **OPTIONS)
    assert loader.element_spec["boxes"].shape.as_list() == [None, 6, 4]
    check(loader.as_numpy_iterator(), 6)
    check(iter(loader), 6)


def test_into_fit(data):
    keras = pytest.importorskip("keras")
    train = data.loader(
        "train", batch_size=2, inputs="image", targets="boxes", pad={"boxes": 5}, dtype="float32", seed=1
    )
    pixels = keras.Input((40, 56, 3))
    model = keras.Model(
        pixels, keras.layers.Reshape((5, 4))(keras.layers.Dense(20)(keras.layers.GlobalAveragePooling2D()(pixels)))
    )
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(train, shuffle=False, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("kind", ["numpy_loader", "loader"])
def test_more_rows_than_there_is_room_for_are_an_error(data, kind):
    with pytest.raises(RecordError, match=r"boxes\W+ has (5|more) rows"):
        list(getattr(data, kind)("train", **{**OPTIONS, "pad": {"boxes": 4}}))


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        ({"boxes": 0}, r"pad gives numbers of rows from 1 by field, such as \{'boxes': 100\}"),
        (100, "pad gives numbers of rows"),
        ({"masks": 3}, "no such field is loaded; there are boxes, key, image"),
        ({"image": 3}, r"pad fills up fields of N rows of signed numbers, such as boxes; 'image' is a image of uint8"),
        ({"key": 3}, "'key' is a text"),
    ],
)
def test_what_cannot_be_padded_is_named(data, pad, message):
    with pytest.raises(LoaderError, match=message):
        data.numpy_loader("train", **{**OPTIONS, "pad": pad})
