"""Wrong options of every source, and of `Fractions` and `Pixels`: each is named when the recipe is read, before any data."""

import pytest

from tfprep import sources
from tfprep.errors import RecipeError

ALL = sources.Fractions(train=1.0)
BY_LABEL = sources.Fractions(train=1.0, stratify="label")
BY_PATIENT = sources.Fractions(train=1.0, group_by="PatientID")
NEEDED = {
    sources.Fractions: {"train": 1.0},
    sources.ObjectTable: {"table": "t.csv", "image": "id"},
    sources.Table: {"table": "t.csv", "image": "file"},
    sources.Video: {"videos": "*.mkv"},
}
"""Options that the cases of a source leave out."""
NO_CLASS = "a class name has no spaces around it, no line breaks"
OF_COCO = {"annotations": "a.json", "images": "{file_name}"}
PAIR = {"image": "a/*", "mask": "b/*"}
CASES = {
    sources.Folder: [
        ({"image": "*", "classes": ("a",)}, "classes need {label}"),
        ({"classes": ("a", "a")}, "each class once; 'a' comes twice"),
        ({"classes": "cat"}, "expected a tuple of class names; got 'cat'"),
        ({"classes": 3}, "expected a tuple of class names"),
        ({"classes": ("a", 3)}, "expected a tuple of class names"),
        *(({"classes": ("dog", name)}, NO_CLASS) for name in ("cat ", " cat", "c\nat", "c\x1b[31mat")),
        ({"splits": ("train",)}, "has no {split}"),
        ({"splits": "train"}, "expected splits to be Fractions"),
        ({"splits": 0.8}, "expected splits to be Fractions"),
        ({"image": "{split}/*", "splits": ALL}, "already gives the splits"),
        ({"image": "**", "splits": BY_LABEL}, "stratify='label' names no label field"),
        ({"splits": sources.Fractions(train=1.0, stratify="breed")}, "stratify='breed' names no label field"),
        ({"splits": sources.Fractions(train=1.0, group_by="patient")}, "group_by='patient' would be a column"),
        ({"image": "**", "splits": sources.Fractions(train=1, group_by="scanner")}, "for DICOM one of PatientID"),
        ({"image": "**", "pixels": {"mask": sources.Pixels()}}, "names no image and no map"),
    ],
    sources.Paired: [
        ({"image": "*"}, "expected a mask or fields beside the image"),
        ({"image": "*.png", "mask": "*.png"}, "the patterns of image and mask are one"),
        ({"image": "i/*", "mask": "m/{split}/*"}, "{split} in mask='m/{split}/\\*' has no counterpart in"),
        ({"image": "i/*", "mask": "m/*/*"}, "'\\*' in mask='m/\\*/\\*' has no counterpart"),
        ({"image": "i/*", "mask": "m/**"}, "'\\*\\*' in mask='m/\\*\\*' has no counterpart"),
        ({"image": "i/*", "fields": {"d": "d/*"}}, r"expected fields\['d'\] to be \(kind, text\)"),
        ({"image": "i/*", "fields": {"d": ("boxes", "d/*")}}, "with a kind of image, mask, map"),
        ({"image": "i/*", "fields": {"mask": ("mask", "d/*")}}, "'mask' is an option of its own"),
        ({"image": "i/*", "fields": {"d": ("map", "d/*")}, "classes": ("a",)}, "there is no mask"),
        ({"image": "i/*", "fields": {"d": ("map", "d/*")}, "numbers": {0: 1}}, "there is no mask"),
        ({**PAIR, "splits": ("train",)}, "has no {split}"),
        ({**PAIR, "splits": sources.Fractions(train=1.0, stratify="mask")}, "names no label field"),
        *(({**PAIR, "numbers": numbers}, "map to class numbers") for numbers in ({0: -1}, {"a": 1})),
        *(({**PAIR, "palette": one}, "map to class numbers") for one in ({(1, 2): 0}, {(1, 2, 300): 0}, [1])),
    ],
    sources.Table: [
        ({"table": "t.xlsx"}, r"expected table to end in .csv, .tsv, .jsonl, .ndjson, .parquet; got 't.xlsx'"),
        ({"table": "t"}, "expected table to end in"),
        ({"label": "species", "classes": ("cat", "dog")}, "classes are by field"),
        *(
            (one, "to be the name of a column")
            for one in ({"image": object()}, {"image": ""}, {"label": 3}, {"key": b"x"})
        ),
        ({"fields": {"n": "n"}}, r"expected fields\['n'\] to be \(kind, text\)"),
        ({"fields": {"n": ("number", "n")}}, "with a kind of image, mask, map, boxes, points, label, scalar, text"),
        ({"fields": {"image": ("image", "n")}}, "'image' is an option of its own: image='n'"),
        ({"classes": {"label": ("a",)}}, "'label' is neither"),
        ({"classes": {"image": ("a",)}}, "'image' is neither"),
        ({"label": ("a", "b"), "classes": {"label": ("a", "b")}}, "the columns of label are the names of its classes"),
        ({"splits": 0.8}, "expected splits to be a column, Fractions"),
        ({"table": "{split}.csv", "splits": "set"}, "already gives the splits"),
        ({"splits": BY_LABEL}, "stratify='label' names no label field; those are none"),
        ({"fields": {"b": ("boxes", "b")}, "box_format": "coco"}, "Table: box_format: a form of boxes is one of"),
        ({"fields": {"b": ("boxes", "b")}, "outside": "keep"}, "Table: outside is 'reject' or 'cut'"),
    ],
    sources.Archives: [
        ({"archives": "*.rar"}, r"to end in \.tar or \.zip"),
        ({"fields": {"mask": "seg.png"}}, "to be \\(kind, text\\)"),
        ({"fields": {"label": ("label", "cls")}}, "is an option of its own"),
        ({"splits": BY_LABEL}, "names no label field"),
        ({"archives": "{split}/*.tar", "splits": ALL}, "already gives the splits"),
    ],
    sources.Arrays: [
        ({"image": "x.npz"}, "Arrays: "),
        ({"image": "x.npy:a"}, "Arrays: "),
        ({"image": "x.npy", "splits": BY_LABEL}, "Arrays: "),
        ({"image": "x.npy", "splits": BY_PATIENT}, "for DICOM one of PatientID.* in a Folder or Paired"),
    ],
    sources.Video: [
        ({"every": 0}, "number of frames from 1"),
        ({"videos": "*.m3u8", "every": 1}, r"to end in \.mp4"),
        ({"every": 1, "splits": BY_PATIENT}, "give a regular expression"),
        ({"every": 1, "splits": BY_LABEL}, "cannot be stratified"),
    ],
    sources.Coco: [
        ({"fields": ("box",)}, "expected fields to be a tuple of boxes"),
        ({"unannotated": "drop"}, "Coco: unannotated is one of"),
        ({"outside": "keep"}, "Coco: outside is one of"),
        ({"bad_annotations": "keep"}, "Coco: bad_annotations is one of 'drop', 'reject'; got 'keep'"),
        ({"annotations": "a.xml"}, "ends in .json"),
        ({"images": "{name}"}, r"\{name} stands for nothing"),
        ({**OF_COCO, "splits": BY_LABEL}, "stratify"),
    ],
    sources.Voc: [
        ({"first_pixel": 2}, "first_pixel is 0 or 1"),
        ({"fields": ("boxes", "instances")}, "add 'box_numbers' to fields"),
        ({"annotations": "{year}/*.xml"}, "has no counterpart in"),
        (
            {"images": "JPEGImages/{name}", "sets": "ImageSets/{split}.txt", "annotations": "Annotations/{name}.xml"},
            "stand for",
        ),
    ],
    sources.LabelMe: [
        ({"images": "*.png", "annotations": "**/*.json"}, "has no counterpart in"),
        ({"splits": BY_LABEL}, "names no label field"),
        ({"splits": BY_PATIENT}, "for DICOM one of PatientID.* in a Folder or Paired"),
    ],
    sources.Yolo: [({"data": "data.json"}, "a YAML file")],
    sources.ObjectTable: [
        ({"table": "t.txt"}, "expected table to end in .csv"),
        ({"boxes": ("a", "b")}, "boxes are one column or four"),
        ({"boxes": None}, "boxes need columns"),
        ({"boxes": "a", "box_format": "xxyy"}, "a form of boxes is one of"),
        ({"boxes": "a", "split": "set", "splits": ALL}, "the column 'set' gives the splits"),
    ],
    sources.Without: [
        (
            {"source": "leaks.csv", "path": sources.Folder()},
            r"Without: expected a source, such as sources.Folder\(\); got 'leaks.csv'",
        )
    ],
    sources.Fractions: [
        ({"train": 0.8}, "add up to 1"),
        ({"train": 0.8, "val": 0.3}, "add up to 1"),
        ({"train": 1.2, "val": -0.2}, "from 0 to 1"),
        ({"train": float("nan")}, "from 0 to 1"),
        ({"train": "0.8", "val": 0.2}, "from 0 to 1"),
        ({"stratify": True}, "stratify is the name of a label field .* got True"),
        ({"group_by": "(a"}, "is not a regular expression"),
        ({"group_by": "(a)", "stratify": "label"}, "give one of stratify and group_by"),
        ({"group_by": "(?:a)"}, "expected a group in group_by"),
        ({"group_by": 3}, "a regular expression, a column or a function; got 3"),
    ],
    sources.Pixels: [
        ({"to": "int8"}, "Pixels: .*to is 'uint8'"),
        ({"low": 0, "high": 1}, "Pixels: .*need to='uint8'"),
        ({"to": "uint8", "low": 0}, "Pixels: .*expected low < high, both or neither"),
        ({"to": "uint8", "low": 2, "high": 1}, "Pixels: .*expected low < high"),
        ({"channels": ()}, "Pixels: .*channels is a tuple of numbers"),
        ({"page": -1}, "Pixels: .*page is a number"),
        *(({"background": one}, "background") for one in ((1, 2), (0, 0, 256))),
        ({"background": (0, 0, 0), "to": "uint8"}, "background"),
    ],
}


@pytest.mark.parametrize(
    ("source", "options", "message"), [(source, *case) for source, cases in CASES.items() for case in cases]
)
def test_a_wrong_option_is_named(source, options, message):
    with pytest.raises(RecipeError, match=message):
        source(**NEEDED.get(source, {}) | options)
