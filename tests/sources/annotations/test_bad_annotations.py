"""One wrong annotation beside a right one, in each format: dropped and listed by default, else its image is rejected."""

import json

import pytest

from tests.sources.building import built, fields_of, folder
from tfprep import sources
from tfprep.errors import BuildError

YAML = "names: [cat]\ntrain: images/train\n"
XML = "<annotation>{}</annotation>"
OBJECT = "<object><name>cat</name><bndbox><xmin>{}</xmin><ymin>4</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox></object>"


def labelme(*corners):
    shapes = [{"label": "cat", "points": points, "shape_type": "polygon"} for points in corners]
    return json.dumps({"shapes": shapes, "imageHeight": 40, "imageWidth": 56})


FORMATS = {
    "voc": (sources.Voc, {}, "JPEGImages/a.png", {"Annotations/a.xml": XML.format(OBJECT.format(3, 9) + OBJECT.format(9, 3))}),
    "yolo": (
        sources.Yolo, {}, "images/train/a.png",
        {"data.yaml": YAML, "labels/train/a.txt": "0 0.5 0.5 0.25 0.25\n0 0.5 0.5 0 0.25\n0 1 2\n"},
    ),
    "labelme": (sources.LabelMe, {}, "a.png", {"a.json": labelme([[1, 2], [9, 2], [9, 8]], [[1, 2], [3, 4]])}),
    "table": (
        sources.ObjectTable, {"table": "t.csv", "image": "id", "boxes": ("x", "y", "X", "Y")}, "a.png",
        {"t.csv": "id,x,y,X,Y\na.png,1,2,9,8\na.png,5,5,5,9\na.png,a,b,c,d\n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_annotation_in_each_format(name, tmp_path):
    source, options, image, files = FORMATS[name]
    root = folder(tmp_path / "data", {image: 1, **files})
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        fields = fields_of(source(**options), root, tmp_path / "out")
    (one,) = fields.values()
    assert one["boxes"].shape == (1, 4)
    assert one["box_labels"].shape == (1,)
    with pytest.raises(BuildError, match="1 of 1 samples were rejected"):
        built(source(bad_annotations="reject", **options), root, tmp_path / "rejected")


TWICE = {
    "voc": {"Annotations/a.xml": XML.format(OBJECT.format(3, 9) * 2 + OBJECT.format(3, 10))},
    "yolo": {"labels/train/a.txt": "0 0.5 0.5 0.25 0.25\n" * 2 + "0 0.5 0.5 0.25 0.5\n"},
    "labelme": {"a.json": labelme(*[[[1, 2], [9, 2], [9, 8]]] * 2, [[1, 2], [9, 2], [9, 7]])},
    "table": {"t.csv": "id,x,y,X,Y\na.png,1,2,9,8\na.png,1,2,9,8\na.png,1,2,9,7\n"},
}


@pytest.mark.parametrize("name", TWICE)
def test_an_object_that_is_annotated_twice_counts_once(name, tmp_path):
    """As after two exports of one project were joined. An object that differs is another one."""
    source, options, image, files = FORMATS[name]
    root = folder(tmp_path / "data", {image: 1, **files, **TWICE[name]})
    with pytest.warns(UserWarning, match="1 samples have warnings"):
        fields = fields_of(source(**options), root, tmp_path / "out")
    (one,) = fields.values()
    assert one["boxes"].shape == (2, 4)


def test_one_class_in_two_spellings_of_unicode_is_one_class(tmp_path):
    """A Mac writes an accent as a letter of its own; JSON may have spaces around a name."""
    spelled = "caf\u00e9", "cafe\u0301"
    shapes = [{"label": f"{name} ", "points": [[1, 2], [9, 2], [9, 8]]} for name in spelled]
    objects = "".join(OBJECT.format(3, 9).replace("cat", name) for name in spelled)
    files = {"a.json": json.dumps({"shapes": shapes}), "Annotations/a.xml": XML.format(objects)}
    boxes = [{"image_id": 1, "category_id": number, "bbox": [1, 2, 3, 4]} for number in (1, 2)]
    categories = [{"id": number, "name": name} for number, name in enumerate(spelled, 1)]
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": boxes, "categories": categories}
    root = folder(tmp_path, {"a.png": 1, "JPEGImages/a.png": 1, "coco/t.json": json.dumps(content), **files})
    labelme, voc = sources.LabelMe("a", "a.json"), sources.Voc()
    given = sources.Voc(classes=spelled[1:])
    for source in (labelme, voc, sources.Coco("coco/t.json", "{file_name}"), given):
        listing = source.scan(root)
        assert listing.classes == {"box_labels": ("caf\u00e9",)}
        ((objects,),) = [entry.values for entry in listing.entries]
        assert [one["label"] for one in objects["objects"]] == [0, 0]


def test_files_are_found_in_either_spelling_of_unicode(tmp_path):
    """A table or a JSON file of Linux names files that a Mac has packed."""
    root = folder(tmp_path, {"cafe\u0301.png": 1, "t.csv": "id,x\ncaf\u00e9.png,1\n"})
    images = [{"id": 1, "file_name": "caf\u00e9.png"}]
    (root / "t.json").write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    tables = sources.Table("t.csv", "id"), sources.ObjectTable("t.csv", "id", "x", fields=("box_labels",))
    for source in (*tables, sources.Coco("t.json", "{file_name}")):
        (entry,) = source.scan(root).entries
        assert (entry.key, entry.files) == ("caf\u00e9.png", ("cafe\u0301.png",))
