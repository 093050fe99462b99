"""YOLO folders with `data.yaml`, built and loaded."""

import re

import numpy as np
import pytest

import tfprep
from tests.sources.building import built, check_rejected, fields_of, folder
from tfprep import augment, sources
from tfprep.errors import SourceError
from tfprep.sources.detection.detect import detect

yaml = pytest.importorskip("yaml")
masks = pytest.importorskip("pycocotools.mask")

SIZE = 40, 56


def written(root, labels, content, split="train"):
    """Images `images/SPLIT/NAME.png` with their labels, and data.yaml."""
    images = {f"images/{split}/{name}.png": number for number, name in enumerate(labels)}
    texts = {f"labels/{split}/{name}.txt": text for name, text in labels.items() if text is not None}
    (root / f"labels/{split}").mkdir(parents=True, exist_ok=True)
    return folder(root, {**images, **texts, "data.yaml": yaml.safe_dump(content)})


DETECT = {"path": ".", "train": "images/train", "names": {0: "cat", 1: "dog"}}


def test_boxes_are_pixels_and_an_image_without_labels_is_background(tmp_path):
    labels = {"two": "1 0.5 0.5 0.25 0.5\n0 0.125 0.25 0.25 0.5\n", "none": None, "empty": "\n"}
    root = written(tmp_path / "data", labels, DETECT)
    (root / "labels/train/orphan.txt").write_text("0 0.5 0.5 0.1 0.1")
    fields = fields_of(sources.Yolo(), root, tmp_path / "out")
    np.testing.assert_allclose(fields["images/train/two.png"]["boxes"], [[21, 10, 35, 30], [0, 0, 14, 20]])
    assert fields["images/train/two.png"]["box_labels"].tolist() == [1, 0]
    assert len(fields["images/train/none.png"]["boxes"]) == len(fields["images/train/empty.png"]["boxes"]) == 0
    listing = sources.Yolo(unannotated="skip").scan(root)
    assert len(list(listing.entries)) == 1
    assert listing.tally == {"image without annotations": 2, "annotations without their image": 1}


def test_polygons_become_boxes_and_masks(tmp_path):
    polygon = [0.25, 0.25, 0.75, 0.25, 0.75, 0.75, 0.25, 0.75]
    root = written(tmp_path / "data", {"one": "1 " + " ".join(map(str, polygon))}, DETECT)
    fields = fields_of(sources.Yolo(fields=("boxes", "box_labels", "instances", "mask")), root, tmp_path / "out")
    row = fields["images/train/one.png"]
    np.testing.assert_array_equal(row["boxes"], [[14, 10, 42, 30]])
    drawn = masks.decode(masks.frPyObjects([[14.0, 10, 42, 10, 42, 30, 14, 30]], *SIZE))[:, :, 0]
    np.testing.assert_array_equal(row["instances"], drawn)
    np.testing.assert_array_equal(row["mask"], drawn * 2)


def test_oriented_boxes_follow_geometry(tmp_path):
    """Four corners for each object; a crop drops those whose box is outside, with their labels."""
    corners = np.array(
        [[[0.25, 0.25], [0.5, 0.1], [0.6, 0.3], [0.35, 0.45]], [[0.7, 0.8], [0.9, 0.7], [0.95, 0.8], [0.75, 0.9]]]
    )
    text = "\n".join(f"{label} {' '.join(map(str, corner.ravel()))}" for label, corner in enumerate(corners))
    root = written(tmp_path / "data", {"one": text, "wrong": f"{text}\n0 0.5 0.5 0.25 0.25"}, DETECT)
    source, pixels = sources.Yolo(fields=("boxes", "box_labels", "corners")), corners * [56, 40]
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        fields = fields_of(source, root, tmp_path / "out")
    for row in fields.values():
        np.testing.assert_allclose(row["corners"], pixels, rtol=1e-6)
        np.testing.assert_allclose(row["boxes"], np.concatenate([pixels.min(1), pixels.max(1)], 1), rtol=1e-6)
    ops = [augment.Flip(1.0, "vertical"), augment.CenterCrop(16, 24)]
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        fields = fields_of(
            source, root, tmp_path / "cut", geometry=ops, flip_indices={"corners": ()}, variants={"train": 2}
        )
    data = tfprep.open(tmp_path / "cut").numpy_loader("train", 1, fields=["corners", "box_labels"], variants=1)
    for batch in data:
        moved = np.stack([pixels[0][:, 0] - 16, 40 - pixels[0][:, 1] - 12], 1)
        np.testing.assert_allclose(batch["corners"][0], moved[None], rtol=1e-5)
        assert batch["box_labels"][0].tolist() == [0]


def test_a_validation_split_inside_of_the_training_split_is_named(tmp_path):
    content = DETECT | {"train": "images", "val": "images/val"}
    root = written(tmp_path / "data", {"a": ""}, content)
    written(root, {"b": None}, content, "val")
    with pytest.raises(
        SourceError, match=r"val has images of train too, such as images/val/b.png, .* splits=\('train',\)"
    ):
        list(sources.Yolo().scan(root).entries)
    assert len(list(sources.Yolo(splits=("train",)).scan(root).entries)) == 2


def test_labels_of_which_no_image_has_any_are_refused(tmp_path):
    """Such as those of a folder with another name; one image with labels makes all others background, which is counted."""
    root = written(tmp_path / "data", {"a": "0 0.5 0.5 0.5 0.5", "b": None}, DETECT)
    listing = sources.Yolo().scan(root)
    assert len(list(listing.entries)) == 2
    assert listing.tally["image without a file of annotations, kept as one without objects"] == 1
    (root / "labels").rename(root / "label")
    rule = "no image has a file of annotations: 'images/train/a.png' should have 'labels/train/a.txt'"
    with pytest.raises(SourceError, match=rule):
        list(sources.Yolo().scan(root).entries)


@pytest.mark.parametrize("numbers", [2, 3])
def test_key_points(tmp_path, numbers):
    points = [[0.5, 0.5, 2], [0, 0, 0], [0.25, 0.125, 2]]
    line = " ".join(map(str, [0, 0.5, 0.5, 0.25, 0.5, *(value for point in points for value in point[:numbers])]))
    content = {**DETECT, "kpt_shape": [3, numbers]}
    root = written(tmp_path / "data", {"one": line, "short": line.rpartition(" ")[0]}, content)
    fields, rejected = built(sources.Yolo(fields=("boxes", "points")), root, tmp_path / "out")
    np.testing.assert_allclose(fields["images/train/one.png"]["points"], [[28, 20, 2], [0, 0, 0], [14, 5, 2]])
    assert f"3 times {numbers} of points" in rejected["images/train/short.png"]


@pytest.mark.parametrize(
    ("images", "entry"),
    [("train/images", "../train/images"), ("train/images", "./train/images"), ("data/images/train", "images/train")],
)
def test_folders_are_found_as_ultralytics_and_roboflow_write_them(tmp_path, images, entry):
    path = "data" if images.startswith("data") else None
    described = yaml.safe_dump({"path": path, "train": entry, "val": entry, "names": ["cat"]})
    labels = f"{images.replace('images', 'labels')}/a.txt"
    files = {f"{images}/a.png": 1, labels: "0 0.5 0.5 0.5 0.5", "data.yaml": described}
    root = folder(tmp_path / "data", files)
    listing = sources.Yolo(splits=("val",)).scan(root)
    entries = list(listing.entries)
    assert [(entry.split, len(entry.values[0]["objects"])) for entry in entries] == [("val", 1)]


def test_lists_of_images(tmp_path):
    root = written(tmp_path / "data", {"a": "0 0.5 0.5 0.5 0.5", "b": None}, {**DETECT, "train": "train.txt"})
    (root / "train.txt").write_text("./images/train/b.png\nimages/train/a.png\n")
    assert [entry.key for entry in sources.Yolo().scan(root).entries] == ["images/train/b.png", "images/train/a.png"]
    (root / "train.txt").write_text(f"{root}/images/train/b.png\n/another/machine/images/train/a.png\n")
    assert [entry.key for entry in sources.Yolo().scan(root).entries] == ["images/train/b.png", "images/train/a.png"]
    (root / "train.txt").write_text("../../etc/passwd.png\n")
    with pytest.raises(SourceError, match="below it"):
        list(sources.Yolo().scan(root).entries)


def test_a_line_that_is_not_an_object_rejects_its_image(tmp_path):
    lines = {
        "class": ("0 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5", "class.txt, line 2: class 2 is outside the list of 2 names"),
        "half": ("0.5 0.5 0.5 0.5 0.5", "class 0.5 is outside"),
        "words": ("0 a b c d", "line 1: expected a class and numbers"),
        "nan": ("0 nan 0.5 0.5 0.5", "coordinates are finite numbers"),
        "three": ("0 0.5 0.5 0.5", "expected x, y, w and h, or a polygon of three points or more; got 3 numbers"),
        "seven": ("0 " + "0.5 " * 7, "got 7 numbers"),
        "flat": ("0 0.5 0.5 0 0.5", "covers no pixel"),
        "pixels": ("0 28 20 14 20", "reaches outside the image of 56 x 40"),
        "good": ("0 0.5 0.5 0.5 0.5", ""),
    }
    root = written(tmp_path / "data", {name: text for name, (text, _) in lines.items()}, DETECT)
    (root / "labels/train/words.txt").write_bytes(b"\xff\xfe0")
    lines["words"] = ("", "words.txt is not text")
    reasons = {f"images/train/{name}.png": reason for name, (_, reason) in lines.items()}
    check_rejected(sources.Yolo(bad_annotations="reject"), root, tmp_path / "out", reasons)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("names: [a", "is not YAML"),
        ("- a", "expected names and values"),
        ("train: images/train", "names is a list"),
        ("names: {-1: a, 2: b}\ntrain: images/train", "names is a list"),
        ("names: {0: a, 1000000000: b}\ntrain: images/train", "all numbers from 0"),
        ("names: [a, a]\ntrain: images/train", "two classes have one name"),
        ("names: [a, b]\nnc: 3\ntrain: images/train", "nc is 3, and there are 2 names"),
        ("names: [a, ]\ntrain: ~\nval: null", "there is neither train nor val nor test"),
        ("names:\n- a\n-\ntrain: images/train", "names is a list"),
        ("names: &a [a]\ntrain: *a", "has aliases"),
        ("names: [a]", "there is neither train nor val nor test"),
        ("names: [a]\ntrain: elsewhere", "'elsewhere' is not below"),
        ("names: [a]\ntrain: /etc", "'/etc' is not below"),
        ("names: [a]\ntrain: images/train\nkpt_shape: 3", "kpt_shape is [number of points, 2 or 3]"),
    ],
)
def test_a_wrong_yaml_file_is_named(tmp_path, text, reason):
    root = written(tmp_path / "data", {"a": ""}, DETECT)
    (root / "data.yaml").write_text(text)
    with pytest.raises(SourceError, match=rf"data\.yaml.*{re.escape(reason)}"):
        sources.Yolo().scan(root)


def test_names_of_classes_are_as_they_are_written(tmp_path):
    """YAML 1.1 reads them as False, 8, 1.1, 750 and a date; nothing runs that a tag names."""
    root = written(tmp_path / "data", {"a": "4 0.5 0.5 0.5 0.5"}, DETECT)
    names = ("no", "010", "1.10", "12:30", "2020-01-01", "ls")
    described = "names:\n" + "".join(f"  {n}: {name}\n" for n, name in enumerate(names))
    rest = "train: images/train\nval: ~\nkpt_shape: null\nx: !!python/object/apply:os.system [ls]\n"
    (root / "data.yaml").write_text(described + rest)
    assert sources.Yolo().scan(root).classes["box_labels"] == names


def test_a_split_of_which_no_image_has_labels_is_refused(tmp_path):
    """As test splits whose labels are not public: all its images would be without objects."""
    content = DETECT | {"test": "images/test"}
    root = written(tmp_path / "data", {"a": "0 0.5 0.5 0.5 0.5"}, content)
    written(root, {"b": None, "c": None}, content, "test")
    rule = r"no image of test has a file of annotations: 'images/test/b.png' should have 'labels/test/b.txt'; .*splits="
    with pytest.raises(SourceError, match=rule):
        list(sources.Yolo().scan(root).entries)
    with pytest.raises(SourceError, match=rule):
        detect(root)
    for options in ({"splits": ("train",)}, {"unannotated": "skip"}):
        assert [entry.key for entry in sources.Yolo(**options).scan(root).entries] == ["images/train/a.png"]


def test_what_the_yaml_file_does_not_give_is_named(tmp_path):
    root = written(tmp_path / "data", {"a": ""}, DETECT)
    with pytest.raises(SourceError, match="there is no split 'val'; there are train"):
        sources.Yolo(splits=("val",)).scan(root)
    with pytest.raises(SourceError, match="there is no kpt_shape"):
        sources.Yolo(fields=("points",)).scan(root)
