"""Boxes in tables: the form that they are written in, and what is not a box."""

import json

import numpy as np
import pytest

from tests.sources.building import built, write_picture
from tfprep import sources


def table(root, rows):
    for number, name in enumerate(rows):
        write_picture(root / f"{name}.png", number)
    lines = [json.dumps({"path": f"{name}.png", "boxes": boxes}) for name, boxes in rows.items()]
    (root / "rows.jsonl").write_text("\n".join(lines))
    return root


def source(**options):
    return sources.Table("rows.jsonl", image="path", fields={"boxes": ("boxes", "boxes")}, **options)


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("xyxy", [14, 10, 42, 30]),
        ("yxyx", [10, 14, 30, 42]),
        ("xywh", [14, 10, 28, 20]),
        ("center_xywh", [28, 20, 28, 20]),
        ("rel_xyxy", [0.25, 0.25, 0.75, 0.75]),
        ("rel_yxyx", [0.25, 0.25, 0.75, 0.75]),
        ("rel_center_xywh", [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_boxes_leave_as_corners_in_pixels(tmp_path, form, row):
    root = table(tmp_path / "data", {"a": [row], "none": []})
    fields, rejected = built(source(box_format=form), root, tmp_path / "out")
    assert not rejected
    np.testing.assert_allclose(fields["a.png"]["boxes"], [[14, 10, 42, 30]])
    assert fields["none.png"]["boxes"].shape == (0, 4)


def test_what_is_no_box_rejects_its_sample(tmp_path):
    rows = {
        "coco": ([[1, 1, 9, 9], [14, 10, 8, 20]], "box 1: its box [14, 10, 8, 20] covers no pixel"),
        "flat": ([[14, 10, 20, 10]], "box_format='xywh'"),
        "shares": (
            [[0.25, 0.25, 0.75, 0.75]],
            "are these shares of width and height (in tables: box_format='rel_xyxy')?",
        ),
        "far": ([[14, 10, 70, 20]], "box 0: its box [14, 10, 70, 20] reaches outside the image of 56 x 40"),
        "three": ([[1, 2, 3]], "cannot reshape"),
        "text": ([["a", 1, 2, 3]], "could not convert"),
        "nan": ([[float("nan"), 1, 2, 3]], "holds NaN or infinity"),
        "nothing": (None, "the listing has no value for it"),
        "rounded": ([[-0.5, 0, 56.75, 40]], ""),
    }
    root = table(tmp_path / "data", {name: boxes for name, (boxes, _) in rows.items()})
    fields, rejected = built(source(), root, tmp_path / "out")
    for name, (_, reason) in rows.items():
        assert reason in rejected[f"{name}.png"] if reason else f"{name}.png" in fields
    np.testing.assert_array_equal(fields["rounded.png"]["boxes"], [[0, 0, 56, 40]])
    fields, rejected = built(source(outside="cut"), root, tmp_path / "cut")
    np.testing.assert_array_equal(fields["far.png"]["boxes"], [[14, 10, 56, 20]])


def test_a_source_without_some_samples_keeps_how_fields_are_made(tmp_path):
    root = table(tmp_path / "data", {"a": [[14, 10, 28, 20]], "b": []})
    (tmp_path / "leaks.csv").write_text("key\nb.png\n")
    wrapped = sources.Without(source(box_format="xywh"), tmp_path / "leaks.csv")
    fields, _ = built(wrapped, root, tmp_path / "out")
    assert list(fields) == ["a.png"]
    np.testing.assert_array_equal(fields["a.png"]["boxes"], [[14, 10, 42, 30]])
