"""Layouts as people have them: `init` reads each as its maker meant it, or refuses it with a recipe that builds as it is."""

import json
import re
import shlex
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
from tests.sources.test_pixels import dicom
from tfprep.builder import BuildOptions
from tfprep.errors import SourceError
from tfprep.recipe.template import recognized
from tfprep.sources.detection.detect import Reading, detect
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
TAGS = ["a b", "a c", "b c", "a b c", "a"]
CONTENT = {
    "line": "0 0.5 0.5 0.5 0.5\n",
    "names": "cat\ndog\n",
    "configs": "---\nconfigs:\n- data_files:\n  - split: train\n---\n",
    "lists": "train: train.txt\nnames: [cat]\n",
    "coco128": "path: ../datasets/coco128\ntrain: images\nval: images\nnames: {0: cat}\n",
    "no_annotations": '{"images": [], "categories": []}',
    "voc": f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size><object><name>cat</name><bndbox>"
    "<xmin>15</xmin><ymin>11</ymin><xmax>42</xmax><ymax>30</ymax></bndbox></object></annotation>",
}


def write(root: Path, path: str, content: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def drawn(kind: str, number: int) -> Image.Image:
    """A mask: of numbers, of 1, 2, ... for objects, with soft edges, or with one of two palettes."""
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    for place, value in enumerate(range(1 + number % 5) if kind == "objects" else map(int, re.findall(r"\d+", kind))):
        pixels[:, place * 10 :] = value
    if kind == "edges":
        return Image.fromarray(np.tile(np.arange(WIDTH, dtype=np.uint8) * 4, (HEIGHT, 1)))
    mode = {"palettes": "P", "rgb": "RGB"}.get(kind.rstrip("0123456789,"), "L")
    image = Image.fromarray(pixels).convert(mode)
    if image.mode == "P":
        image.putpalette([0, 0, 0, 255, 255, 255] if number % 2 else [255, 255, 255, 0, 0, 0])
    return image


def lay_out(root: Path, text: str) -> list[str]:
    """Write files and return the paths of the pictures. `~` is a space in names, and `#` stands for 0 to 3.

    `a#` are pictures, `a#=0,1` masks (`drawn`), `x.txt=line` a file of `CONTENT`. Of the pictures before it whose paths
    begin with `images/`, `labels.json=coco:images/` are annotations, `train.txt=list:images/` is a list, and
    `x.csv=rows:images/:HEADER:ROW` a table, with NAME, STEM, OTHER, LABEL (a or b), SPLIT, FLAGS and TAGS in each row.
    """
    pictures: list[str] = []
    for token in text.split():
        path, _, content = token.replace("~", " ").partition("=")
        for number, file in ((number, path.replace("#", str(number))) for number in range(4)[: 1 + 3 * ("#" in path)]):
            kind, _, options = content.partition(":")
            prefix, _, form = options.partition(":")
            names = [Path(picture) for picture in pictures if picture.startswith(prefix)]
            if not content:
                pictures.append(file if file.endswith(".png") else f"{file}.jpg")
                write_picture(root / pictures[-1], len(pictures), HEIGHT, WIDTH)
            elif kind in CONTENT:
                write(root, file, CONTENT[kind])
            elif kind == "coco":
                text = json.dumps(coco_json([name.relative_to(prefix).as_posix() for name in names]))
                write(root, file, CHANGES[form](text) if form else text)
            elif kind == "list":
                write(root, file, "\n".join(name.stem for name in names))
            elif kind == "rows":
                header, _, row = form.partition(":")
                rows = []
                for n, name in enumerate(names):
                    words = {"NAME": name.name, "STEM": name.stem, "OTHER": names[-1 - n].name, "LABEL": "ab"[n % 2]}
                    words |= {"FLAGS": ["1.0,0.0", "0.0,1.0"][n % 2], "FLAG": str(n % 2), "TAGS": TAGS[n % 5]}
                    words |= {"SPLIT": ["training", "testing"][n // 2 % 2], "PATH": name.as_posix()}
                    filled = row
                    for word, value in words.items():
                        filled = filled.replace(word, value)
                    rows += filled.split(";")
                write(root, file, "\n".join([*filter(None, [header]), *rows]))
            else:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                drawn(content, number).save(root / f"{file}.png")
    return pictures


def coco_json(names: list[str]) -> dict[str, Any]:
    x0, y0, x1, y1 = BOX
    of_image = {"category_id": 7, "area": 560.0, "iscrowd": 0, "bbox": [x0, y0, x1 - x0, y1 - y0]}
    return {
        "images": [{"id": n, "file_name": name, "width": WIDTH, "height": HEIGHT} for n, name in enumerate(names)],
        "annotations": [{"id": n, "image_id": n, **of_image} for n in range(len(names))],
        "categories": [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}],
    }


CHANGES: dict[str, Callable[[str], str]] = {
    "points": lambda text: text.replace('"bbox"', '"keypoints": [], "num_keypoints": 0, "bbox"'),
    "captions": lambda text: text.replace('"bbox"', '"caption": "a cat", "bbox"'),
    "panoptic": lambda text: text.replace('"bbox"', '"segments_info": [], "bbox"'),
    "polygons": lambda text: text.replace('"bbox"', '"segmentation": [[1, 1, 9, 1, 9, 9]], "bbox"', 2),
    "large": lambda text: text.replace("{", '{"info": "' + "x" * 70_000 + '", ', 1).replace('"dog"', '"caption"'),
    "cut": lambda text: text[:-40],
    "flat": lambda text: re.sub(r'"bbox": \[.*?\]', '"bbox": null', text, count=2),
    "subset": lambda text: text.replace('"width"', '"subset": "train", "width"'),
}
"""What is different in a file of COCO's."""


def a_or_b(number: int) -> str:
    return "ab"[number % 2]


READ: list[tuple[str, str | dict[str, str], Any]] = [
    ("Train/cat/a# Train/dog/b# Test/cat/c# Test/dog/d#", "{split}/{label}/*", None),
    ("train/cat/a# train/dog/b# test/c#", "(?P<split>train)/{label}/*", None),
    ("cat/train/a# dog/train/b# cat/test/c# dog/test/d#", "{label}/{split}/*", None),
    ("all/train/images/cat/a# all/train/images/dog/b# all/val/images/cat/c#", "all/{split}/images/{label}/*", None),
    ("n01440764/a# n02102040/b# s1/c# s12/d# Type_1/e# Type_2/f# 1/g# 50/h#", "{label}/*", None),
    ("negative/0# positive/0#_1", "{label}/*", None),
    ("train/a# train/x.json=coco:train/ test/b# test/x.json=coco:test/ README_1.txt=names", "{split}/*", OBJECTS),
    ("train/a# annotations/train.json=coco:train/ annotations/info_test.json=no_annotations", "{split}/*", OBJECTS),
    ("images/train/a# images/val/b# labels.json=coco:images/", "images/{split}/*", OBJECTS),
    # As COCO itself: key points, captions, and panoptic segments with their PNG files are side files.
    ("val2017/a# annotations/panoptic_val2017/a#=0,5 annotations/instances_val2017.json=coco:val2017/ "
     "annotations/person_keypoints_val2017.json=coco:val2017/:points annotations/captions_val2017.json=coco:val2017/:captions "
     "annotations/panoptic_val2017.json=coco:val2017/:panoptic", "{split}2017/*", OBJECTS),
    ("images/a# images/b# labels.json=coco:images/:polygons", "images/*", OBJECTS),
    ("train/a# val/b# train.json=coco:train/:large val.json=coco:val/:large", "{split}/*", OBJECTS),
    ("images/a# labels/a#.txt=line coco128.yaml=coco128", {"images/*": "train"}, OBJECTS),
    ("obj/a# obj/a#.txt=line obj.names=names obj.data=names train.txt=rows:obj/::data/NAME", "obj/*", OBJECTS),
    ("images/a# labels/a#.txt=line train.txt=rows:images/::./images/NAME data.yaml=lists", {"images/*": "train"}, OBJECTS),
    ("JPEGImages/my~a# Annotations/my~a#.xml=voc JPEGImages/b# Annotations/b#.xml=voc "
     "SegmentationClass/my~a#=0,8 SegmentationClass/b#=0,8 "
     "ImageSets/Main/train.txt=list:JPEGImages/my ImageSets/Main/val.txt=list:JPEGImages/b",
     {"JPEGImages/my*": "train", "JPEGImages/b*": "val"}, OBJECTS),
    ("images/a# masks/a#=0,255", "images/*", (0, 1)),
    ("img_dir/train/a# img_dir/val/b# ann_dir/train/a#=0,1,2 ann_dir/val/b#=0,1,2", "img_dir/{split}/*", (0, 1, 2)),
    ("train/a# train_masks/a#=0,1 test/b#", {"train/*": "train"}, (0, 1)),
    ("images/Image_0#L labels/Image_0#L_1st_manual=0,1", "images/*", (0, 1)),
    ("im/# t.csv=rows:im/:id,is_a:STEM,FLAG", "im/*", lambda number: str(number % 2)),
    ("train/a#.png val/b#.png trainannot/a#=0,11 valannot/b#=0,11", "{split}/*", (0, 11)),
    ("images/a# images/t# train.csv=rows:images/a:image_id,a,b:STEM,FLAGS test.csv=rows:images/t:image_id:STEM "
     "a_submission.csv=rows:images/t:image_id,a:STEM,1",
     {"images/a*": "train"}, a_or_b),
    ('train/a# train/metadata.jsonl=rows:train/::{"file_name":"NAME","label":"LABEL"} '
     'test/b# test/metadata.jsonl=rows:test/::{"file_name":"NAME","label":"LABEL"}', "{split}/*", a_or_b),
    ('train/a# train/metadata.jsonl=rows:train/::{"file_name":"NAME","objects":{"bbox":[[14,10,28,20]],"category":["cat"]}}',
     "{split}/*", OBJECTS),
    ("images/a# l.csv=rows:images/:filename,width,height,class,xmin,ymin,xmax,ymax:"
     "NAME,56,40,cat,14,10,42,30;NAME,56,40,dog,14,10,42,30", "images/*", [("cat", BOX), ("dog", BOX)]),
    ("maple/maple.# octopus/octopus.# 10eur/#", "{label}/*", None),
    ("im/# im/a# t.csv=rows:im/:image,labels:NAME,TAGS", "im/*", lambda number: TAGS[number % 5].split()),
    ("im/# t.csv=rows:im/:file,class~id,labels:NAME,FLAG,LABEL", "im/*", a_or_b),
    ("im/# t.csv=rows:im/:image,label,ml_use:im/NAME,LABEL,SPLIT",  # as AutoML's
     {"im/[01].jpg": "training", "im/[23].jpg": "testing"}, a_or_b),
]  # fmt: skip
"""Files, the pattern of the images that are read (or patterns with their splits), and what each image has."""


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
    "layout",
    [*READ, class_folders_in_zips, tar_of_a_mac],
    ids=lambda one: one[0] if isinstance(one, tuple) else one.__name__,
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


def copies_in_two_splits(root: Path) -> None:
    lay_out(root, "train/cat/a# train/dog/b# val/cat/c# val/dog/d#")
    for kind in ("cat/a0", "dog/b0", "dog/b1"):
        write(root, f"val/{kind}.jpg", (root / f"train/{kind}.jpg").read_bytes())


def parquet(path: Path, **columns: list[Any]) -> None:
    """Write a table with four images as Hugging Face does."""
    columns["image"] = [{"bytes": png(picture(n))} for n in range(4)]
    pq.write_table(pa.table(columns), path)


def parquet_of_edges(root: Path) -> None:
    """As the sets for ControlNet."""
    parquet(root / "train.parquet", conditioning=[{"bytes": png(np.eye(HEIGHT, WIDTH, dtype=np.uint8))}] * 4)


def slices(root: Path) -> None:
    pytest.importorskip("pydicom")
    for number in range(4):
        write(root, f"{'ab'[number % 2]}/{number}.dcm", dicom(np.full((9, 9), number, np.uint16), patient="p"))


def two_images_in_a_sample(root: Path) -> None:
    lay_out(root, "0 0.png 0.cls=line")
    with tarfile.open(root / "train.tar", "w") as archive:
        for path in [*root.glob("0.*")]:
            archive.add(path, path.name)
            path.unlink()


def zip_of_coco(root: Path) -> None:
    class_folders_in_zips(root)
    with zipfile.ZipFile(root / "train.zip", "a") as archive:
        archive.writestr("labels.json", "{}")
        archive.writestr("labels/a.txt", "not beside an image, as its text is")


def one_mask_of_another_size(root: Path) -> None:
    lay_out(root, " ".join(f"images/{n}.png masks/{n}=0,1" for n in range(12)))
    drawn("0,1", 0).resize((9, 9)).save(root / "masks/7.png")


REFUSED: dict[Callable[[Path], None] | str, str] = {
    "images/# labels.json=coco:images/:cut": "labels.json, line 1, column .*not whole JSON",
    "im/train/a# im/val/b# x/train.json=coco:im/train/ x/val.json=coco:im/val/ x/all.json=coco:im/": "no source reads x/all.json",
    'cat/a# dog/b# metadata.jsonl=rows:::{"file_name":"PATH","text":"one","kind":"LABEL"}': "not read: kind",
    "a/# b/# t.csv=rows::file,label:PATH,LABEL": "not read: the folders, such as a",
    "rain/street_rain rain/park-rain clean/clean~street clean/park": "have names that correspond",
    "images/a# images/b# labels.json=coco:images/:flat": "2 annotations are dropped, such as annotation 0: a bbox is",
    "images/# labels.json=coco:images/:subset": "'subset'. of an image may say its split, and this recipe draws new ones",
    slices: "DICOM files of one patient may get into two splits",
    parquet_of_edges: "not read: conditioning",
    "cat/a# dog/b# README.md=configs": "configs: in README.md may say the splits",
    "image/#.png mask/#=0,1,2 depth/#=edges": "no source reads 4 files",
    "im/#.png mk/#=0,255 t.csv=rows:im/:image,mask:im/NAME,mk/NAME": "no source reads t.csv",
    "im/# t.csv=rows:im/::NAME,LABEL": "the first line names '0.jpg': write the names of the columns above it",
    "im/# t.csv=rows:im/:image,tags:NAME,LABEL~cat": r"cells of 'tags' hold .*: 'a cat' is \['a', 'cat'\]; 'b cat' is",
    "im/# t.csv=rows:im/:image,text,x,y,w,h:NAME,STEM,1,1,9,9": "not read: text",
    "images/a# labels/a#.txt=line train.txt=rows:images/::./images/NAME data.yaml=lists labels/more.txt=line":
        "no source reads labels/more.txt",
    "im/a# im/a#.txt=line im/b# im/b#.txt=line x.names=names valid.txt=rows:im/b::data/NAME": "no source reads valid.txt",
    "images/# masks/#=palettes0,1": "the palettes of the masks differ",
    "PNGImages/# PNGImages/a# PedMasks/#_mask=objects PedMasks/a#_mask=objects":
        "each mask holds 1, 2, 3, ... up to another number, at most 3, as numbers of objects do",
    "images/# masks/#=edges": "the masks hold 0, 4, 8, .* soft edges",
    "images/a# masks/a#=0,128,255": "the masks hold 0, 128, 255, .* shades of gray",
    "images/a# masks/a#=rgb0,9": "a mask has one channel of class numbers, this one is RGB",
    copies_in_two_splits: "6 of 19 images opened are in two splits, with the same name and bytes",
    "images/b# masks/b#=0,1 images/c# masks/c#=0,1 masks/a0=0,1 masks/a1=0,1": "no source reads masks/a0.png, masks/a1.png",
    "im/a# im/b# t.csv=rows:im/:one_id,other_id,label:NAME,OTHER,LABEL": "not read: other_id",
    one_mask_of_another_size: "rejects 1 of 12 samples opened, such as .*mask is 9 x 9, and its image 56 x 40",
    two_images_in_a_sample: "train.tar holds further files \\(jpg, png\\): unpack it",
    zip_of_coco: "train.zip holds further files \\(.json, .txt\\): unpack it",
    "images/# labels/#.txt=line": "write classes.txt with a name on each line",
    "images/# masks/#": "JPEG does not keep class numbers: write masks as PNG",
    "train_# testA_# train_#_anno=0,1 testA_#_anno=0,1": "names say test and train, and this recipe draws new splits",
    "pear/a#_rgb pear/a#_part=0,1 plum/b#_rgb plum/b#_part=0,1": "have few colors, as masks have",
    "im/# t.csv=rows:im/:image,label:NAME,0.25": "'0.25' and others in 'label' are .* fractions",
    "im/a# ex/b0 ex/b1 t.csv=rows:im/a:image,label:NAME,LABEL": "no source reads ex/b0.jpg, ex/b1.jpg",
    "im/# t.csv=rows:im/:image,label,is_train:NAME,LABEL,FLAG": "not read: is_train",
    "im/# t.csv=rows:im/:image,patient_id:NAME,LABEL": "no column has the name of a label; it may be patient_id",
    "256/a# 512/b#": "256, 512 have names of images, dates, patients or sequences",
    "ball/0000# car/0000# car/00004": r"ball/.* and car/.* have names that correspond",
    "train/cat/a# train/dog/b# extra/c#": "images are in folders of several depths: extra",
    "train/cat/a# train/dog/b# val/emu/c#": "val has the classes emu, which train does not have",
    "train_HR/# train_LR/#x2": r"{split}_HR/.* and {split}_LR/.* have names that correspond",
    "animal/cat/a# animal/dog/b# plant/rose/c#": "there are folders in folders",
    "train_val/cat/a# train_val/dog/b# val/cat/c# val/dog/d#": "images of train_val, val may be in two splits",
    "train/cat.# train/dog.#": "no folder or file says the classes of these images; their names may",
    "patient1/a# patient2/b# cam_b/c# cam_c/d#": "have names of images, dates, patients or sequences",
    "12/a# 13/b#": "12, 13 have names of images, dates, patients or sequences",
    "March/a# May~2020/b# 2019-05~Rome/d# 40X/e# 0a1b2c3d/f# 69000/g# T32TMT/h# New~folder/i#":
        "have names of images, dates, patients or sequences",
    "hazy_imgs/a# clear_imgs/b# patient1/c#": "clear_imgs, hazy_imgs, patient1 have names of images",
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
    takes_masks_for_images = re.search("--as (folders|images)", str(refused.value))
    assert not re.search("masks/|mask is|write masks", message) or not takes_masks_for_images
    cause, *readings = str(refused.value).split("\n\nTo read it as ")
    assert re.search(message, cause)
    assert readings or re.search("a mask has one channel|write masks as PNG", message)
    assert not readings or layout is parquet_of_edges or "\ntfprep init " in str(refused.value)
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
    lay_out(tmp_path, "x/a# y/a#")
    found = detect(tmp_path, "folders")
    assert found.facts.labels == {"label": {"x": 4, "y": 4}}
    assert any(re.match("check: .* have names that correspond", line) for line in found.lines())
    with pytest.raises(SourceError, match=r"no rule reads 8 files: x/\*.jpg \(4\), y/\*.jpg \(4\) as --as yolo says"):
        detect(tmp_path, "yolo")


def parquet_whose_test_has_no_labels(root: Path) -> None:
    parquet(root / "test-00000-of-00001.parquet")
    parquet(root / "train-00000-of-00001.parquet", label=[*"abab"])


CHECKED: dict[Callable[[Path], None] | str, str] = {
    "im/# t.csv=rows:im/:image,a,b,later:NAME,FLAGS,0": "the label is ('a', 'b', 'later') (label=)",
    "im/# im/a# t.csv=rows:im/:id,label,Lesion~ID:STEM,LABEL,FLAG": "images with one 'Lesion ID' may get into two splits",
    "im/a/a# im/b/b# labels.json=coco:im/": "images of one folder, such as im/a, may get into two splits",
    "im/# im/a# t.csv=rows:im/:id,label:STEM,LABEL|c": "cells of 'label' hold several classes, or one: 'a|c' is ['a', 'c']; ",
    "run/run1_f0# run/run2_f0# walk/walk3_f0#": "frames of one series, such as run/run1*, may get into two splits",
    parquet_whose_test_has_no_labels: "images of test-00000-of-00001.parquet have no labels, and are left out",
    "a# b# train.csv=rows:a:id,label:STEM,LABEL test.csv=rows:b:id,label:STEM,0": "test has the classes 0, which train does",
}
"""What is said of a layout that is read."""


@pytest.mark.parametrize("layout", CHECKED, ids=lambda layout: getattr(layout, "__name__", layout))
def test_what_a_user_has_to_check_is_said(tmp_path, layout):
    lay_out(tmp_path, layout) if isinstance(layout, str) else layout(tmp_path)
    assert any(line.startswith("check: ") and CHECKED[layout] in line for line in detect(tmp_path).lines())


def test_a_split_that_comes_later_is_read_by_the_recipe(tmp_path):
    lay_out(tmp_path, "train/a#.png trainannot/a#=0,1 val/b#.png valannot/b#=0,1")
    source = detect(tmp_path).source
    lay_out(tmp_path, "test/c#.png testannot/c#=0,1")
    assert {entry.split for entry in source.scan(tmp_path).entries} == {"train", "val", "test"}


def test_files_that_ignore_names_are_not_built(tmp_path):
    """Also those that are not among the few that are opened."""
    paths = lay_out(tmp_path, " ".join(f"cat/{letter}# dog/{letter}_#" for letter in "abcdef"))
    path = next(path for path in paths if path not in detect(tmp_path).facts.drawn)
    with pytest.raises(SourceError, match="reads 1 files that --ignore names"):
        detect(tmp_path, ignore=[path])


@pytest.mark.parametrize(("mode", "change", "start"), [("RGB", lambda v: v // 2, ""), ("L", lambda v: 255 - v, "-")])
def test_pictures_of_one_scene_are_not_of_two_classes_nor_masks(tmp_path, mode, change, start):
    for path in lay_out(tmp_path, f"fog/{start and 'fog'}{start}#.png sun/{start and 'sun'}{start}#.png")[:4]:
        Image.open(tmp_path / path).convert(mode).point(change).save(tmp_path / path.replace("fog", "sun"))
    with pytest.raises(SourceError, match="have names that correspond"):
        detect(tmp_path)


def test_files_that_are_not_read_are_named_with_what_to_do(tmp_path):
    write(tmp_path, "train-images-idx3-ubyte.gz", b"")
    write(tmp_path, "images.tar.gz", b"")
    archive = "images.tar.gz is compressed as a whole, .*: unpack it"
    with pytest.raises(SourceError, match=rf"{archive}\n.*MNIST's format \(IDX\): write it as an array"):
        detect(tmp_path)
