"""Tables of objects, compared with the rows that were written: boxes in every form, and rows that are wrong."""

import numpy as np
import pytest

from tests.sources.building import built, write_picture
from tfprep import convert_boxes
from tfprep.errors import SourceError
from tfprep.fields import BOX_FORMATS
from tfprep.sources import ObjectTable

HEIGHT, WIDTH = 40, 56
BOXES = np.array([[14, 10, 42, 30], [2, 3, 20, 25]], np.float64)


def table(root, *lines, images=2):
    for number in range(images):
        write_picture(root / f"raw/{number}.png", number, HEIGHT, WIDTH)
    (root / "raw/t.csv").write_text("".join(f"{line}\n" for line in lines))
    return root / "raw"


@pytest.mark.parametrize("form", BOX_FORMATS)
@pytest.mark.parametrize("columns", [("a", "b", "c", "d"), "all"], ids=["four columns", "one column"])
def test_boxes_in_every_form(tmp_path, form, columns):
    rows = convert_boxes(BOXES, form, size=(HEIGHT, WIDTH)).tolist()
    if columns == "all":
        lines = ["id,kind,all", *(f'{n % 2},x,"{row}"' for n, row in enumerate(rows))]
    else:
        lines = ["id,kind,a,b,c,d", *(f"{n % 2},x,{','.join(map(str, row))}" for n, row in enumerate(rows))]
    root = table(tmp_path, *lines)
    fields, rejected = built(ObjectTable("t.csv", "{id}.png", "kind", columns, form), root, tmp_path / "out")
    assert not rejected
    for number in range(2):
        np.testing.assert_allclose(fields[f"{number}.png"]["boxes"], BOXES[number : number + 1], atol=1e-4)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0.png,x,1,2,3,", "t.csv: row 2: expected the four numbers of a box"),
        ("0.png,x,1,2,3,z", "t.csv: row 2: expected a number; got 'z'"),
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
