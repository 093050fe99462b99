"""Layouts as people have them: `init` reads each as its maker meant it, or refuses it with a recipe that builds as it is."""

import gzip
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.sources.building import write_picture
from tfprep.builder import BuildOptions
from tfprep.errors import SourceError
from tfprep.recipe.template import recognized
from tfprep.sources.detection.detect import Detected, detect
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
LINE = "0 0.5 0.5 0.5 0.5\n"


def pictures(root: Path, *paths: str) -> list[str]:
    for number, path in enumerate(paths):
        write_picture(root / path, number, HEIGHT, WIDTH)
    return list(paths)


def numbered(folder: str, count: int = 4, suffix: str = ".jpg") -> list[str]:
    return [f"{folder}{'/' if folder else ''}{folder.replace('/', '_')}{n:02}{suffix}" for n in range(count)]


def stem(path: str) -> str:
    return Path(path).stem


def name(path: str) -> str:
    return Path(path).name


def write(root: Path, path: str, content: str | bytes | dict[str, Any] | list[Any]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content) if isinstance(content, dict | list) else content
    (root / path).write_bytes(data.encode() if isinstance(data, str) else data)


def beside(root: Path, paths: list[str], file: str, content: Any) -> list[str]:
    """Write a file for each image, named by its stem."""
    for path in paths:
        write(root, file.format(stem(path)), content(path) if callable(content) else content)
    return paths


def coco_json(
    names: list[str], ids: Callable[[int], Any] = int, categories: Any = None, **options: Any
) -> dict[str, Any]:
    x0, y0, x1, y1 = BOX
    return {
        "images": [{"id": ids(n), "file_name": name, "width": WIDTH, "height": HEIGHT} for n, name in enumerate(names)],
        "annotations": [
            {"id": n, "image_id": ids(n), "category_id": options.get("category", 7), "bbox": [x0, y0, x1 - x0, y1 - y0],
             "area": 560.0, "iscrowd": 0}
            for n in range(len(names))
        ],
        "categories": categories or [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}],
    }  # fmt: skip


def objects(paths: list[str], split: str = ANY, label: str = "cat") -> Truth:
    return {path: (split, [(label, BOX)]) for path in paths}


def of_splits(make: Callable[[str], list[str]], *splits: str) -> Truth:
    return {path: value for split in splits for path, value in objects(make(split), split).items()}


def coco(root: Path, folder: str = "images", file: str = "labels.json", **options: Any) -> list[str]:
    paths = pictures(root, *numbered(folder))
    write(root, file, coco_json([*map(name, paths)], **options))
    return paths


def yolo_images(root: Path, folder: str, line: str = LINE) -> list[str]:
    labels = f"{folder.replace('images', 'labels')}/" if folder else ""
    return beside(root, pictures(root, *numbered(folder)), f"{labels}{{}}.txt", line)


def yolo(root: Path, yaml: str, *splits: str, line: str = LINE) -> Truth:
    write(root, "data.yaml", yaml)
    return of_splits(lambda split: yolo_images(root, f"images/{split}", line), *splits)


def voc_xml(name: str = "cat", bom: bool = False) -> bytes:
    x0, y0, x1, y1 = (int(value) for value in BOX)
    text = (
        f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size><object><name>{name}</name>"
        f"<bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object></annotation>"
    )
    return b"\xef\xbb\xbf" * bom + text.encode()


def mask(root: Path, path: str, *numbers: int) -> None:
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    for place, number in enumerate(numbers):
        pixels[:, place * 10 :] = number
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / path)


def masks(root: Path, images: list[str], where: Callable[[str], str], split_at: int | None, *numbers: int) -> Truth:
    for path in pictures(root, *images):
        mask(root, where(path), *numbers)
    found = tuple(sorted({1 if set(numbers) == {0, 255} and number else number for number in numbers}))
    return {path: (ANY if split_at is None else path.split("/")[split_at], found) for path in images}


def csv_file(root: Path, path: str, columns: str, rows: list[Any], separator: str = ",") -> None:
    lines = [columns, *(separator.join(map(str, row)) for row in rows)]
    write(root, path, "".join(f"{line}\n" for line in lines))


def a_and_b(paths: list[str], split: str = ANY) -> Truth:
    return {path: (split, "ab"[n % 2]) for n, path in enumerate(paths)}


def hugging_face(root: Path, file: str, columns: list[str], row: Callable[[str, str], str]) -> Truth:
    """Two splits, each with a table of the names and labels of its images."""
    truth: Truth = {}
    for split in ("train", "validation"):
        of_split = a_and_b(pictures(root, *numbered(split)), split)
        write(root, f"{split}/{file}", "\n".join([*columns, *(row(name(p), of_split[p][1]) for p in of_split)]))
        truth |= of_split
    return truth


def zipped(root: Path, prefix: str, *folders: str) -> Truth:
    """A zip file of class folders. Its samples are named by the archive and the name inside."""
    names = [name for folder in folders for name in numbered(f"{prefix}{folder}")]
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        for number, name in enumerate(names):
            write_picture(root / "picture.jpg", number, HEIGHT, WIDTH)
            archive.write(root / "picture.jpg", name)
    (root / "picture.jpg").unlink()
    return {f"all.zip/{name}": (ANY, name.split("/")[-2]) for name in names}


def coco_of_roboflow(root):
    write(root, "README.roboflow.txt", "made by a tool")
    return of_splits(lambda split: coco(root, split, f"{split}/_annotations.coco.json"), "train", "valid", "test")


def coco_beside_a_list_without_annotations(root):
    write(root, "annotations/image_info_test.json", {"images": [], "categories": []})
    return objects(coco(root, "train", "annotations/train.json"), "train")


def coco_of_splits_in_one_file(root):
    paths = pictures(root, *numbered("images/train"), *numbered("images/val"))
    write(root, "labels.json", coco_json([path.removeprefix("images/") for path in paths]))
    return objects(paths[:4], "train") | objects(paths[4:], "val")


def yolo_like_coco128(root):
    write(root, "coco128.yaml", "path: ../datasets/coco128\ntrain: images\nval: images\nnames: {0: cat}\n")
    return objects(yolo_images(root, "images"), "train")


def yolo_of_cvat(root):
    paths = yolo_images(root, "obj_train_data")
    write(root, "obj.names", "cat\ndog\n")
    write(root, "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    write(root, "train.txt", "".join(f"data/{path}\n" for path in paths))
    return objects(paths)


def yolo_of_splits_without_yaml(root):
    write(root, "classes.txt", "cat\n")
    return of_splits(lambda split: yolo_images(root, f"{split}/images"), "train", "val")


def voc_with_spaces_in_names(root):
    paths = pictures(root, *(f"JPEGImages/my photo {n}.jpg" for n in range(4)))
    beside(root, paths, "Annotations/{}.xml", voc_xml(bom=True))
    stems = [stem(path) for path in paths]
    write(root, "ImageSets/Main/train.txt", "\ufeff" + "\r\n".join(stems[:3]))
    write(root, "ImageSets/Main/val.txt", stems[3])
    return objects(paths[:3], "train") | objects(paths[3:], "val")


def masks_of_0_and_255(root):
    return masks(root, numbered("images"), lambda p: f"masks/{stem(p)}.png", None, 0, 255)


def masks_of_mmsegmentation(root):
    images = [*numbered("img_dir/train"), *numbered("img_dir/val")]
    return masks(root, images, lambda p: f"ann_dir/{p[8:-4]}.png", 1, 0, 1, 2)


def masks_of_some_splits(root):
    truth = masks(root, numbered("train"), lambda p: f"train_masks/{stem(p)}.png", 0, 0, 1)
    pictures(root, *numbered("test"))
    return truth


def masks_of_voc(root):
    truth = masks(root, numbered("JPEGImages"), lambda p: f"SegmentationClass/{stem(p)}.png", None, 0, 1, 2)
    stems = [stem(path) for path in truth]
    write(root, "ImageSets/Segmentation/train.txt", "\n".join(stems[:3]))
    write(root, "ImageSets/Segmentation/val.txt", stems[3])
    return {path: ("val" if stems[3] in path else "train", value) for path, (_, value) in truth.items()}


def masks_beside_satellite_images(root):
    paths = [f"train/{n}_sat.jpg" for n in range(4)]
    return masks(root, paths, lambda p: p.replace("sat.jpg", "mask.png"), 0, 0, 1, 2)


def masks_named_by_a_table_of_colors(root):
    """As CamVid of Kaggle: the names of masks end in _L."""
    paths = [f"{split}/{split}{n}.png" for split in ("train", "val") for n in range(4)]
    for path in pictures(root, *paths):
        pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        pixels[:, :9] = 64, 128, 64
        mask(root, (of_mask := f"{path.split('/')[0]}_labels/{stem(path)}_L.png"))
        Image.fromarray(pixels).save(root / of_mask)
    write(root, "class_dict.csv", "name,r,g,b\nAnimal,64,128,64\nBicyclist,0,128,192\nVoid,0,0,0\n")
    return {path: (path.split("/")[0], (0, 2)) for path in paths}


def table_of_kaggle_with_a_test(root):
    paths = pictures(root, *numbered("images", 6))
    rows = [(stem(p), *(int(k == n % 2) for k in range(2))) for n, p in enumerate(paths[:4])]
    csv_file(root, "train.csv", "image_id,a,b", rows)
    csv_file(root, "test.csv", "image_id", [(stem(p),) for p in paths[4:]])
    return a_and_b(paths[:4], "train")


def json_lines_of_hugging_face(root):
    return hugging_face(root, "metadata.jsonl", [], lambda path, label: json.dumps({"file_name": path, "label": label}))


def table_of_boxes_in_pixels(root):
    truth: Truth = {}
    for split in ("train", "test"):
        paths = pictures(root, *numbered(f"images/{split}"))
        rows = [(name(p), WIDTH, HEIGHT, label, *BOX) for p in paths for label in ("cat", "dog")]
        csv_file(root, f"{split}_labels.csv", "filename,width,height,class,xmin,ymin,xmax,ymax", rows)
        truth |= {path: (split, [("cat", BOX), ("dog", BOX)]) for path in paths}
    return truth


def table_of_one_hot_columns(root):
    paths = pictures(root, *numbered("images", 6))
    rows = [(stem(p), *(float(k == n % 3) for k in range(3))) for n, p in enumerate(paths)]
    csv_file(root, "truth.csv", "image,MEL,NV,BCC", rows)
    return {path: (ANY, ("MEL", "NV", "BCC")[n % 3]) for n, path in enumerate(paths)}


def table_of_several_classes(root):
    paths = pictures(root, *numbered("images", 6))
    labels = ["a", "b", "a c", "c", "b c", "a b c"]
    csv_file(root, "train.csv", "image,labels", list(zip(map(stem, paths), labels, strict=True)))
    return {path: (ANY, label.split()) for path, label in zip(paths, labels, strict=True)}


def table_of_images_in_two_folders(root):
    paths = pictures(root, *numbered("part_1"), *numbered("part_2"))
    csv_file(root, "metadata.csv", "image_id,dx", [(stem(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    return a_and_b(paths)


def objects_in_json_lines_of_hugging_face(root):
    paths = pictures(root, *numbered("train"))
    x0, y0, x1, y1 = BOX
    rows = [
        {"file_name": name(p), "objects": {"bbox": [[x0, y0, x1 - x0, y1 - y0]], "category": ["cat"]}} for p in paths
    ]
    write(root, "train/metadata.jsonl", "\n".join(map(json.dumps, rows)))
    return objects(paths, "train")


def class_folders_in_a_zip(root):
    return zipped(root, "", "cat", "dog")


def tar_of_a_mac(root):
    """In WebDataset's convention, with a file of attributes before each member."""
    paths = pictures(root, *(f"{n}.jpg" for n in range(4)))
    with tarfile.open(root / "train.tar", "w") as archive:
        for n, path in enumerate(paths):
            for member, data in ((path, (root / path).read_bytes()), (f"{n}.cls", b"%d" % (n % 2))):
                for file, content in ((f"._{member}", b"\0\5\x16\7"), (member, data)):
                    info = tarfile.TarInfo(file)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
            (root / path).unlink()
    return {f"train.tar/{path}": ("train", str(n % 2)) for n, path in enumerate(paths)}


def coco_that_is_cut_short(root):
    paths = pictures(root, *numbered("images"))
    write(root, "labels.json", json.dumps(coco_json(paths))[:-40])


def yolo_without_names(root):
    yolo_images(root, "images")


def masks_in_jpeg(root):
    pictures(root, *numbered("images"), *(f"masks/images{n:02}.jpg" for n in range(4)))


def masks_of_another_size(root):
    for n, path in enumerate(pictures(root, *numbered("images"))):
        write_picture(root / path, n, HEIGHT - 1, WIDTH)
        mask(root, f"masks/{stem(path)}.png", 0, 1)


def cvat_xml(root):
    pictures(root, *numbered("images"))
    write(root, "annotations.xml", '<annotations><image id="0" name="a.jpg"></image></annotations>')


def kitti(root):
    content = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64\n"
    beside(root, pictures(root, *numbered("training/image_2")), "training/label_2/{}.txt", content)


def masks_of_splits_in_the_names_of_files(root):
    """As in GlaS."""
    paths = [f"{split}_{n}.bmp" for split in ("train", "testA") for n in range(4)]
    return masks(root, paths, lambda path: f"{stem(path)}_anno.bmp", None, 0, 1)


def masks_below_classes(root):
    """As in COVID-QU; Normal is a class, and no map of normals."""
    paths = [*numbered("Train/Covid/images"), *numbered("Train/Normal/images"), *numbered("Val/Normal/images")]
    return masks(root, paths, lambda path: path.replace("/images/", "/lung masks/")[:-3] + "png", 0, 0, 1)


def table_of_lists_of_classes_as_text(root):
    rows = [(name(p), f'"{["a", "b"] if n % 2 else ["a"]}"') for n, p in enumerate(pictures(root, *numbered("images")))]
    csv_file(root, "train.csv", "image,labels", rows)


def zip_of_coco(root):
    zipped(root, "", "images")
    with zipfile.ZipFile(root / "all.zip", "a") as archive:
        archive.writestr("labels.json", "{}")


def masks_of_camvid(root):
    """As in the tutorial of SegNet: 11 is void."""
    images = [*numbered("train", suffix=".png"), *numbered("val", suffix=".png")]
    return masks(root, images, lambda path: f"{path.split('/')[0]}annot/{name(path)}", 0, 0, 11)


LAYOUTS = [one for one in list(globals().values()) if isfunction(one) and [*signature(one).parameters] == ["root"]]
REFUSED = {
    coco_that_is_cut_short: "labels.json, line 1, column .*not whole JSON",
    yolo_without_names: "write classes.txt with a name on each line",
    masks_in_jpeg: "JPEG does not keep class numbers: write masks as PNG",
    masks_of_another_size: "mask is 56 x 40, and its image 56 x 39",
    cvat_xml: "annotations.xml is a file of CVAT, .* convert it with the package labelformat",
    kitti: "is in KITTI's format, .* labelformat",
    masks_of_splits_in_the_names_of_files: "names say test and train, and this recipe draws new splits",
    masks_below_classes: "the folders Covid, Normal may be classes",
    table_of_lists_of_classes_as_text: "cells of 'labels' are lists as text",
    zip_of_coco: "the archive holds further files \\(json\\): unpack it",
}
"""What is said of a layout that is refused."""


def found_in(found: Detected, root: Path) -> Truth:
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


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one not in REFUSED], ids=lambda layout: layout.__name__)
def test_a_layout_is_read_as_it_was_meant(tmp_path, layout):
    root = tmp_path / "data"  # not where copies of archives are
    root.mkdir()
    truth = layout(root)
    found = found_in(detect(root), root)
    assert {path: value for path, (_, value) in found.items()} == {path: value for path, (_, value) in truth.items()}
    assert {path: split for path, (split, _) in found.items() if truth[path][0]} == {
        path: split for path, (split, _) in truth.items() if split
    }


FOLDERS = {
    "Train/cat/a# Train/dog/b# Test/cat/c# Test/dog/d#": "{split}/{label}/*",
    "train/cat/a# train/dog/b# test/c#": "{split}/{label}/*",
    "cat/train/a# dog/train/b# cat/test/c# dog/test/d#": "{label}/{split}/*",
    "all/train/images/cat/a# all/train/images/dog/b# all/val/images/cat/c#": "all/{split}/images/{label}/*",
    "set/ant/image_0# set/bee/image_0# set/bee/image_4": "set/{label}/*",
    "cat/# dog/#": "{label}/*",
    "sea/a_train# city/pier#": "{label}/*",
    "train/images/a# valid/images/b#": "{split}/images/*",
}
"""Class folders and folders of splits, where `#` stands for 0 to 3, and the pattern that reads them."""
NO_CLASSES = {
    "x/a# y/a#": "x/ and y/ hold files of the same names",
    "left/a# left/b# right/a# right/b#": "left, right do not have names of classes",
    "ball/0000# car/0000# car/00004": "ball/ and car/ hold files of the same names",
    "train/cat/a# train/dog/b# extra/c#": "images are in folders of several depths: extra",
    "train/cat/a# train/dog/b# val/emu/c#": "val/ has the folders emu, which train/ does not have",
    "train_HR/# train_LR/#x2": "the names in train_LR/ begin with those in train_HR/",
    "all/# all/#_small": "names of files in all/ continue other names",
    "cat/a# dog/b# all/cat/a# all/dog/b#": "images are in folders of several depths: cat, dog, all/cat",
    "animal/cat/a# animal/dog/b# plant/rose/c#": "there are folders in folders",
    "control/a# test/b#": "test/ has the name of a split",
    "train/cat/a# train/dog/b# test/unknown/c#": "test/ has the folders unknown, which train/ does not have",
    "trainA/a# trainB/b# testA/c# testB/d#": "names say test and train, and this recipe draws new splits",
    "train/cat/a# train/dog/b# val/cat/c# val/dog/d# trainval/cat/e# trainval/dog/f#": "may be in two splits",
    "train/cat.# train/dog.#": r"words come again in the names of files \(cat, dog\)",
    "patient1/a# patient2/b#": "have names of dates, patients or sequences",
}
"""Folders that are refused, and why."""


def of_text(root: Path, text: str) -> list[str]:
    return pictures(
        root, *(f"{one.replace('#', str(n))}.jpg" for one in text.split() for n in range(4)[: 1 + 3 * ("#" in one)])
    )


@pytest.mark.parametrize("text", FOLDERS)
def test_folders_are_splits_and_classes(tmp_path, text):
    paths = of_text(tmp_path, text)
    expected = {}
    regex = (
        FOLDERS[text].replace("{split}", "(?P<split>[^/]+)").replace("{label}", "(?P<label>[^/]+)").replace("*", ".*")
    )
    for path, match in ((path, re.fullmatch(regex, path)) for path in paths):
        if match:
            expected[path] = match.groupdict().get("split", ANY), match.groupdict().get("label")
    found = found_in(detect(tmp_path), tmp_path)
    assert {p: (split if "split" in FOLDERS[text] else ANY, label) for p, (split, label) in found.items()} == expected


@pytest.mark.parametrize("layout", [*REFUSED, *NO_CLASSES], ids=lambda layout: getattr(layout, "__name__", layout))
def test_what_no_rule_explains_is_refused_with_recipes_and_commands_that_work(tmp_path, layout):
    root = tmp_path / "data"
    root.mkdir()
    message = REFUSED.get(layout) or NO_CLASSES[layout]
    of_text(root, layout) if isinstance(layout, str) else layout(root)
    with pytest.raises(SourceError, match=message) as refused:
        recognized(root)
    cause, *readings = str(refused.value).split("\n\nTo read it as ")
    assert re.search(message, cause)
    assert readings
    for number, reading in enumerate(readings):
        way, quotes, recipe = reading.partition('"""')
        path = tmp_path / f"recipe{number}.py"
        path.write_text(quotes + recipe)
        if layout is not masks_of_another_size:  # of which nothing can be built but its images
            out = tmp_path / f"out{number}"
            assert tfprep.build(path, out, data=root, options=BuildOptions(workers=0)).samples > 0
        for line in re.findall("^tfprep init .*", way, re.MULTILINE):
            _, _, folder, _, kind, *ignored = shlex.split(line)
            assert repr(detect(Path(folder), kind, ignored[1::2]).source) in recipe


def test_a_layout_that_is_named_is_taken_with_its_doubts(tmp_path):
    of_text(tmp_path, "x/# y/#")
    found = detect(tmp_path, "folders")
    assert found.facts.labels == {"label": {"x": 4, "y": 4}}
    assert any("check: x/ and y/ hold files of the same names" in line for line in found.lines())
    with pytest.raises(SourceError, match=r"no rule reads 8 files: x/\*.jpg \(4\), y/\*.jpg \(4\) as --as yolo says"):
        detect(tmp_path, "yolo")


def test_depths_beside_masks_are_a_map_of_their_images(tmp_path):
    truth = masks(tmp_path, numbered("image", suffix=".png"), lambda path: f"mask/{name(path)}", None, 0, 1, 2)
    for folder in ("depth", "depth8"):
        (tmp_path / folder).mkdir()
    for number, path in enumerate(truth):
        depth = np.linspace(number, 60000, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
        Image.fromarray(depth.astype(np.uint16)).save(tmp_path / f"depth/{name(path)}")
        Image.fromarray((depth / 256).astype(np.uint8)).save(tmp_path / f"depth8/{name(path)}")
    found = detect(tmp_path, ignore=["depth8/*"])
    assert found.source.mask == "mask/*.png"
    assert found.source.fields == {"depth": ("map", "depth/*.png")}
    with pytest.raises(SourceError, match="may be further pictures") as refused:  # 8 bits: a camera, or depths
        recognized(tmp_path)
    assert "fields={'depth': ('map', 'depth/*.png'), 'depth8': ('image', 'depth8/*.png')}" in str(refused.value)
    assert "--as folders" not in str(refused.value)


def test_pictures_of_one_scene_are_not_of_two_classes(tmp_path):
    for path in pictures(tmp_path, *(f"x/{n}.png" for n in range(4))):
        darker = Image.open(tmp_path / path).point(lambda value: value // 2)
        (tmp_path / "y").mkdir(exist_ok=True)
        darker.save(tmp_path / f"y/{name(path)}")
    with pytest.raises(SourceError, match="x/ and y/ hold files of the same names"):
        detect(tmp_path)


def test_the_commands_for_files_of_mnist_work(tmp_path):
    for split, count in (("train", 6), ("t10k", 4)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
            content = header + (np.arange(np.prod(shape)) % 2).astype(np.uint8).tobytes()
            write(tmp_path, f"{split}-{kind}-ubyte.gz", gzip.compress(content))
    with pytest.raises(SourceError, match="MNIST") as refused:
        detect(tmp_path)
    command, init = str(refused.value).splitlines()[1:3]
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    _, _, folder, *ignored = shlex.split(init)
    found = detect(Path(folder), ignore=ignored[1::2])
    assert found.facts.splits == {"train": 6, "test": 4}
    assert found.facts.labels == {"label": {"0": 5, "1": 5}}


def test_a_readme_of_hugging_face_may_name_splits(tmp_path):
    of_text(tmp_path, "cat/a# dog/b#")
    assert detect(tmp_path).layout == "folders"
    write(tmp_path, "README.md", "---\nconfigs:\n- data_files:\n  - split: train\n    path: cat\n---\n")
    with pytest.raises(SourceError, match=r"README\.md names the splits train"):
        detect(tmp_path)


def test_a_file_that_is_not_read_needs_no_package(tmp_path, monkeypatch):
    masks_of_0_and_255(tmp_path)
    write(tmp_path, "scans/1.dcm", b"\0" * 128 + b"DICM" + b"\0" * 64)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(SourceError, match=r"no source reads scans/1\.dcm"):
        detect(tmp_path)
    assert detect(tmp_path, ignore=["scans/*"]).layout == "masks"
