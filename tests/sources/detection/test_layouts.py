"""Layouts as people have them: `init` reads each as its maker meant it, or refuses it with a recipe that builds as it is."""

import json
import re
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tfprep
from tests.sources.building import picture, png, write_picture
from tfprep.builder import BuildOptions
from tfprep.errors import SourceError
from tfprep.recipe.template import recognized
from tfprep.sources.detection.detect import detect
from tfprep.sources.detection.facts import Reading
from tfprep.sources.raw import parse_reference
from tfprep.sources.source import read_files

pytest.importorskip("yaml")
pytest.importorskip("pycocotools")

HEIGHT, WIDTH = 40, 56
Truth = dict[str, tuple[str, Any]]
"""Path of an image to its split ("" where the layout has none) and its label, its objects, or its mask."""
ANY = ""
BOX = [14.0, 10.0, 42.0, 30.0]
"""x0, y0, x1, y1 of the one object of an image; in YOLO's form 0.5 0.5 0.5 0.5."""
OBJECTS = [("cat", BOX)]
CONTENT = {
    "line": "0 0.5 0.5 0.5 0.5\n",
    "names": "cat\ndog\n",
    "twice": "cat\ndog\ncat\n",
    "lists": "train: train.txt\nnames: [cat]\n",
    "coco128": "path: ../datasets/coco128\ntrain: images\nval: images\nnames: {0: cat}\n",
    "cvat": '<annotations><image id="0" name="a.jpg"></image></annotations>',
    "no_annotations": '{"images": [], "categories": []}',
    "voc": f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size><object><name>cat</name><bndbox>"
    "<xmin>15</xmin><ymin>11</ymin><xmax>42</xmax><ymax>30</ymax></bndbox></object></annotation>",
}

TAGS, SPLITS = ["a", "b", "a c", "c", "b c", "a b c", "a", "b"], ["training", "testing"]


def write(root: Path, path: str, content: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def mask(root: Path, path: str, *numbers: int) -> None:
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    for place, number in enumerate(numbers):
        pixels[:, place * 10 :] = number
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / path)


def lay_out(root: Path, text: str) -> list[str]:
    """Write files and return the paths of the pictures. `~` is a space in names, and `#` stands for 0 to 3.

    `a#` are pictures, `a#=0,1` masks of these numbers, `x.txt=line` a file of `CONTENT`. Of the pictures before it whose paths
    begin with `images/`, `labels.json=coco:images/` are annotations, `train.txt=list:images/` is a list, and
    `x.csv=rows:images/:HEADER:ROW` a table, with NAME, STEM, OTHER, LABEL (a or b), SPLIT, FLAGS and TAGS in each row.
    """
    pictures: list[str] = []
    for token in text.split():
        path, _, content = token.replace("~", " ").partition("=")
        for file in (path.replace("#", str(number)) for number in range(4)[: 1 + 3 * ("#" in path)]):
            kind, _, options = content.partition(":")
            prefix, _, form = options.partition(":")
            names = [Path(picture) for picture in pictures if picture.startswith(prefix)]
            if not content:
                pictures.append(file if file.endswith(".png") else f"{file}.jpg")
                write_picture(root / pictures[-1], len(pictures), HEIGHT, WIDTH)
            elif kind in CONTENT:
                write(root, file, CONTENT[kind])
            elif kind == "coco":
                write(root, file, json.dumps(coco_json([name.relative_to(prefix).as_posix() for name in names])))
            elif kind == "list":
                write(root, file, "\n".join(name.stem for name in names))
            elif kind == "rows":
                header, _, row = form.partition(":")
                rows = []
                for n, name in enumerate(names):
                    words = {"NAME": name.name, "STEM": name.stem, "OTHER": names[-1 - n].name, "LABEL": "ab"[n % 2]}
                    words |= {"FLAGS": ["1.0,0.0", "0.0,1.0"][n % 2], "FLAG": str(n % 2), "TAGS": TAGS[n % 8]}
                    words |= {"SPLIT": SPLITS[n // 2 % 2]}
                    filled = row
                    for word, value in words.items():
                        filled = filled.replace(word, value)
                    rows += filled.split(";")
                write(root, file, "\n".join([*filter(None, [header]), *rows]))
            else:
                mask(root, f"{file}.png", *map(int, content.split(",")))
    return pictures


def coco_json(names: list[str], **of_each: Any) -> dict[str, Any]:
    x0, y0, x1, y1 = BOX
    of_each |= {"width": WIDTH, "height": HEIGHT}
    of_image = {"category_id": 7, "bbox": [x0, y0, x1 - x0, y1 - y0], "area": 560.0, "iscrowd": 0}
    return {
        "images": [{"id": n, "file_name": name} | of_each for n, name in enumerate(names)],
        "annotations": [{"id": n, "image_id": n, **of_image} for n in range(len(names))],
        "categories": [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}],
    }


def a_or_b(number: int) -> str:
    return "ab"[number % 2]


READ: list[tuple[str, str | dict[str, str], Any]] = [
    ("Train/cat/a# Train/dog/b# Test/cat/c# Test/dog/d#", "{split}/{label}/*", None),
    ("train/cat/a# train/dog/b# test/c#", "(?P<split>train)/{label}/*", None),
    ("cat/train/a# dog/train/b# cat/test/c# dog/test/d#", "{label}/{split}/*", None),
    ("all/train/images/cat/a# all/train/images/dog/b# all/val/images/cat/c#", "all/{split}/images/{label}/*", None),
    ("set/ant/image_0# set/bee/image_0# set/bee/image_4", "set/{label}/*", None),
    ("cat/# dog/# classes.txt=names", "{label}/*", None),
    ("sea/a_train# city/pier#", "{label}/*", None),
    ("n01440764/a# n02102040/b#", "{label}/*", None),
    ("s1/a# s12/b#", "{label}/*", None),
    ("Type_1/a# Type_2/b#", "{label}/*", None),
    ("10/a# 500/b#", "{label}/*", None),
    ("Rain/a# Shine/b# Sunrise/c#", "{label}/*", None),
    ("train/images/a# valid/images/b#", "{split}/images/*", None),
    ("train/a# train/x.json=coco:train/ test/b# test/x.json=coco:test/ README_1.txt=names", "{split}/*", OBJECTS),
    ("train/a# annotations/train.json=coco:train/ annotations/info_test.json=no_annotations", "{split}/*", OBJECTS),
    ("images/train/a# images/val/b# labels.json=coco:images/", "images/{split}/*", OBJECTS),
    ("images/a# labels/a#.txt=line coco128.yaml=coco128", {"images/*": "train"}, OBJECTS),
    ("obj/a# obj/a#.txt=line obj.names=names obj.data=names train.txt=rows:obj/::data/NAME", "obj/*", OBJECTS),
    ("train/images/a# train/labels/a#.txt=line val/images/b# val/labels/b#.txt=line train/x.labels=names val/x.labels=names",
     "{split}/images/*", OBJECTS),
    ("images/a# labels/a#.txt=line train.txt=rows:images/::./images/NAME data.yaml=lists", {"images/*": "train"}, OBJECTS),
    ("JPEGImages/my~a# Annotations/my~a#.xml=voc JPEGImages/b# Annotations/b#.xml=voc "
     "SegmentationClass/my~a#=0,8 SegmentationClass/b#=0,8 "
     "ImageSets/Main/train.txt=list:JPEGImages/my ImageSets/Main/val.txt=list:JPEGImages/b",
     {"JPEGImages/my*": "train", "JPEGImages/b*": "val"}, OBJECTS),
    ("images/a# masks/a#=0,255", "images/*", (0, 1)),
    ("Original/a# Ground~Truth/a#=0,1", "Original/*", (0, 1)),
    ("images/image_# masks/mask_#=0,1", "images/*", (0, 1)),
    ("img_dir/train/a# img_dir/val/b# ann_dir/train/a#=0,1,2 ann_dir/val/b#=0,1,2", "img_dir/{split}/*", (0, 1, 2)),
    ("train/a# train_masks/a#=0,1 test/b#", {"train/*": "train"}, (0, 1)),
    ("traincrop/a# traincrop/a#=0,255 testcrop/b# testcrop/b#=0,255", "{split}crop/*", (0, 1)),  # as CRACK500
    ("training/images/a#_training training/1st_manual/a#_manual1=0,255", "{split}/images/*", (0, 1)),  # as DRIVE
    ("train_img/a# train_lab/a#=0,255", "{split}_img/*", (0, 1)),  # as DeepCrack
    ("train/#_sat train/#_mask=0,1,2", {"train/*": "train"}, (0, 1, 2)),
    ("images/Image_0#L labels/Image_0#L_1st_manual=0,1", "images/*", (0, 1)),
    ("train/a#.png val/b#.png trainannot/a#=0,11 valannot/b#=0,11", "{split}/*", (0, 11)),
    ("images/a# images/t# train.csv=rows:images/a:image_id,a,b:STEM,FLAGS test.csv=rows:images/t:image_id:STEM "
     "a_submission.csv=rows:images/t:image_id,a:STEM,1",
     {"images/a*": "train"}, a_or_b),
    ("im/a# im/t# Training_x.csv=rows:im/a:id,label:STEM,LABEL Testing_x.csv=rows:im/t:id:STEM", {"im/a*": "Training"}, a_or_b),
    ('train/a# train/metadata.jsonl=rows:train/::{"file_name":"NAME","label":"LABEL"} '
     'test/b# test/metadata.jsonl=rows:test/::{"file_name":"NAME","label":"LABEL"}', "{split}/*", a_or_b),
    ('train/a# train/metadata.jsonl=rows:train/::{"file_name":"NAME","objects":{"bbox":[[14,10,28,20]],"category":["cat"]}}',
     "{split}/*", OBJECTS),
    ("images/a# l.csv=rows:images/:filename,width,height,class,xmin,ymin,xmax,ymax:"
     "NAME,56,40,cat,14,10,42,30;NAME,56,40,dog,14,10,42,30", "images/*", [("cat", BOX), ("dog", BOX)]),
    ("part_1/a# part_2/b# metadata.csv=rows::image_id,dx:STEM,LABEL", "part_*/*", a_or_b),
    ("im/# t.csv=rows:im/:id,class~id,labels:NAME,FLAG,LABEL", "im/*", a_or_b),
    ("images/a# images/b# train.csv=rows:images/:image,labels:STEM,TAGS", "images/*", lambda number: TAGS[number].split()),
    ("im/# t.csv=rows:im/:image,label,ml_use:im/NAME,LABEL,SPLIT",  # as AutoML's
     {"im/[01].jpg": "training", "im/[23].jpg": "testing"}, a_or_b),
]  # fmt: skip
"""Files, the pattern of the images that are read (or patterns with their splits), and what each image has."""


def masks_of_colors(root: Path) -> Truth:
    """As CamVid of Kaggle: the names of masks end in _L."""
    paths = lay_out(root, "train/a#.png val/b#.png")
    for path in paths:
        pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        pixels[:, :9] = 64, 128, 64
        split, name = path.split("/")
        (root / f"{split}_labels").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / f"{split}_labels/{Path(name).stem}_L.png")
    return {path: (path.split("/")[0], (0, 1)) for path in paths}


def class_folders_in_zips(root: Path) -> Truth:
    names = lay_out(root, "cat/a.1# dog/b.1#")
    for split in ("train", "val"):
        with zipfile.ZipFile(root / f"{split}.zip", "w") as archive:
            archive.writestr("README.txt", "of cats and dogs")
            for name in names:
                archive.write(root / name, name)
    for name in names:
        (root / name).unlink()
    return {f"{split}.zip/{name}": (split, name.split("/")[0]) for split in ("train", "val") for name in names}


def tar_of_a_mac(root: Path) -> Truth:
    """In WebDataset's convention, with a file of attributes before each member."""
    paths = lay_out(root, "#")
    with tarfile.open(root / "train.tar", "w") as archive:
        for n, path in enumerate(paths):
            write(root, f"{n}.cls", f"{n % 2}")
            for member in (path, f"{n}.cls"):
                archive.add(root / member, f"._{member}")
                archive.add(root / member, member)
                (root / member).unlink()
    return {f"train.tar/{path}": ("train", str(n % 2)) for n, path in enumerate(paths)}


def table_sorted_by_class(root: Path) -> Truth:
    (path,) = lay_out(root, "images/a")
    paths = [f"images/{n}.jpg" for n in range(140)]
    for name in paths:
        (root / name).hardlink_to(root / path)
    (root / path).unlink()
    truth: Truth = {name: (ANY, "ab"[n // 70]) for n, name in enumerate(paths)}
    write(root, "t.csv", "\n".join(["image,label", *(f"{name},{label}" for name, (_, label) in truth.items())]))
    return truth


def coco_beside_captions_and_segments(root: Path) -> Truth:
    """As COCO itself: key points, captions, and panoptic segments with their PNG files are side files."""
    names = [Path(path).name for path in lay_out(root, "val2017/a# annotations/panoptic_val2017/a#=0,5")]
    further = {
        "instances": {},
        "person_keypoints": {"keypoints": [], "num_keypoints": 0},
        "captions": {"caption": "a cat"},
        "panoptic": {"segments_info": []},
    }
    for kind, fields in further.items():
        content = coco_json(names)
        content["annotations"] = [one | fields for one in content["annotations"]]
        write(root, f"annotations/{kind}_val2017.json", json.dumps(content))
    return {f"val2017/{name}": ("val", OBJECTS) for name in names}


def coco_of_boxes_and_polygons(root: Path) -> Truth:
    """The boxes are those of all objects: of those without a polygon nothing would be left in a mask."""
    paths = lay_out(root, "images/a# images/b#")
    content = coco_json([Path(path).name for path in paths])
    for number, one in enumerate(content["annotations"]):
        one["segmentation"] = [] if number % 4 else [[1, 1, 9, 1, 9, 9]]
    write(root, "labels.json", json.dumps(content))
    return dict.fromkeys(paths, (ANY, OBJECTS))


def coco_of_captions_in_large_files(root: Path) -> Truth:
    """Of documents, whose captions are a class. The names of both lists are far from the ends of the file."""
    paths = lay_out(root, "train/a# val/b#")
    for split in ("train", "val"):
        content = coco_json([Path(path).name for path in paths if path.startswith(split)])
        names = {"dog": "caption", "cat": "cat"}
        content["categories"] = [one | {"name": names[one["name"]]} for one in content["categories"]]
        first = {"info": {"category_id": "x" * 70_000}}  # as of LVIS, whose annotations are first
        order = ("annotations", "images", "categories") if split == "val" else ("images", "annotations", "categories")
        large = {name: [one | {"note": "x" * 35_000} for one in content[name]] for name in order}
        write(root, f"{split}.json", json.dumps(first | large))
    return {path: (path.split("/")[0], OBJECTS) for path in paths}


LAYOUTS = [
    table_sorted_by_class, masks_of_colors, class_folders_in_zips, tar_of_a_mac,
    coco_beside_captions_and_segments, coco_of_boxes_and_polygons, coco_of_captions_in_large_files,
]  # fmt: skip


def truth_of(root: Path, text: str, patterns: str | dict[str, str], value: Any) -> Truth:
    truth: Truth = {}
    for path in lay_out(root, text):
        for pattern, split in patterns.items() if isinstance(patterns, dict) else [(patterns, ANY)]:
            regex = pattern.replace("{split}", "(?P<split>[^/]+)").replace("{label}", "(?P<label>[^/]+)")
            if match := re.fullmatch(regex.replace("*", ".*"), path):
                of_image = value(len(truth)) if callable(value) else value or match.groupdict().get("label")
                truth[path] = split or match.groupdict().get("split", ANY), of_image
    return truth


def found_in(found: Reading, root: Path) -> Truth:
    """What the source makes of each image."""
    listing, truth = found.source.scan(root), {}
    decoders = found.source.decoders()
    for entry in listing.entries:
        raw = read_files(root, listing.files, entry) | dict(zip(listing.values, entry.values, strict=True))
        value: Any = None
        if "label" in raw:
            names, number = listing.classes["label"], raw["label"]
            value = [names[n] for n in number] if isinstance(number, list) else names[number]
        elif "mask" in listing.kinds:
            own = decoders["mask"].decode(raw, None) if "mask" in decoders else Image.open(root / entry.files[1])
            value = tuple(np.unique(np.asarray(own)).tolist())
        elif "boxes" in decoders:
            boxes = decoders["boxes"].decode(raw, (HEIGHT, WIDTH)).tolist()
            labels = raw["box_labels"] if "boxes" in raw else decoders["box_labels"].decode(raw, (HEIGHT, WIDTH))
            value = list(zip([listing.classes["box_labels"][n] for n in labels], boxes, strict=True))
        truth[entry.files[0] if parse_reference(entry.files[0]).bytes is None else entry.key] = (entry.split, value)
    return truth


@pytest.mark.parametrize(
    "layout", [*READ, *LAYOUTS], ids=lambda one: one[0] if isinstance(one, tuple) else one.__name__
)
def test_a_layout_is_read_as_it_was_meant(tmp_path, layout):
    root = tmp_path / "data"  # not where copies of archives are
    root.mkdir()
    truth = truth_of(root, *layout) if isinstance(layout, tuple) else layout(root)
    found = found_in(detect(root), root)
    assert {path: value for path, (_, value) in found.items()} == {path: value for path, (_, value) in truth.items()}
    assert {path: split for path, (split, _) in found.items() if truth[path][0]} == {
        path: split for path, (split, _) in truth.items() if split
    }


def coco_that_is_cut_short(root: Path) -> None:
    write(root, "labels.json", json.dumps(coco_json([Path(path).name for path in lay_out(root, "images/#")]))[:-40])


def coco_with_boxes_without_width(root: Path) -> None:
    content = coco_json([Path(path).name for path in lay_out(root, "images/a# images/b#")])
    for one in content["annotations"][:2]:
        one["bbox"] = None
    write(root, "labels.json", json.dumps(content))


def coco_whose_images_say_their_splits(root: Path) -> None:
    names = [Path(path).name for path in lay_out(root, "images/#")]
    write(root, "labels.json", json.dumps(coco_json(names, subset="train")))


def masks_of_two_palettes(root: Path) -> None:
    """As converted by two programs: 0 is black in some and white in others."""
    for number, path in enumerate(lay_out(root, "images/# masks/#=0,1")):
        drawn = Image.open(file := root / f"masks/{Path(path).stem}.png").convert("P")
        drawn.putpalette([0, 0, 0, 255, 255, 255] if number % 2 else [255, 255, 255, 0, 0, 0])
        drawn.save(file)


def masks_with_soft_edges(root: Path) -> None:
    row = np.clip(np.arange(WIDTH) * 20 - 400, 0, 255).astype(np.uint8)
    for path in lay_out(root, "images/# masks/#=0,1"):
        Image.fromarray(np.tile(row, (HEIGHT, 1))).rotate(10).save(root / f"masks/{Path(path).stem}.png")


def masks_of_objects(root: Path) -> None:
    """As PennFudanPed's: 1, 2, ... are people."""
    for number, path in enumerate(lay_out(root, "PNGImages/# PNGImages/a#")):
        mask(root, f"PedMasks/{Path(path).stem}_mask.png", *range(1 + number % 5))


def copies_in_two_splits(root: Path) -> None:
    lay_out(root, "train/cat/a# train/dog/b# val/cat/c# val/dog/d#")
    for kind in ("cat/a0", "dog/b0", "dog/b1"):
        write(root, f"val/{kind}.jpg", (root / f"train/{kind}.jpg").read_bytes())


def one_mask_of_another_size(root: Path) -> None:
    lay_out(root, " ".join(f"images/{letter}# masks/{letter}#=0,1" for letter in "abcde"))
    write_picture(root / "images/c2.jpg", 1, HEIGHT - 1, WIDTH)


def masks_and_depths(root: Path) -> None:
    for number, path in enumerate(lay_out(root, "image/#.png mask/#=0,1,2")):
        (root / "depth").mkdir(exist_ok=True)
        depth = np.linspace(number, 60000, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
        Image.fromarray(depth.astype(np.uint16)).save(root / path.replace("image", "depth"))


def splits_in_a_readme_of_hugging_face(root: Path) -> None:
    lay_out(root, "cat/a# dog/b#")
    write(root, "README.md", "---\nconfigs:\n- drop_labels: true\n  data_files:\n  - split: train\n---\n")


def parquet_of_two_labels(root: Path) -> None:
    """As CIFAR-100 of Hugging Face."""
    columns = {"fine": [0, 1, 2, 0], "coarse": [0, 1, 1, 0]}
    features = {name: {"names": ["p", "q", "r"], "_type": "ClassLabel"} for name in columns}
    table = pa.table({"image": [{"bytes": png(picture(n))} for n in range(4)], **columns})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, root / "train.parquet")


def parquet_of_edges(root: Path) -> None:
    """As the sets for ControlNet."""
    edges = png(np.eye(HEIGHT, WIDTH, dtype=np.uint8))
    rows = [{"image": {"bytes": png(picture(n))}, "conditioning": {"bytes": edges}} for n in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), root / "train.parquet")


def zip_of_coco(root: Path) -> None:
    class_folders_in_zips(root)
    with zipfile.ZipFile(root / "train.zip", "a") as archive:
        archive.writestr("labels.json", "{}")
        archive.writestr("labels/a.txt", "not beside an image, as its text is")


def tars_of_classes(root: Path) -> None:
    """As ImageNet's, each of a class."""
    for number, path in ((n, path) for n in (1440764, 1443537) for path in lay_out(root, f"{n}_#")):
        with tarfile.open(root / f"n0{number}.tar", "a") as archive:
            archive.add(root / path, path)
        (root / path).unlink()


def test_masks_that_may_hold_shades_of_gray_get_a_check_line(tmp_path):
    lay_out(tmp_path, "images/a# masks/a#=0,128,255")
    assert any("0, 128, 255: are these shades of gray" in line for line in detect(tmp_path).lines())


MASKS_WITHOUT_AN_IMAGE = "images/b# masks/b#=0,1 images/c# masks/c#=0,1 masks/a0=0,1 masks/a1=0,1 masks/a2=0,1"
REFUSED: dict[Callable[[Path], None] | str, str] = {
    coco_that_is_cut_short: "labels.json, line 1, column .*not whole JSON",
    "im/train/a# im/val/b# x/train.json=coco:im/train/ x/val.json=coco:im/val/ x/all.json=coco:im/": "no source reads x/all.json",
    parquet_of_two_labels: "several columns may be the label \\(fine, coarse\\)",
    coco_with_boxes_without_width: "2 annotations are dropped, such as annotation 0: a bbox is x, y, width and height",
    coco_whose_images_say_their_splits: "'subset' of an image may say its split, and this recipe draws new ones",
    one_mask_of_another_size: "images/c2.jpg: mask is 56 x 40, and its image 56 x 39",
    masks_and_depths: "no source reads 4 files",
    splits_in_a_readme_of_hugging_face: "README.md has configs with drop_labels: true, split: train",
    parquet_of_edges: "the images of 'conditioning' may be masks, or depths, edges",
    "im/#.png mk/#=0,255 t.csv=rows:im/:image,mask:im/NAME,mk/NAME": "hold 0 and 255: two classes, .* sources.Paired",
    "im/# t.csv=rows:im/::NAME,3,4,9,9,cat": "the first line names '0.jpg'",
    "im/# t.csv=rows:im/:image,tags:NAME,LABEL~cat": "'a cat' is taken for one class; separator=' ' would divide it",
    "images/a# labels/a#.txt=line train.txt=rows:images/::./images/NAME data.yaml=lists labels/more.txt=line":
        "no source reads labels/more.txt",
    "im/a# im/a#.txt=line im/b# im/b#.txt=line x.names=names valid.txt=rows:im/b::data/NAME": "valid.txt may say the splits",
    "cat/a# dog/b# names.txt=twice": "no source reads names.txt",
    "train/im/a# train/masks/a#=0,1 test/img/b# test/gt/b#=0,1": "no source reads 8 files",
    masks_of_two_palettes: "palettes of masks/\\*.png show the number 0 in different colors",
    masks_of_objects: "each mask holds 1, 2, 3, ... up to another number, at most 4, as numbers of objects do",
    masks_with_soft_edges: "numbers in masks/\\*.png fill no 2 x 2 pixels",
    copies_in_two_splits: "6 of 19 images opened are in two splits, with the same name and bytes",
    MASKS_WITHOUT_AN_IMAGE: "no source reads masks/a0.png, masks/a1.png, masks/a2.png",
    "im/a# im/b# t.csv=rows:im/:one,other,label:NAME,OTHER,LABEL": "im/{one} and im/{other} name different images",
    "im/a# im/b# t.csv=rows:im/:one,other,label:STEM,OTHER,LABEL": "im/{other} and im/{one}.jpg name different images",
    "im/# t.csv=rows:im/:image,labels:NAME,['LABEL']": "cells of 'labels' are lists as text",
    tars_of_classes: r"the names of archives \(n01440764.tar, n01443537.tar\) may be classes",
    zip_of_coco: "the archive holds further files \\(json, txt\\): unpack it",
    "images/# labels/#.txt=line": "write classes.txt with a name on each line",
    "images/# masks/#": "JPEG does not keep class numbers: write masks as PNG",
    "images/# annotations.xml=cvat": r"no source reads annotations.xml \(annotations of other tools: see docs",
    "train_# testA_# train_#_anno=0,1 testA_#_anno=0,1": "names say test and train, and this recipe draws new splits",
    "Train/Covid/images/a# Train/Normal/images/b# Train/Covid/lung~masks/a#=0,1 Train/Normal/lung~masks/b#=0,1":
        "no source reads 8 files: Train/Normal/images",
    "red/a# blue/b#=0,1": "files such as blue/b.* have few colors, as masks have, and others are pictures",
    "im/# t.csv=rows:im/:image,label:NAME,0.25": "'0.25' and others in 'label' are numbers with fractions",
    "im/# t.csv=rows:im/:image,pixels:NAME,FLAG~3~10~2": "no column has the name of a label, and it may be pixels",
    "im/# t.csv=rows:im/:image,ClassId,EncodedPixels:NAME,FLAG,1~3~FLAG": "not read: EncodedPixels, which may hold masks",
    "im/# t.csv=rows:im/:image,class,outline:NAME,LABEL,[[1.5~2]~[3~FLAG]]": "not read: outline, which may hold masks",
    "cat/a# dog/b# of.db=line": "no source reads of.db",
    "im/# t.csv=rows:im/:image,label,is_train:NAME,LABEL,FLAG": "the column 'is_train' may say the splits",
    "im/# t.csv=rows:im/:image,patient_id:NAME,LABEL": "no column has the name of a label, and it may be patient_id",
    "im/# t.csv=rows:im/:image,class,category:NAME,cat,LABEL": "several columns may be the label \\(class, category\\)",
    "x/a# y/a#": r"x/\*.jpg and y/\*.jpg have names that correspond",
    "left/a# left/b# right/a# right/b#": "left, right do not have names of classes",
    "ball/0000# car/0000# car/00004": r"ball/\*.jpg and car/\*.jpg have names that correspond",
    "train/cat/a# train/dog/b# extra/c#": "images are in folders of several depths: extra",
    "train/cat/a# train/dog/b# val/emu/c#": "val has the classes emu, which train does not have",
    "train_HR/# train_LR/#x2": r"{split}_HR/\*.jpg and {split}_LR/\*x2.jpg have names that correspond",
    "pear/a#_rgb pear/a#_part=0,1 plum/b#_rgb plum/b#_part=0,1": "pear/.* have names that correspond, as images and what belongs",
    "0001/0001_raw 0001/0001_true 0002/0002_raw 0002/0002_true": "0001, 0002 have names of dates, patients or sequences",
    "animal/cat/a# animal/dog/b# plant/rose/c#": "there are folders in folders",
    "control/a# test/b#": "names say test, and this recipe draws new splits",
    "trainA/a# trainB/b# testA/c# testB/d#": "names say test and train, and this recipe draws new splits",
    "train_val/cat/a# train_val/dog/b# val/cat/c# val/dog/d#": "images of train_val, val may be in two splits",
    "train/cat.# train/dog.#": r"words come again in the names of files \(cat, dog\)",
    "patient1/a# cam_b/b# client_0/c# 2019-05~Rome/d# 40X/e# 0a1b2c3d/f# 69000/g# T32TMT/h# New~folder/i#":
        "have names of dates, patients or sequences",
    "P0012/a# P0101/b#": "P0012, P0101 have names of dates, patients or sequences",
    "sub-01/a# sub-02/b#": "sub-01, sub-02 have names of dates, patients or sequences",
    "01/a# 02/b# 10/c#": "01, 02, 10 have names of dates, patients or sequences",
    "12/a# 13/b#": "12, 13 have names of dates, patients or sequences",
    "March/a# May~2020/b#": "March, May 2020 have names of dates, patients or sequences",
    "cat/a#@2x cat/a# dog/b#@2x dog/b#": "have names that correspond, as images and what belongs to them",
    "anchor/a# positive/b#": "anchor do not have names of classes",
    "hazy_imgs/a# clear_imgs/b# database/c#": "clear_imgs, database, hazy_imgs do not have names of classes",
    "v_Run_g01_c01/a# v_Run_g01_c02/b# v_Walk_g02_c01/c#": "have names of dates, patients or sequences",
    "0a/0a1# 1b/1bc2#": "0a, 1b are the beginnings of the names inside",
    "a/ant_# a/ape# b/bee#": "a, b are the beginnings of the names inside",
}  # fmt: skip
"""What is said of a layout that is refused."""


@pytest.mark.parametrize("layout", REFUSED, ids=lambda layout: getattr(layout, "__name__", layout))
def test_what_no_rule_explains_is_refused_with_recipes_and_commands_that_work(tmp_path, layout):
    root = tmp_path / "data"
    root.mkdir()
    message = REFUSED[layout]
    lay_out(root, layout) if isinstance(layout, str) else layout(root)
    with pytest.raises(SourceError, match=message) as refused:
        recognized(root)
    assert not re.search("masks/|mask is|write masks", message) or "--as folders" not in str(refused.value)
    cause, *readings = str(refused.value).split("\n\nTo read it as ")
    assert re.search(message, cause)
    assert readings
    assert layout is parquet_of_edges or "\ntfprep init " in str(refused.value)
    for number, reading in enumerate(readings):
        way, quotes, recipe = reading.partition('"""')
        path = tmp_path / f"recipe{number}.py"
        path.write_text(quotes + recipe)
        out = tmp_path / f"out{number}"
        assert tfprep.build(path, out, data=root, options=BuildOptions(workers=0)).samples > 0
        for line in re.findall("^tfprep init .*", way, re.MULTILINE):
            _, _, folder, _, kind, *ignored = shlex.split(line)
            assert repr(detect(Path(folder), kind, ignored[1::2]).source) in recipe


def test_a_layout_that_is_named_is_taken_with_its_doubts(tmp_path):
    lay_out(tmp_path, "x/# y/#")
    found = detect(tmp_path, "folders")
    assert found.facts.labels == {"label": {"x": 4, "y": 4}}
    assert any("check: x/*.jpg and y/*.jpg have names that correspond" in line for line in found.lines())
    with pytest.raises(SourceError, match=r"no rule reads 8 files: x/\*.jpg \(4\), y/\*.jpg \(4\) as --as yolo says"):
        detect(tmp_path, "yolo")


def class_folders_beside_a_table(root: Path) -> None:
    """As Hugging Face's imagefolder reads them."""
    lay_out(root, 'cat/a# dog/b# metadata.jsonl=rows:cat/::{"file_name":"cat/NAME","text":"one","kind":"LABEL"}')
    with (root / "metadata.jsonl").open("a") as file:
        file.writelines(f'\n{{"file_name": "dog/b{n}.jpg", "text": "two"}}' for n in range(4))


def parquet_whose_test_has_no_labels(root: Path) -> None:
    for split, columns in {"test": {}, "train": {"label": [*"abab"]}}.items():
        images = [{"bytes": png(picture(n))} for n in range(4)]
        pq.write_table(pa.table({"image": images, **columns}), root / f"{split}-00000-of-00001.parquet")


CHECKED: dict[Callable[[Path], None] | str, str] = {
    parquet_whose_test_has_no_labels: "images of test-00000-of-00001.parquet have no labels, and are left out",
    class_folders_beside_a_table: "not read: kind, the folders, such as that of cat/a0.jpg",
    "a# b# train.csv=rows:a:id,label:STEM,LABEL test.csv=rows:b:id,label:STEM,0": "test has the classes 0, which train does",
    "im/# t.csv=rows:im/:image,class:NAME,LABEL~cat": "'a cat' is taken for one class; separator=' ' would divide it",
    "im/# t.csv=rows:im/:name,cell,xmin,ymin,xmax,ymax:NAME,3,14,10,42,30;NAME,7,1,1,9,9":
        "not read: cell (label=",
    "im/# t.csv=rows:im/:image,a,b,later:NAME,FLAGS,0": "each of a, b, later is a class",
    "im/# t.csv=rows:im/:id,has_cactus:NAME,LABEL": "the label is the column 'has_cactus' (label=)",
}  # fmt: skip
"""What is said of a layout that is read."""


@pytest.mark.parametrize("layout", CHECKED, ids=lambda layout: getattr(layout, "__name__", layout))
def test_what_a_user_has_to_check_is_said(tmp_path, layout):
    lay_out(tmp_path, layout) if isinstance(layout, str) else layout(tmp_path)
    assert any(f"check: {CHECKED[layout]}" in line for line in detect(tmp_path).lines())


@pytest.mark.parametrize(("layout", "later"), [
    ("train/a#.png trainannot/a#=0,1 val/b#.png valannot/b#=0,1", "test/c#.png testannot/c#=0,1"),
    ("JPEGImages/a# JPEGImages/b# Annotations/a#.xml=voc Annotations/b#.xml=voc ImageSets/Main/train.txt=list:JPEGImages/a "
     "ImageSets/Main/val.txt=list:JPEGImages/b",
     "JPEGImages/c# Annotations/c#.xml=voc ImageSets/Main/test.txt=list:JPEGImages/c"),
])  # fmt: skip
def test_a_split_that_comes_later_is_read_by_the_recipe(tmp_path, layout, later):
    lay_out(tmp_path, layout)
    source = detect(tmp_path).source
    lay_out(tmp_path, later)
    assert {entry.split for entry in source.scan(tmp_path).entries} == {"train", "val", "test"}


def test_files_that_ignore_names_are_not_built(tmp_path):
    """Also those that are not among the few that are opened."""
    paths = lay_out(tmp_path, " ".join(f"cat/{letter}# dog/{letter}_#" for letter in "abcdef"))
    path = next(path for path in paths if path not in detect(tmp_path).facts.drawn)
    with pytest.raises(SourceError, match="reads 1 files that --ignore names"):
        detect(tmp_path, ignore=[path])


def test_a_folder_that_ignore_names_does_not_become_a_split(tmp_path):
    lay_out(tmp_path, "images/train/a# images/val/b# images/extra/c# masks/train/a#=0,1 masks/val/b#=0,1")
    assert detect(tmp_path, ignore=["images/extra/*"]).source.splits == ("train", "val")


def test_rare_colors_of_masks_are_classes_too(tmp_path):
    for number, path in enumerate(lay_out(tmp_path, " ".join(f"images/{letter}#" for letter in "abcdefghij"))):
        pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        pixels[:20] = 200, number, 0
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "masks" / f"{Path(path).stem}.png")
    assert len(detect(tmp_path).source.palette) == 41


@pytest.mark.parametrize(("mode", "change"), [("RGB", lambda value: value // 2), ("L", lambda value: 255 - value)])
def test_pictures_of_one_scene_are_not_of_two_classes_nor_masks(tmp_path, mode, change):
    for path in lay_out(tmp_path, "x/#.png y/#.png")[:4]:
        Image.open(tmp_path / path).convert(mode).point(change).save(tmp_path / path.replace("x", "y"))
    with pytest.raises(SourceError, match=r"x/\*.png and y/\*.png have names that correspond"):
        detect(tmp_path)


def test_an_array_is_taken_for_classes_by_its_name_only(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((4, 9, 9), np.uint8))
    np.save(tmp_path / "ages.npy", np.arange(4))
    with pytest.raises(SourceError, match=r"nothing says which array holds images .* and which their classes"):
        detect(tmp_path)


def test_files_that_are_not_read_are_named_with_what_to_do(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte.gz", b"")
    write(tmp_path, "images.tar.gz", b"")
    archive = "images.tar.gz is compressed as a whole, .*: unpack it"
    with pytest.raises(SourceError, match=rf"{archive}\n.*MNIST's format \(IDX\): write it as an array"):
        detect(tmp_path)


def test_a_file_that_is_not_read_needs_no_package(tmp_path, monkeypatch):
    lay_out(tmp_path, "images/a# masks/a#=0,255")
    write(tmp_path, "scans/1.dcm", b"\0" * 128 + b"DICM" + b"\0" * 64)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(SourceError, match=r"no source reads scans/1\.dcm"):
        detect(tmp_path)
    assert detect(tmp_path, ignore=["scans/*"]).layout == "masks"
