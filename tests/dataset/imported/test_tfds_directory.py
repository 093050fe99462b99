"""A directory that TensorFlow Datasets wrote: every value is that which TensorFlow Datasets itself reads from it."""

import json
import re
import shutil
import warnings
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tfprep.dataset import index_tfrecords
from tfprep.errors import DatasetError

pytest.importorskip("tensorflow")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tfds = pytest.importorskip("tensorflow_datasets")
    class_label_feature = pytest.importorskip("tensorflow_datasets.core.features.class_label_feature")


def sample(rng, number):
    height, width, boxes = *(int(side) for side in rng.integers(10, 20, 2)), number % 3
    return {
        "image": rng.integers(0, 256, (height, width, 3), np.uint8),
        "gray": rng.integers(0, 256, (8, 8, 1), np.uint8),
        "segmentation_mask": rng.integers(0, 5, (height, width, 1), np.uint8),
        "classes_label": rng.integers(0, 3, (height, width, 1), np.uint8),
        "labeled": rng.integers(0, 3, (height, width, 1), np.uint8),
        "label": number % 3,
        "file_name": f"f{number}",
        "matrix": rng.random((3, 2), np.float32),
        "flag": bool(number % 2),
        "bytes": rng.random((2, 3)),
        "zlib": rng.random((2, 3)).astype(np.float32),
        "objects": [
            {"bbox": tfds.features.BBox(0.1, 0.2, 0.3, 0.4 + box / 9), "label": box, "name": f"n{box}"}
            for box in range(boxes)
        ],
        "in_pixels": tfds.features.BBox(1, 2, 3, 4 + number),
        "corners": np.array([1, 2, 3, 4]),
        "three": [number, number + 1, number + 2],
        "video": rng.integers(0, 256, (2, 8, 8, 3), np.uint8),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    features = tfds.features

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        url_infos = MappingProxyType({})  # otherwise looked up beside the file that defines the class

        def _info(self):
            label = features.ClassLabel(num_classes=4)
            objects = {"bbox": features.BBoxFeature(), "label": label, "name": features.Text()}
            fields = {
                "image": features.Image(shape=(None, None, 3)),
                "gray": features.Image(shape=(8, 8, 1), encoding_format="png"),
                "segmentation_mask": features.Image(shape=(None, None, 1), use_colormap=True, encoding_format="png"),
                "classes_label": features.Image(shape=(None, None, 1), encoding_format="png"),
                "labeled": features.LabeledImage(labels=["sky", "road", "car"], shape=(None, None, 1)),
                "label": features.ClassLabel(names=["cat", "dog", "owl"]),
                "file_name": features.Text(),
                "matrix": features.Tensor(shape=(3, 2), dtype=np.float32),
                "flag": features.Scalar(np.bool_),
                "bytes": features.Tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"),
                "zlib": features.Tensor(shape=(2, 3), dtype=np.float32, encoding="zlib"),
                "objects": features.Sequence(objects),
                "in_pixels": features.BBoxFeature(bbox_format="YXYX"),
                "corners": features.BBoxFeature(bbox_format="XYXY"),
                "three": features.Sequence(np.int64, length=3),
                "video": features.Video(shape=(None, 8, 8, 3)),
            }
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(fields))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(30), "test": self._generate_examples(7)}

        def _generate_examples(self, count):
            rng = np.random.default_rng(count)
            for number in range(count):
                yield number, sample(rng, number)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = Tiny(data_dir=str(tmp_path_factory.mktemp("tfds")))
        builder.download_and_prepare()
    return Path(builder.data_dir)


def test_values_names_shapes_and_classes(folder):
    report = index_tfrecords(folder)
    left_out = report.manifest.imported.left_out
    assert left_out.pop("corners").startswith("boxes of the form XYXY, whose order is not known; declare it")
    assert left_out == {
        "video": "a Video of TensorFlow Datasets",
        "zlib": "a tensor in TensorFlow Datasets' encoding 'zlib'",
    }
    data = tfprep.open(folder)
    assert {name: split.samples for name, split in data.splits.items()} == {"train": 30, "test": 7}
    assert list(data.class_names) == ["cat", "dog", "owl"]
    assert data.manifest.classes["labeled"] == ("sky", "road", "car")
    rows = {"objects_bbox": ["objects_label", "objects_name"], "in_pixels": []}
    assert data.manifest.recipe == {"row_fields": rows}
    shapes = {name: (spec.kind, spec.shape) for name, spec in data.fields.items()}
    assert shapes == {
        "image": ("image", (None, None, 3)), "gray": ("image", (8, 8, 1)), "segmentation_mask": ("mask", (None, None)),
        "label": ("label", ()), "file_name": ("text", ()), "matrix": ("scalar", (3, 2)), "flag": ("scalar", ()),
        "bytes": ("scalar", (2, 3)), "objects_bbox": ("boxes", (None, 4)), "in_pixels": ("boxes", (1, 4)),
        "labeled": ("mask", (None, None)), "classes_label": ("mask", (None, None)), "objects_label": ("scalar", (None,)),
        "objects_name": ("text", (None,)), "three": ("scalar", (3,)),
    }  # fmt: skip
    theirs = tfds.builder_from_directory(str(folder)).as_dataset(split="train", shuffle_files=False)
    loader = data.numpy_loader("train", 7, training=False)
    ours = [
        {name: values[row] for name, values in batch.items()} for batch in loader for row in range(len(batch["label"]))
    ]
    assert len(ours) == 30
    for mine, other in zip(ours, theirs.as_numpy_iterator(), strict=True):
        for name in ("image", "gray", "label", "matrix", "flag", "bytes", "three"):
            assert np.array_equal(mine[name], other[name]), name
        for name in ("segmentation_mask", "labeled", "classes_label"):
            assert np.array_equal(mine[name], other[name][..., 0]), name
        assert mine["file_name"].encode() == other["file_name"]
        height, width = other["image"].shape[:2]
        yxyx = other["objects"]["bbox"].reshape(-1, 4) * np.array([height, width, height, width], np.float32)
        np.testing.assert_allclose(mine["objects_bbox"], yxyx[:, [1, 0, 3, 2]], rtol=1e-6)
        assert np.array_equal(mine["in_pixels"], other["in_pixels"][[[1, 0, 3, 2]]])
        assert np.array_equal(mine["objects_label"], other["objects"]["label"])
        assert [name.encode() for name in mine["objects_name"]] == other["objects"]["name"].tolist()
    where = (pc.field("label") == data.classes["label"].index("cat")) & (pc.field("flag") == 1)
    cats = data.numpy_loader("train", 30, training=False, where=where, fields=["label", "flag"])
    (batch,) = cats
    assert batch["label"].tolist() == [0] * 5
    counts = next(iter(data.manifest.class_counts["label"].values()))
    assert counts == (10, 10, 10)


def test_what_is_declared_adds_to_what_tensorflow_datasets_says(folder, tmp_path):
    declared = tmp_path / "declared.json"
    declared.write_text('{"corners": {"kind": "boxes", "format": "xyxy"}, "label": {"classes": ["a", "b", "c"]}}')
    manifest = index_tfrecords(folder, "test", tmp_path / "out", features=declared).manifest
    assert [manifest.fields[name].spec.kind for name in ("corners", "objects_bbox", "labeled")] == [
        "boxes",
        "boxes",
        "mask",
    ]
    assert (manifest.classes["label"], manifest.classes["labeled"]) == (("a", "b", "c"), ("sky", "road", "car"))


def test_a_split_or_a_record_that_is_not_there(folder, tmp_path):
    with pytest.raises(DatasetError, match="has no split 'validation'; it has train, test"):
        index_tfrecords(folder, "validation", tmp_path)
    only = index_tfrecords(folder, "test", tmp_path / "only")
    assert list(only.manifest.splits) == ["test"]
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("tfprep-index"))
    info = json.loads((copy / "dataset_info.json").read_text())
    for change, message in (
        (lambda: info["splits"][0].update(shardLengths=["31"]), r"holds 30 records, dataset_info\.json says 31"),
        (lambda: info["splits"][0].update(shardLengths=[1e999]), "an entry of its splits is damaged"),
        (lambda: info["splits"][0].pop("shardLengths"), r"names no shards of \w+; index the other splits one by one"),
        (lambda: info.update(fileFormat="array_record"), "format 'array_record'; an index is of TFRecord files"),
    ):
        change()
        (copy / "dataset_info.json").write_text(json.dumps(info))
        for on_bad in ("raise", "skip"):
            with pytest.raises(DatasetError, match=message):
                index_tfrecords(copy, on_bad=on_bad)


def test_boxes_of_versions_without_other_forms_are_shares(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("tfprep-index"))
    text = (copy / "features.json").read_text()
    (copy / "features.json").write_text(re.sub(r'"-?[0-9]+"', "1e999", text))
    with pytest.raises(DatasetError, match=r"features\.json: an entry is damaged"):
        index_tfrecords(copy, "test")
    assert '"bboxFormat": "REL_YXYX"' in text
    (copy / "features.json").write_text(re.sub(r'"bboxFormat": "REL_YXYX",?', "", text).replace(",\n}", "\n}"))
    assert index_tfrecords(copy, "test").manifest.fields["objects_bbox"].codec["format"] == "rel_yxyx"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("cat\n\ndog\x85 or wolf\u2028\r\nowl\x0bl", None),
        ("", None),
        ("café".encode("latin-1"), "label.labels.txt is not UTF-8"),
        (None, "label.labels.txt is not a regular file"),
    ],
)
def test_class_names_are_those_of_tensorflow_datasets_or_an_error(folder, tmp_path, names, message):
    """They are not left out where their file cannot be read: None stands for a folder in its place."""
    copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("tfprep-index"))
    path = copy / "label.labels.txt"
    path.unlink()
    if names is None:
        path.mkdir()
    else:
        path.write_bytes(names if isinstance(names, bytes) else names.encode())
    if message is None:
        theirs = class_label_feature._load_names_from_file(path)
        assert list(index_tfrecords(copy).manifest.classes.get("label", [])) == theirs
        return
    with pytest.raises(DatasetError, match=message):
        index_tfrecords(copy)
