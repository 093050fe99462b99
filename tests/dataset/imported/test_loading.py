"""What loaders deliver from an index of TFRecords in the Object Detection API's layout, against TensorFlow's own parser."""

import collections
import contextlib
import itertools
import json
import pickle

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.examples import detection, image_bytes, serialized, write
from tfprep import Recipe, augment, codecs
from tfprep.builder import BuildOptions, build
from tfprep.dataset import Records, index_tfrecords, open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, LoaderError, RecipeError
from tfprep.storage.store import open_store

tf = pytest.importorskip("tensorflow")

LISTS = {"image/object/class/text": tf.string, "image/object/class/label": tf.int64, "image/weather": tf.int64}
SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/night": tf.io.FixedLenFeature([], tf.int64),
    **{name: tf.io.RaggedFeature(dtype) for name, dtype in LISTS.items()},
}
FIELDS = [name.replace("/", "_") for name in SPEC]


@pytest.fixture(scope="module")
def data(detections):
    index_tfrecords(str(detections / "train-*.tfrecord"), "train")
    return pickle.loads(pickle.dumps(tfprep.open(detections)))


def parsed(folder, spec):
    """By file name the features that TensorFlow parses from all records of a folder."""
    records = tf.data.TFRecordDataset([str(path) for path in sorted(folder.glob("train-*"))])
    examples = (tf.io.parse_single_example(record, spec) for record in records)
    return {features["image/filename"].numpy().decode(): features for features in examples}


@pytest.fixture(scope="module")
def expected(detections):
    samples = parsed(detections, SPEC)
    for features in samples.values():
        image = tf.io.decode_jpeg(features["image/encoded"], channels=3, dct_method="INTEGER_ACCURATE")
        features.update({name: value.numpy() for name, value in {**features, "image/encoded": image}.items()})
    return samples


def as_bytes(value):
    if isinstance(value, str):
        return value.encode()
    value = value.to_tensor() if isinstance(value, tf.RaggedTensor) else value
    value = np.asarray(value)
    return np.array([as_bytes(item) for item in value], object) if value.dtype.kind in "OU" and value.ndim else value


def check(batch, row, expected):
    """Compare one sample; return its name."""
    name = batch["image_filename"][row]
    name = name if isinstance(name, str) else name.numpy().decode()
    for feature, field in zip(SPEC, FIELDS, strict=True):
        if feature != "image/filename":
            assert np.array_equal(as_bytes(batch[field][row]), expected[name][feature]), (name, feature)
    return name


def test_every_record_once_an_epoch_with_the_values_of_tensorflow(data, expected):
    with contextlib.closing(data.numpy_loader("train", 8, fields=FIELDS, seed=3, remainder="keep")) as loader:
        two_epochs = itertools.islice(loader.repeat(), 8)
        names = [check(batch, row, expected) for batch in two_epochs for row in range(len(batch["image_height"]))]
    assert collections.Counter(names) == dict.fromkeys(expected, 2)
    evaluated = data.loader("train", 7, fields=FIELDS, training=False)
    rows = ((batch, row) for batch in evaluated for row in range(int(batch["image_height"].shape[0])))
    assert [check(batch, row, expected) for batch, row in rows] == list(expected)


SIDES_OF_A_BOX = ("xmin", "ymin", "xmax", "ymax")
SIDES = [f"image/object/bbox/{side}" for side in SIDES_OF_A_BOX]


def boxes_in_pixels(folder):
    """By file name the boxes as TensorFlow parses them, times the sides of the image that it decodes."""
    spec = {name: tf.io.RaggedFeature(tf.float32) for name in SIDES}
    spec |= {name: tf.io.FixedLenFeature([], tf.string) for name in ("image/filename", "image/encoded")}
    boxes = {}
    for name, features in parsed(folder, spec).items():
        height, width = tf.io.decode_image(features["image/encoded"]).shape[:2]
        sides = np.array([width, height, width, height], np.float32)
        boxes[name] = np.stack([features[side] for side in SIDES], -1) * sides
    return boxes


def test_boxes_in_four_features_are_one_field(data, detections):
    """With the values that TensorFlow parses, in every way of reading them."""
    assert (data.fields["boxes"].kind, data.fields["boxes"].shape) == ("boxes", (None, 4))
    assert not [name for name in data.fields if name.endswith(("xmin", "ymax"))]
    expected = boxes_in_pixels(detections)
    assert {len(boxes) for boxes in expected.values()} == {0, 1, 2, 3}
    fields = ["image_filename", "boxes"]
    ways = {
        "samples": ((sample["image_filename"], sample["boxes"]) for sample in data.samples("train")),
        "numpy_loader": in_rows(data.numpy_loader("train", 8, fields=fields, training=False)),
        "processes": in_rows(data.numpy_loader("train", 8, fields=fields, training=False, workers="processes")),
        "loader": in_rows(data.loader("train", 8, fields=fields, training=False)),
        "tf_dataset": in_rows(data.tf_dataset("train", 1, fields=fields, training=False)),
        "random_access": ((sample["image_filename"], sample["boxes"]) for sample in data.random_access("train")),
    }
    for way, samples in ways.items():
        seen = dict(samples)
        assert seen.keys() == expected.keys(), way
        for name, boxes in seen.items():
            np.testing.assert_allclose(boxes, expected[name], rtol=1e-6, err_msg=f"{way} {name}")
    batch = next(iter(data.numpy_loader("train", 8, fields=["boxes"], pad={"boxes": 5}, training=False)))
    assert batch["boxes"].shape == (8, 5, 4)
    assert not list(verify(data.path))


def test_shares_are_not_taken_for_pixels_because_of_one_wrong_number(tmp_path):
    def index(*largest):
        boxes = [{name: np.float32([0.5 * one]) for name in SIDES_OF_A_BOX} for one in largest]
        image = image_bytes(np.random.default_rng(2), (20, 30))
        write(tmp_path / "0.tfrecord", [serialized({"image": image, **sides}) for sides in boxes])
        index_tfrecords(str(tmp_path / "0.tfrecord"), "train", tmp_path / "out")
        return [sample["boxes"][0, 0] for sample in tfprep.open(tmp_path / "out").samples("train")]

    assert index(1, 1.5, 0) == [15, 22.5, 0]
    assert index(20, 0, 40) == [10, 0, 20]  # an empty box among pixels
    with pytest.raises(DatasetError, match="'xmin' are sides of boxes, and 1 of 3 records have numbers above 2"):
        index(1, 20, 0.5)


def test_shares_are_those_of_the_image_of_their_group(tmp_path):
    """Two cameras with images of different sizes."""
    rng = np.random.default_rng(2)
    features = {
        f"{side}/object/bbox/{name}": np.float32([0.5]) for side in ("left", "right") for name in SIDES_OF_A_BOX
    }
    images = {"left/encoded": image_bytes(rng, (20, 30)), "right/encoded": image_bytes(rng, (40, 50))}
    write(tmp_path / "0.tfrecord", [serialized(features | images)])
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train")
    (sample,) = tfprep.open(tmp_path).samples("train")
    assert [sample[name].tolist() for name in ("boxes", "boxes_")] == [[[15, 10, 15, 10]], [[25, 20, 25, 20]]]


@pytest.mark.parametrize(
    ("groups", "rows"),
    [
        (("a/", "b/"), {"boxes": ["a_labels"], "boxes_": ["b_labels"]}),
        (("a/", "a/x/"), {"boxes": ["a_labels"], "boxes_": ["a_x_labels"]}),
        (("", "a/b/"), {"boxes": ["a_b_labels"], "boxes_": ["labels"]}),
    ],
)
def test_lists_belong_to_the_boxes_of_their_group(tmp_path, groups, rows):
    """Where two groups have as many boxes as each other in every record."""
    names = [f"{group}{'bbox/' * bool(group)}{side}" for group in groups for side in SIDES_OF_A_BOX]
    payloads = [
        serialized(
            {name: np.full(n, 9, np.float32) for name in names} | {f"{group}labels": np.arange(n) for group in groups}
        )
        for n in (1, 2, 3)
    ]
    write(tmp_path / "0.tfrecord", payloads)
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train")
    assert tfprep.open(tmp_path).manifest.recipe["row_fields"] == rows


def test_boxes_follow_geometry_at_load_and_in_a_recipe_with_their_rows(data, detections, tmp_path):
    """A mirrored image of W pixels has its boxes at W - x; a box that is not visible goes with its row."""
    fields = ["image_filename", "image_encoded", "boxes", "image_object_class_label"]
    loader = data.numpy_loader("train", 8, fields=fields, geometry=[mirrored, augment.Resize(30, 50)], training=False)
    expected, labels = boxes_in_pixels(detections), parsed(detections, SPEC)
    sizes = {sample["image_filename"]: sample["image_encoded"].shape[:2] for sample in data.samples("train")}
    seen = compared = 0
    for batch in loader:
        rows = (batch[name] for name in ("image_filename", "boxes", "image_object_class_label"))
        for name, boxes, numbers in zip(*rows, strict=True):
            compared += check_mirrored(boxes, expected[name], sizes[name], (30, 50))
            assert numbers.tolist() == labels[name]["image/object/class/label"].numpy().tolist()
            seen += 1
    assert seen == 30
    assert compared > 5
    recipe = Recipe(
        "mirrored", Records({"image_encoded": "image", "boxes": "boxes", "image_filename": "text"}),
        {"image_encoded": codecs.Png(), "boxes": codecs.Scalar(), "image_filename": codecs.Text()},
        geometry=[mirrored, augment.Resize(30, 50)],
    )  # fmt: skip
    build(recipe, tmp_path / "out", detections, options=BuildOptions(workers=0))
    for sample in tfprep.open(tmp_path / "out").samples("train"):
        check_mirrored(sample["boxes"], expected[sample["image_filename"]], sizes[sample["image_filename"]], (30, 50))


def mirrored(size, generator):
    return augment.Transform(np.array([[-1.0, 0, size[1]], [0, 1, 0], [0, 0, 1]]), size)


def check_mirrored(boxes, before, size, after):
    """Compare the boxes whose corners are in order, and return their number: those of these records are random numbers."""
    (height, width), (rows, columns) = size, after
    x = np.sort(width - before[:, [0, 2]], 1) * columns / width
    y = np.sort(before[:, [1, 3]], 1) * rows / height
    boxes, x, y = (one[(before[:, 2:] > before[:, :2]).all(1)] for one in (boxes, x, y))
    np.testing.assert_allclose(boxes, np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], -1), atol=1e-3)
    return len(boxes)


@pytest.mark.parametrize("name", ["image/object/keypoint/x", "landmarks/nose_y", "face/y"])
def test_places_by_the_names_that_other_tools_give_them_are_refused_by_geometry(tmp_path, name):
    values = {"image": image_bytes(np.random.default_rng(3), (10, 12)), name: [1, 2], "y": 1, "landmark_id": 2}
    write(tmp_path / "0.tfrecord", [serialized(values)])
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train")
    with pytest.raises(LoaderError, match=f"cannot follow the images: declare '{name}'"):
        tfprep.open(tmp_path).numpy_loader("train", 1, geometry=[augment.Flip()])
    tfprep.open(tmp_path).numpy_loader("train", 1, geometry=[augment.Flip()], fields=["image", "y", "landmark_id"])


def test_numbers_whose_place_is_not_known_are_refused_by_geometry(tmp_path):
    rng = np.random.default_rng(3)
    image = image_bytes(rng, (10, 12))
    payloads = [serialized({"image": image, "keypoints": rng.random(6).astype(np.float32), "n": n}) for n in range(4)]
    write(tmp_path / "0.tfrecord", payloads)
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train")
    data, fields = tfprep.open(tmp_path), ["image", "keypoints", "n"]
    message = "numbers of 'keypoints' cannot follow the images: declare 'keypoints' as boxes or points"
    with pytest.raises(LoaderError, match=message):
        next(iter(data.numpy_loader("train", 4, fields=fields, geometry=[augment.Flip()])))
    assert next(iter(data.numpy_loader("train", 4, fields=fields)))["keypoints"].shape == (4, 6)
    recipe = Recipe(
        "r", Records({"image": "image", "keypoints": "scalar"}),
        {"image": codecs.Jpeg(), "keypoints": codecs.Scalar()}, geometry=[augment.Flip()],
    )  # fmt: skip
    with pytest.raises(RecipeError, match="numbers of 'keypoints' cannot follow the images"):
        build(recipe, tmp_path / "out", tmp_path, options=BuildOptions(workers=0))
    declared = tmp_path / "declared.json"
    declared.write_text(json.dumps({"keypoints": {"kind": "points", "shape": [3, 2]}}))
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train", features=declared)
    options = {"fields": fields, "geometry": [augment.Resize(20, 24)], "training": False}
    batch = next(iter(tfprep.open(tmp_path).numpy_loader("train", 4, **options)))
    first = tf.io.parse_single_example(payloads[0], {"keypoints": tf.io.FixedLenFeature([3, 2], tf.float32)})
    np.testing.assert_allclose(batch["keypoints"][0], first["keypoints"] * 2, atol=1e-5)


def test_lists_of_as_many_rows_as_boxes_lose_the_rows_of_boxes_that_are_cut_away(tmp_path):
    """Their features are named without a common group. Where nothing tells which lists do, they are declared."""
    image, declared, options = image_bytes(np.random.default_rng(4), (40, 40)), tmp_path / "declared.json", {}
    crop = {"geometry": [augment.CenterCrop(20, 20)], "training": False, "on_bad": "skip"}

    def loaded(name, counts, most=9):
        payloads = []
        for count in counts:
            corners = np.arange(count, dtype=np.float32)[:, None] * 10 + [0, 0, 10, 10]
            payloads.append(serialized({
                "image": image, "bbox": corners, "labels": np.arange(min(count, most)),
                "names": [b"%d" % n for n in range(count)], "vectors": np.repeat(np.arange(count, dtype=np.float32), 2),
                "rgb": np.arange(3),
            }))  # fmt: skip
        bbox = {"kind": "boxes", "format": "xyxy", **options}
        declared.write_text(json.dumps({"bbox": bbox, "vectors": {"shape": [None, 2]}}))
        write(tmp_path / name, payloads)
        index_tfrecords(str(tmp_path / name), "train", tmp_path / f"{name}-index", features=declared)
        return tfprep.open(tmp_path / f"{name}-index").numpy_loader("train", len(counts), **crop)

    counts = (4, 3, 0)
    (batch,) = loaded("ragged", counts)
    for row, count in enumerate(counts):
        seen = [n for n in range(count) if 0 < n < 3]
        assert batch["bbox"][row][:, 0].tolist() == [10.0 * n - 10 for n in seen]
        assert batch["labels"][row].tolist() == seen
        assert list(batch["names"][row]) == [f"{n}" for n in seen]
        assert batch["vectors"][row].tolist() == [[n, n] for n in seen]
    assert batch["rgb"].tolist() == [[0, 1, 2]] * 3
    for name, counts, most, seen in (("fixed", (3, 3), 9, [[1, 2]] * 2), ("wrong", (2, 4, 3), 3, [[1], [1, 2]])):
        with pytest.raises(LoaderError, match=r"does not say which of .*rgb.* have a row for each box"):
            loaded(name, counts, most)
        options["rows"] = ["labels", "names", "vectors"]
        (batch,) = loaded(name, counts, most)
        assert [labels.tolist() for labels in batch["labels"]] == seen
        options["rows"] = ["label"]
        with pytest.raises(DatasetError, match="rows of boxes: 'label' is not a list of numbers or texts"):
            loaded(name, counts, most)
        options.clear()


def in_rows(batches):
    for batch in batches:
        for name, boxes in zip(batch["image_filename"], batch["boxes"], strict=True):
            text = name.numpy() if hasattr(name, "numpy") else name
            yield text.decode() if isinstance(text, bytes) else str(text), np.asarray(boxes).reshape(-1, 4)


def test_a_run_does_not_resume_in_records_of_the_same_names(tmp_path):
    """There is no SHA-256 of a shard; the places and checksums of its records tell one content from another."""
    states = []
    for text in (b"one", b"two"):
        write(tmp_path / "a.tfrecord", [serialized({"n": n, "text": text}) for n in range(8)])
        index_tfrecords(str(tmp_path / "a.tfrecord"), "train")
        with contextlib.closing(tfprep.open(tmp_path).numpy_loader("train", 4, fields=["n"], seed=3)) as loader:
            states.append(loader.state_dict(step=3))
            loader.load_state_dict(states[-1])
            assert loader.next_step == 3
    with pytest.raises(LoaderError, match="another run"):
        loader.load_state_dict(states[0])


def test_a_run_does_not_resume_in_fields_that_were_declared_otherwise(tmp_path):
    """The shards and the places are the same, and the bytes of a field are another array."""
    write(tmp_path / "a.tfrecord", [serialized({"n": n, "raw": bytes(range(6))}) for n in range(8)])
    states, declared = [], tmp_path / "declared.json"
    for shape in ([2, 3], [3, 2]):
        declared.write_text(json.dumps({"raw": {"dtype": "uint8", "shape": shape}}))
        index_tfrecords(str(tmp_path / "a.tfrecord"), "train", features=declared)
        for fields in (["n"], ["raw"]):
            states.append(tfprep.open(tmp_path).numpy_loader("train", 4, fields=fields).state_dict(step=1))
    assert states[0] == states[2]  # of a field that stayed as it is
    with contextlib.closing(tfprep.open(tmp_path).numpy_loader("train", 4, fields=["raw"])) as loader:
        loader.load_state_dict(states[3])
        with pytest.raises(LoaderError, match=r"its rules is .* the declared fields of the dataset differ"):
            loader.load_state_dict(states[1])


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        (pc.field("image_night") == 1, lambda e: e["image/night"] == 1),
        ((pc.field("image_height") >= 30) & (pc.field("height") >= 30), lambda e: e["image/height"] >= 30),
        (pc.match_substring(pc.field("image_filename"), "1.jpg"), lambda e: e["image/filename"].endswith(b"1.jpg")),
        (pc.field("image_weather") > 2, lambda e: len(e["image/weather"]) == 1 and e["image/weather"][0] > 2),
        (~(pc.field("image_weather") > 2), lambda e: len(e["image/weather"]) == 1 and e["image/weather"][0] <= 2),
    ],
)
def test_where(data, expected, where, keep):
    loader = data.numpy_loader("train", 8, training=False, fields=["image_filename"], where=where)
    names = [name for batch in loader for name in batch["image_filename"].tolist()]
    assert names == [name for name, features in expected.items() if keep(features)]
    assert names


def test_balance(data):
    """Formats come 24 to 6 in the files, and as often as one another in the batches; class numbers too."""
    loader = data.numpy_loader("train", 10, fields=["image_format", "image_night"], balance="image_format")
    batches = iter(loader)
    counts = collections.Counter(name for _ in range(3) for name in next(batches)["image_format"].tolist())
    assert counts == {"jpeg": 15, "png": 15}
    with pytest.raises(LoaderError, match="15 samples have no value of 'image_weather'"):
        data.numpy_loader("train", 10, balance="image_weather")
    with pytest.raises(LoaderError, match=r"no column 'image_nigth'.* did you mean 'image_night'"):
        data.numpy_loader("train", 10, balance="image_nigth")
    with pytest.raises(LoaderError, match="no column 'image_object_class_label'"):
        data.numpy_loader("train", 10, balance="image_object_class_label")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("*.x", {0}), ("*/*.x", {1}), ("**/*.x", {0, 1, 2}), ("a/**/b/*.x", {2}), ("**/b/?.x", {2}), ("a/1.x", {1})],
)
def test_a_pattern_names_the_same_files_in_a_folder_and_at_a_url(tmp_path, pattern, found):
    store = open_store("memory://patterns/data")
    for number, name in enumerate(("0.x", "a/1.x", "a/b/2.x", "a/.3.x")):
        file = write(tmp_path / "data" / name, [serialized({"n": number})])
        store.write(name, file.read_bytes())
    for number, place in enumerate((tmp_path / "data", "memory://patterns/data")):
        report = index_tfrecords(f"{place}/{pattern}", "train", tmp_path / f"out{number}", workers=0)
        assert {sample["n"].item() for sample in open_dataset(report.out).samples("train")} == found


def test_an_index_of_shards_in_an_object_store(s3, tmp_path):
    from tfprep.storage.store import open_store

    rng = np.random.default_rng(4)
    examples = [serialized(detection(rng, number)) for number in range(30)]
    for shard in range(2):
        write(tmp_path / "raw" / "deep" / f"train-{shard}", examples[15 * shard : 15 * shard + 15])
    url = s3.copy(tmp_path / "raw" / "deep")
    out = tmp_path / "index"
    report = index_tfrecords(f"{url}/train-*", "train", out)
    assert len(report.scanned) == 2
    assert index_tfrecords(f"{url}/train-*", "train", out).scanned == ()
    index_tfrecords(str(tmp_path / "raw" / "deep" / "train-*"), "train", tmp_path / "local")
    there, here = tfprep.open(out), tfprep.open(tmp_path / "local")
    both = (data.numpy_loader("train", 7, training=False) for data in (there, here))
    for one, other in zip(*both, strict=True):
        assert one["image_filename"].tolist() == other["image_filename"].tolist()
        assert all(np.array_equal(a, b) for a, b in zip(one["image_encoded"], other["image_encoded"], strict=True))
    loader = there.loader("train", 5, fields=["image_filename"])
    assert len(next(iter(loader))["image_filename"]) == 5
    assert list(verify(out)) == []
    open_store(url).write("train-0", b"something else")
    with pytest.raises(DatasetError, match=r"train-0 holds 14 bytes, .*tfprep index again"):
        there.numpy_loader("train", 5)
    with pytest.raises(DatasetError, match="train-0, record 0 at byte 0"):
        index_tfrecords(f"{url}/train-*", "train", out)
    open_store(url).delete(["train-0"])
    with pytest.raises(DatasetError, match="train-0"):
        there.numpy_loader("train", 5)
    with pytest.raises(DatasetError, match="name a local folder for the index with --out"):
        index_tfrecords(f"{url}/train-*", "train")
    with pytest.raises(DatasetError, match="names no file"):
        index_tfrecords(f"{url}/test-*", "train", out)
