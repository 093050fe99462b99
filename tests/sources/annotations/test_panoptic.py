"""COCO's panoptic format, written as its specification says, built and loaded."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.sources.building import built, write_picture
from tfprep import sources
from tfprep.errors import RecipeError

SIZE = 40, 56
CATEGORIES = [
    {"id": 4, "name": "cat", "isthing": 1}, {"id": 9, "name": "sky", "isthing": 0}, {"id": 2, "name": "dog", "isthing": 1},
]  # fmt: skip


def segment(number, category, box=(0, 0, 9, 9), crowd=0):
    return {"id": number, "category_id": category, "bbox": list(box), "iscrowd": crowd, "area": 1}


def test_masks_and_boxes(tmp_path):
    root = tmp_path / "data"
    ids = np.zeros(SIZE, np.int64)
    ids[:10] = 70_000
    ids[12:20, 5:15] = 300
    ids[22:30, 5:15] = 5
    ids[32:, 40:] = 1 << 23
    segments = [
        segment(70_000, 9), segment(300, 4, (5, 12, 10, 8)), segment(5, 2, (5, 22, 10, 8)), segment(1 << 23, 4, crowd=1),
    ]  # fmt: skip
    cases = {
        "good": (segments, ""),
        "more": ([*segments, segment(6, 4)], "segment 6 is in the JSON file, but not in the PNG"),
        "less": (segments[:2], "segment 5 is in the PNG, but not in the JSON file"),
        "class": ([segment(5, 77)], "segment 5: there is no category 77"),
        "none": (None, "No such file"),
        "lost": (segments, "No such file"),
    }
    (root / "annotations").mkdir(parents=True)
    (root / "panoptic_val").mkdir()
    annotations = []
    for number, (name, (info, _)) in enumerate(cases.items()):
        write_picture(root / f"val/{name}.png", number)
        if name != "lost":
            rgb = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
            Image.fromarray(rgb).save(root / f"panoptic_val/{name}_p.png")
        if info is not None:
            annotations.append({"image_id": number, "file_name": f"{name}_p.png", "segments_info": info})
    images = [
        {"id": n, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]} for n, name in enumerate(cases)
    ]
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    (root / "annotations/panoptic_val.json").write_text(json.dumps(content))
    source = sources.CocoPanoptic(fields=("mask", "instances", "boxes", "box_labels", "box_numbers"))
    fields, rejected = built(source, root, tmp_path / "out", fill={"mask": 255})
    for name, (_, reason) in cases.items():
        assert reason in rejected.get(f"val/{name}.png", "")
        assert bool(reason) == (f"val/{name}.png" not in fields)
    row = fields["val/good.png"]
    names = {0: 0, 70_000: 3, 300: 2, 5: 1, 1 << 23: 255}  # dog, cat, sky by id, after background
    numbers = {0: 0, 70_000: 0, 300: 1, 5: 2, 1 << 23: 255}
    np.testing.assert_array_equal(row["mask"], np.vectorize(names.get)(ids))
    np.testing.assert_array_equal(row["instances"], np.vectorize(numbers.get)(ids))
    np.testing.assert_array_equal(row["boxes"], [[5, 12, 15, 20], [5, 22, 15, 30]])
    assert (row["box_labels"].tolist(), row["box_numbers"].tolist()) == ([1, 0], [1, 2])


@pytest.mark.parametrize(("crowds", "number"), [("keep", 3), ("skip", 0)])
def test_crowds(crowds, number, tmp_path):
    (tmp_path / "panoptic").mkdir()
    png = tmp_path / "panoptic/a.png"
    Image.fromarray(np.array([[[1, 0, 0], [2, 0, 0], [3, 0, 0]]], np.uint8)).save(png)
    info = [segment(1, 4), segment(2, 4), segment(3, 4, crowd=1)]
    content = {
        "images": [{"id": 0, "file_name": "a.png", "height": 1, "width": 3}],
        "annotations": [{"image_id": 0, "file_name": "a.png", "segments_info": info}],
        "categories": CATEGORIES,
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    source = sources.CocoPanoptic("a.json", "{file_name}", "panoptic/{file_name}", crowds, fields=("instances",))
    (entry,) = source.scan(tmp_path).entries
    raw = {"segments": png.read_bytes(), "objects": entry.values[0]}
    assert source.decoders()["instances"].decode(raw, (1, 3)).tolist() == [[1, 2, number]]


def test_a_thing_with_a_wrong_box_rejects_its_image(tmp_path):
    """Without it the numbers of the boxes would not be those of the instances."""
    (tmp_path / "panoptic").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.array([[[1, 0, 0], [2, 0, 0], [2, 0, 0]]], np.uint8)).save(tmp_path / "panoptic" / name)
        write_picture(tmp_path / name, 1, 1, 3)
    info = {"a.png": [segment(1, 4, (0, 0, 0, 1)), segment(2, 4, (1, 0, 2, 1))]}
    info["b.png"] = [segment(1, 4, (0, 0, 1, 1)), segment(2, 4, (1, 0, 2, 1))]
    content = {
        "images": [{"id": n, "file_name": name, "height": 1, "width": 3} for n, name in enumerate(info)],
        "annotations": [
            {"image_id": n, "file_name": name, "segments_info": one} for n, (name, one) in enumerate(info.items())
        ],
        "categories": CATEGORIES,
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    options = {"fields": ("boxes", "instances", "box_numbers")}
    source = sources.CocoPanoptic("a.json", "{file_name}", "panoptic/{file_name}", **options)
    fields, rejected = built(source, tmp_path, tmp_path / "out")
    assert list(fields) == ["b.png"]
    assert "segment 1: its box [0, 0, 0, 1] covers no pixel" in rejected["a.png"]
    with pytest.raises(RecipeError, match="CocoPanoptic: bad_annotations is one of 'reject'; got 'drop'"):
        sources.CocoPanoptic(bad_annotations="drop")
