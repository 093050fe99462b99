"""Boxes in tables of objects and of images: in every form, and rows that are wrong."""

import json

import numpy as np
import pytest

from tests.sources.building import built, check_rejected, fields_of, folder, write_picture
from tfprep.errors import SourceError
from tfprep.fields import BOX_FORMATS
from tfprep.sources import ObjectTable, Table, Without

HEIGHT, WIDTH = 40, 56


def table(root, *lines, images=2):
    text = "".join(f"{line}\n" for line in lines)
    return folder(root / "raw", {"t.csv": text, **{f"{number}.png": number for number in range(images)}})


FORMS = {
    "xyxy": [14, 10, 42, 30],
    "yxyx": [10, 14, 30, 42],
    "xywh": [14, 10, 28, 20],
    "center_xywh": [28, 20, 28, 20],
    "center_yxhw": [20, 28, 20, 28],
    "rel_xyxy": [0.25, 0.25, 0.75, 0.75],
    "rel_yxyx": [0.25, 0.25, 0.75, 0.75],
    "rel_xywh": [0.25, 0.25, 0.5, 0.5],
    "rel_center_xywh": [0.5, 0.5, 0.5, 0.5],
}
"""The box from (14, 10) to (42, 30) in an image of 56 x 40."""


@pytest.mark.parametrize("form", BOX_FORMATS)
def test_boxes_in_every_form_become_corners_in_pixels(tmp_path, form):
    """In tables of objects, whose boxes are in four columns or one, and in tables of images."""
    row = FORMS[form]
    root = table(tmp_path, "id,all,a,b,c,d", f'0,"{row}",{",".join(map(str, row))}')
    for columns in (("a", "b", "c", "d"), "all"):
        source = ObjectTable("t.csv", "{id}.png", boxes=columns, box_format=form)
        fields = fields_of(source, root, tmp_path / f"of{columns}")
        np.testing.assert_allclose(fields["0.png"]["boxes"], [[14, 10, 42, 30]])
    fields = fields_of(of_images(root, {"0": [row], "1": []}, box_format=form), root, tmp_path / "images")
    np.testing.assert_allclose(fields["0.png"]["boxes"], [[14, 10, 42, 30]])
    assert fields["1.png"]["boxes"].shape == (0, 4)


def of_images(root, boxes, **options):
    """A table with a row for each image."""
    lines = [json.dumps({"path": f"{name}.png", "boxes": value}) for name, value in boxes.items()]
    (root / "rows.jsonl").write_text("\n".join(lines))
    return Table("rows.jsonl", image="path", fields={"boxes": ("boxes", "boxes")}, **options)


def test_what_is_not_a_box_in_a_table_of_images_rejects_its_sample(tmp_path):
    rows = {
        "coco": ([[1, 1, 9, 9], [14, 10, 8, 20]], "box 1: its box [14, 10, 8, 20] covers no pixel"),
        "flat": ([[14, 10, 20, 10]], "box_format='xywh'"),
        "shares": ([[0.25, 0.25, 0.75, 0.75]], "are these shares of width and height (in tables: box_format='rel_xyxy')?"),
        "far": ([[14, 10, 70, 20]], "box 0: its box [14, 10, 70, 20] reaches outside the image of 56 x 40"),
        "three": ([[1, 2, 3]], "a box is a row of four numbers; got an array [1, 3]"),
        "scores": ([[1, 2, 3, 4, 0.5]] * 4, "a box is a row of four numbers; got an array [4, 5]"),
        "text": ([["a", 1, 2, 3]], "could not convert"),
        "nan": ([[float("nan"), 1, 2, 3]], "holds NaN or infinity"),
        "nothing": (None, "it has no value"),
        "rounded": ([[-0.5, 0, 56.75, 40]], ""),
    }  # fmt: skip
    for number, name in enumerate(rows):
        write_picture(tmp_path / f"raw/{name}.png", number, HEIGHT, WIDTH)
    boxes = {name: value for name, (value, _) in rows.items()}
    reasons = {f"{name}.png": reason for name, (_, reason) in rows.items()}
    fields = check_rejected(of_images(tmp_path / "raw", boxes), tmp_path / "raw", tmp_path / "out", reasons)
    np.testing.assert_array_equal(fields["rounded.png"]["boxes"], [[0, 0, 56, 40]])
    cut = of_images(tmp_path / "raw", boxes, outside="cut")
    np.testing.assert_array_equal(
        built(cut, tmp_path / "raw", tmp_path / "cut")[0]["far.png"]["boxes"], [[14, 10, 56, 20]]
    )


def test_a_source_without_some_samples_keeps_how_fields_are_made(tmp_path):
    root = table(tmp_path)
    (tmp_path / "leaks.csv").write_text("key\n1.png\n")
    wrapped = Without(of_images(root, {"0": [[14, 10, 28, 20]], "1": []}, box_format="xywh"), tmp_path / "leaks.csv")
    fields = fields_of(wrapped, root, tmp_path / "out")
    assert list(fields) == ["0.png"]
    np.testing.assert_array_equal(fields["0.png"]["boxes"], [[14, 10, 42, 30]])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0.png,x,1,2,3,", "t.csv: row 2: expected the four numbers of a box"),
        ("0.png,x,1,2,3,z", "t.csv: row 2: expected a finite number; got 'z'"),
        ("0.png,,1,2,3,4", "t.csv: row 2: 'kind' is empty"),
        ("0.png,x,5,2,3,4", "t.csv: row 2: its box [5, 2, 3, 4] covers no pixel"),
        ("0.png,x,5,2,99,4", "t.csv: row 2: its box [5, 2, 99, 4] reaches outside the image of 56 x 40"),
    ],
)
def test_a_wrong_row_rejects_its_image(tmp_path, row, reason):
    root = table(tmp_path, "id,kind,a,b,c,d", "0.png,x,1,2,3,4", row, "1.png,x,1,2,3,4")
    source = ObjectTable("t.csv", "id", "kind", ("a", "b", "c", "d"), bad_annotations="reject")
    fields, rejected = built(source, root, tmp_path / "out")
    assert set(fields) == {"1.png"}
    assert reason in rejected["0.png"]


def test_a_box_within_a_box_is_wrong(tmp_path):
    rows = [{"id": "0.png", "box": box} for box in ([1, 2, 3, 4], [1, 2, 3, [4]], [[1], [2], [3], [4]])]
    root = folder(tmp_path / "raw", {"t.jsonl": "\n".join(map(json.dumps, rows)), "0.png": 0})
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        fields = fields_of(ObjectTable("t.jsonl", "id", boxes="box"), root, tmp_path / "out")
    assert fields["0.png"]["boxes"].tolist() == [[1, 2, 3, 4]]


def test_decimal_commas_end_the_build(tmp_path):
    """Otherwise the boxes of whole numbers would be kept, and the others of the same image dropped."""
    root = table(tmp_path, "id;a;b;c;d", "0.png;1;2;10;20", "0.png;1,5;2;10,5;20")
    with pytest.raises(SourceError, match=r"t\.csv: row 2: 'a' is '1,5': decimal commas"):
        ObjectTable("t.csv", "id", boxes=("a", "b", "c", "d")).scan(root)


def test_undeclared_shares_reject_their_image_though_one_of_them_exceeds_1_by_rounding(tmp_path):
    root = table(tmp_path, "id,a,b,c,d", "0.png,.1,.2,.5,.6", "0.png,.1,.2,1.001,.9", "1.png,1,2,3,4")
    source = ObjectTable("t.csv", "id", boxes=("a", "b", "c", "d"))
    fields, rejected = built(source, root, tmp_path / "out")
    assert set(fields) == {"1.png"}
    assert "are these shares of width and height" in rejected["0.png"]


def test_images_without_objects_and_splits_by_column(tmp_path):
    lines = ["id,set,a,b,c,d", "0.png,train,,,,", "1.png,val,1,2,3,4"]
    root = table(tmp_path, *lines)
    options = {"boxes": ("a", "b", "c", "d"), "split": "set"}
    listed = {unannotated: list(ObjectTable("t.csv", "id", unannotated=unannotated, **options).scan(root).entries)
              for unannotated in ("keep", "skip")}  # fmt: skip
    assert {name: [(one.key, one.split) for one in found] for name, found in listed.items()} == {
        "keep": [("0.png", "train"), ("1.png", "val")],
        "skip": [("1.png", "val")],
    }


def test_a_table_without_rows_or_image_names(tmp_path):
    with pytest.raises(SourceError, match=r"no rows in t\.csv"):
        ObjectTable("t.csv", "id", boxes="b").scan(table(tmp_path, "id,b"))
    with pytest.raises(SourceError, match=r"t.csv: row 1: 'image': it is empty"):
        ObjectTable("t.csv", "id", boxes="b").scan(table(tmp_path, "id,b", ',"1 2 3 4"'))
