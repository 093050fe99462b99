"""Layouts as people have them: `init` reads each as its maker meant it, refuses it by name, or says what it leaves out."""

import base64
import io
import json
import shutil
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from tests.sources.building import write_picture
from tfprep.errors import SourceError
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


# --- classes --------------------------------------------------------------------------------------------------------


def class_folders(root: Path, *folders: str, split_at: int | None = None) -> Truth:
    paths = [path for folder in folders for path in pictures(root, *numbered(folder))]
    label = -2 if split_at is None else split_at + 1
    return {p: (ANY if split_at is None else p.split("/")[split_at], p.split("/")[label]) for p in paths}


def class_folders_of_splits(root):
    return class_folders(root, "Train/cat", "Train/dog", "Test/cat", "Test/dog", split_at=0)


def files_without_a_suffix(root):
    """As in Stanford Dogs."""
    truth = class_folders(root, "Images/cat", "Images/dog")
    beside(root, [path for path in truth if "cat" in path], "Annotation/cat/{}", voc_xml())
    return truth


def class_folders_in_a_wrapper(root):
    return class_folders(root, "data/train/cat", "data/train/dog", "data/valid/cat", split_at=1)


def a_split_of_files_alone(root):
    truth = class_folders(root, "train/cat", "train/dog", split_at=0)
    pictures(root, "test/1.jpg", "test/2.jpg")
    return truth


def split_folders_beside_another(root):
    truth = class_folders(root, "train/cat", "train/dog", "val/dog", split_at=0)
    pictures(root, "extra/1.jpg")
    return truth


def splits_below_classes(root):
    truth = class_folders(root, "cat/train", "cat/test", "dog/train", "dog/test")
    return {path: (path.split("/")[1], path.split("/")[0]) for path in truth}


def two_folders_of_the_same_names(root):
    return {path: (ANY, path[0]) for path in pictures(root, *(f"{label}/{n}.jpg" for label in "xy" for n in range(4)))}


def images_folder_of_splits(root):
    return {
        path: (path.split("/")[0], None) for s in ("train", "val") for path in pictures(root, *numbered(f"{s}/images"))
    }


# --- COCO -----------------------------------------------------------------------------------------------------------


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


def coco_relative_to_the_root(root):
    paths = pictures(root, *numbered("images"))
    write(root, "annotations/all.json", coco_json(paths))
    return objects(paths)


def coco_below_the_listed_folder(root):
    paths = pictures(root, *numbered("images/x"), *numbered("images/y"))
    write(root, "annotations/all.json", coco_json([path.removeprefix("images/") for path in paths]))
    return objects(paths)


def coco_with_text_ids(root):
    return objects(coco(root, ids=lambda n: f"id-{n}"))


def coco_with_backslashes(root):
    paths = pictures(root, *numbered("images"))
    write(root, "labels.json", coco_json([path.replace("/", "\\") for path in paths]))
    return objects(paths)


def coco_in_latin_1(root):
    paths = pictures(root, "images/caf\u00e9.jpg", "images/b.jpg")
    content = coco_json([*map(name, paths)])
    write(root, "labels.json", json.dumps(content, ensure_ascii=False).encode("latin-1"))
    return objects(paths)


def coco_with_one_name_twice(root):
    categories = [{"id": 0, "name": "cat"}, {"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}]
    return objects(coco(root, categories=categories))


def coco_of_roboflow(root):
    write(root, "README.roboflow.txt", "made by a tool")
    return of_splits(lambda split: coco(root, split, f"{split}/_annotations.coco.json"), "train", "valid", "test")


def coco_beside_a_list_without_annotations(root):
    write(root, "annotations/image_info_test.json", {"images": [], "categories": []})
    return objects(coco(root, "train", "annotations/train.json"), "train")


def coco_that_is_cut_short(root):
    paths = pictures(root, *numbered("images"))
    write(root, "labels.json", json.dumps(coco_json(paths))[:-40])
    return "labels.json, line 1, column .*not whole JSON.*--as images"


def coco_of_other_images(root):
    pictures(root, *numbered("images"))
    write(root, "labels.json", coco_json(["elsewhere/1.jpg", "elsewhere/2.jpg"]))
    return "no folder holds the images that it lists, such as elsewhere/1.jpg"


def coco_of_classes(root):
    """As in iNaturalist: an annotation is the class of an image."""
    paths = pictures(root, *numbered("images"))
    content = coco_json([*map(name, paths)])
    write(root, "train.json", content | {"annotations": [{"id": n, "image_id": n, "category_id": 7} for n in range(4)]})
    return {path: ("train", ["cat"]) for path in paths}


def coco_of_boxes_without_a_size(root):
    content = coco_json([*map(name, pictures(root, *numbered("images")))])
    for one in content["annotations"]:
        one["bbox"] = [1, 2]
    write(root, "labels.json", content)
    return "none of the samples that were opened can be read, such as .*annotation .*a bbox is x, y, width and height"


def coco_of_lvis(root):
    """Images have no file_name, but the URL of COCO's image."""
    paths = pictures(root, *numbered("train2017", 2), *numbered("val2017", 2))
    content = coco_json(paths)
    for one in content["images"]:
        one["coco_url"] = f"http://images.cocodataset.org/{one.pop('file_name')}"
    write(root, "lvis_v1_train.json", content)
    return objects(paths, "train")


def coco_of_splits_in_one_file(root):
    paths = pictures(root, *numbered("images/train"), *numbered("images/val"))
    write(root, "labels.json", coco_json([path.removeprefix("images/") for path in paths]))
    return objects(paths[:4], "train") | objects(paths[4:], "val")


def coco_of_polygons_without_boxes(root):
    paths = pictures(root, *numbered("images"))
    content = coco_json([*map(name, paths)], ids=float)
    x0, y0, x1, y1 = BOX
    for one in content["annotations"]:
        one["segmentation"] = [[x0, y0, x1, y0, x1, y1, x0, y1]]
        del one["bbox"]
    write(root, "labels.json", content)
    return objects(paths)


# --- YOLO -----------------------------------------------------------------------------------------------------------

LINE = "0 0.5 0.5 0.5 0.5\n"


def yolo_images(root: Path, folder: str, line: str = LINE) -> list[str]:
    labels = f"{folder.replace('images', 'labels')}/" if folder else ""
    return beside(root, pictures(root, *numbered(folder)), f"{labels}{{}}.txt", line)


def yolo(root: Path, yaml: str, *splits: str, line: str = LINE) -> Truth:
    write(root, "data.yaml", yaml)
    return of_splits(lambda split: yolo_images(root, f"images/{split}", line), *splits)


def yolo_with_a_missing_val(root):
    return yolo(root, "train: images/train\nval: images/val\nnames: [cat]\n", "train")


def yolo_like_coco128(root):
    write(root, "coco128.yaml", "path: ../datasets/coco128\ntrain: images\nval: images\nnames: {0: cat}\n")
    return objects(yolo_images(root, "images"), "train")


def yolo_with_windows_paths(root):
    yaml = "path: C:\\Users\\me\\data\ntrain: C:\\Users\\me\\data\\images\\train\nval: images\\val\nnames: [cat]\n"
    return yolo(root, yaml, "train", "val")


def yolo_with_absolute_paths(root):
    return yolo(root, "train: /home/me/set/images/train\nval: /home/me/set/images/val\nnames: [cat]\n", "train", "val")


def yolo_with_gaps_in_names(root):
    return yolo(root, "train: images/train\nnames: {0: dog, 2: cat}\n", "train", line="2 0.5 0.5 0.5 0.5\n")


def yolo_in_a_folder(root):
    truth = yolo(root / "set", "train: images/train\nval: images/val\nnames: [cat]\n", "train", "val")
    return {f"set/{path}": value for path, value in truth.items()}


def yolo_of_label_studio(root):
    write(root, "classes.txt", "cat\ndog\n")
    write(root, "notes.json", {"categories": []})
    return objects(yolo_images(root, "images"))


def yolo_of_labelimg(root):
    write(root, "classes.txt", "cat\ndog\n")
    return objects(yolo_images(root, ""))


def yolo_whose_test_has_no_labels(root):
    truth = yolo(root, "train: images/train\ntest: images/test\nnames: [cat]\n", "train")
    return truth | {path: ("test", []) for path in pictures(root, *numbered("images/test"))}


def yolo_of_cvat(root):
    paths = yolo_images(root, "obj_train_data")
    write(root, "obj.names", "cat\ndog\n")
    write(root, "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    write(root, "train.txt", "".join(f"data/{path}\n" for path in paths))
    return objects(paths)


def yolo_of_splits_without_yaml(root):
    write(root, "classes.txt", "cat\n")
    return of_splits(lambda split: yolo_images(root, f"{split}/images"), "train", "val")


def yolo_of_a_mac(root):
    paths = pictures(root, unicodedata.normalize("NFC", "images/train/é.jpg"), "images/train/b.jpg")
    for path in paths:
        write(root, unicodedata.normalize("NFD", f"labels/train/{stem(path)}.txt"), LINE)
    write(root, "data.yaml", "train: images/train\nnames: [cat]\n")
    return objects(paths, "train")


def yolo_of_lists_of_another_machine(root):
    truth = yolo(root, "train: train.txt\nnames: {'0': cat, '1': dog}\n", "train")
    write(root, "train.txt", "".join(f"/home/me/set/{path}\n" for path in truth))
    return truth


def yolo_with_two_lists_of_names(root):
    write(root, "classes.txt", "cat\n")
    write(root, "labels/classes.txt", "dog\n")
    return objects(yolo_images(root, "images"))


def yolo_without_names(root):
    yolo_images(root, "images")
    return "no data.yaml, classes.txt or obj.names names their classes"


def yolo_with_two_equal_names(root):
    yolo(root, "train: images/train\nnames: [cat, cat]\n", "train")
    return "data.yaml: two classes have one name.*--as images"


# --- Pascal VOC and LabelMe -----------------------------------------------------------------------------------------


def voc_xml(name: str = "cat", bom: bool = False) -> bytes:
    x0, y0, x1, y1 = (int(value) for value in BOX)
    text = (
        f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size><object><name>{name}</name>"
        f"<bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object></annotation>"
    )
    return b"\xef\xbb\xbf" * bom + text.encode()


def voc_in_lower_case(root):
    return objects(beside(root, pictures(root, *numbered("images")), "annotations/{}.xml", voc_xml()))


def voc_of_roboflow(root):
    return of_splits(lambda s: beside(root, pictures(root, *numbered(s)), s + "/{}.xml", voc_xml()), "train", "valid")


def voc_with_spaces_in_names(root):
    paths = pictures(root, *(f"JPEGImages/my photo {n}.jpg" for n in range(4)))
    beside(root, paths, "Annotations/{}.xml", voc_xml(bom=True))
    stems = [stem(path) for path in paths]
    write(root, "ImageSets/Main/train.txt", "\ufeff" + "\r\n".join(stems[:3]))
    write(root, "ImageSets/Main/val.txt", stems[3])
    return objects(paths[:3], "train") | objects(paths[3:], "val")


def labelme_json(path: str, **shape: Any) -> dict[str, Any]:
    x0, y0, x1, y1 = BOX
    polygon = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
    plain = {"label": "cat", "points": polygon, "shape_type": "polygon", "group_id": None}
    return {"shapes": [plain | shape], "imagePath": path, "imageHeight": HEIGHT, "imageWidth": WIDTH}


def labelme(root: Path, folder: str, **shape: Any) -> list[str]:
    images = pictures(root, *numbered(folder))
    return beside(root, images, folder + "/{}.json", lambda path: labelme_json(name(path), **shape))


def labelme_of_splits(root):
    return of_splits(lambda split: labelme(root, split), "train", "val")


def labelme_in_a_folder_of_its_own(root):
    images = pictures(root, *numbered("images"))
    return objects(beside(root, images, "annotations/{}.json", lambda path: labelme_json(f"../{path}")))


def labelme_of_masks(root):
    png = io.BytesIO()
    Image.fromarray(np.ones((20, 28), bool)).save(png, "PNG")
    content = base64.b64encode(png.getvalue()).decode()
    return objects(labelme(root, "data", shape_type="mask", points=[[14, 10], [41, 29]], mask=content))


# --- masks ----------------------------------------------------------------------------------------------------------


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


def masks_of_0_and_255(root):
    return masks(root, numbered("images"), lambda p: f"masks/{stem(p)}.png", None, 0, 255)


def masks_of_mmsegmentation(root):
    images = [*numbered("img_dir/train"), *numbered("img_dir/val")]
    return masks(root, images, lambda p: f"ann_dir/{p[8:-4]}.png", 1, 0, 1, 2)


def masks_of_some_splits(root):
    truth = masks(root, numbered("train"), lambda p: f"train_masks/{stem(p)}.png", 0, 0, 1)
    pictures(root, *numbered("test"))
    return truth


def masks_of_other_stems(root):
    pictures(root, *numbered("img_dir/train"))
    mask(root, "ann_dir/train/z.png", 0, 1)
    return "img_dir/ and ann_dir/ are called like folders of images and masks"


def masks_of_another_size(root):
    for n, path in enumerate(pictures(root, *numbered("images"))):
        write_picture(root / path, n, HEIGHT - 1, WIDTH)
        mask(root, f"masks/{stem(path)}.png", 0, 1)
    return f"none of the samples .* can be read, such as .*mask is {WIDTH} x {HEIGHT}, and its image {WIDTH} x {HEIGHT - 1}"


def masks_in_jpeg(root):
    pictures(root, *numbered("images"), *(f"masks/images{n:02}.jpg" for n in range(4)))
    return r"masks/ holds JPEG files beside images/; JPEG does not keep class numbers.*os.makedirs\('masks_png'\)"


def masks_of_other_names(root):
    pictures(root, *numbered("images"))
    for n in range(4):
        mask(root, f"masks/z{n}.png", 0, 1)
    return "images/ and masks/ are called like folders of images and masks"


# --- tables ---------------------------------------------------------------------------------------------------------


def csv_file(root: Path, path: str, columns: str, rows: list[Any], separator: str = ",") -> None:
    lines = [columns, *(separator.join(map(str, row)) for row in rows)]
    write(root, path, "".join(f"{line}\n" for line in lines))


def a_and_b(paths: list[str], split: str = ANY) -> Truth:
    return {path: (split, "ab"[n % 2]) for n, path in enumerate(paths)}


def table_of_kaggle(root):
    paths = pictures(root, *numbered("train_images"))
    pictures(root, "test_images/1.jpg")
    csv_file(root, "train.csv", "image_id,label", [(stem(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    csv_file(root, "sample_submission.csv", "image_id,label", [(1, "a")])
    return a_and_b(paths)


def table_of_kaggle_with_a_test(root):
    paths = pictures(root, *numbered("images", 6))
    rows = [(stem(p), *(int(k == n % 2) for k in range(2))) for n, p in enumerate(paths[:4])]
    csv_file(root, "train.csv", "image_id,a,b", rows)
    csv_file(root, "test.csv", "image_id", [(stem(p),) for p in paths[4:]])
    return a_and_b(paths[:4], "train")


def hugging_face(root: Path, file: str, columns: list[str], row: Callable[[str, str], str]) -> Truth:
    """Two splits, each with a table of the names and labels of its images."""
    truth: Truth = {}
    for split in ("train", "validation"):
        of_split = a_and_b(pictures(root, *numbered(split)), split)
        write(root, f"{split}/{file}", "\n".join([*columns, *(row(name(p), of_split[p][1]) for p in of_split)]))
        truth |= of_split
    return truth


def table_of_hugging_face(root):
    return hugging_face(root, "metadata.csv", ["file_name,label"], lambda path, label: f"{path},{label}")


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


def table_of_open_images(root):
    truth: Truth = {}
    x0, y0, x1, y1 = BOX
    for split in ("train", "validation"):
        paths = pictures(root, *numbered(split))
        rows = [(stem(p), "cat", x0 / WIDTH, x1 / WIDTH, y0 / HEIGHT, y1 / HEIGHT) for p in paths]
        csv_file(root, f"{split}-annotations-bbox.csv", "ImageID,LabelName,XMin,XMax,YMin,YMax", rows)
        truth |= objects(paths, split)
    return truth


def table_of_boxes_in_one_column(root):
    paths = pictures(root, *numbered("train"))
    x0, y0, x1, y1 = BOX
    csv_file(root, "train.csv", "image_id,bbox", [(stem(p), f'"[{x0}, {y0}, {x1 - x0}, {y1 - y0}]"') for p in paths])
    return objects(paths, label="object")


def table_with_images_without_boxes(root):
    paths = pictures(root, *numbered("train_images"))
    x0, y0, x1, y1 = BOX
    rows = [(stem(p), x0, y0, x1 - x0, y1 - y0, 1) for p in paths[1:]]
    csv_file(root, "train_labels.csv", "patientId,x,y,width,height,Target", [(stem(paths[0]), *[""] * 4, 0), *rows])
    csv_file(root, "class_info.csv", "patientId,class", [(stem(p), "Normal") for p in paths])
    return {paths[0]: (ANY, [])} | objects(paths[1:], label="1")


def table_with_decimal_commas(root):
    paths = pictures(root, *numbered("images"))
    box = [str(value / side).replace(".", ",") for value, side in zip(BOX, (WIDTH, HEIGHT) * 2, strict=True)]
    csv_file(root, "boxes.csv", "image;label;xmin;ymin;xmax;ymax", [(p, "cat", *box) for p in paths], ";")
    return objects(paths)


def table_of_run_lengths(root):
    paths = pictures(root, *numbered("train_v2"))
    rows = [(name(p), "") if p == paths[0] else (name(p), "1 30 81 20") for p in paths]
    csv_file(root, "train_ship_segmentations.csv", "ImageId,EncodedPixels", rows)
    return {path: (ANY, {"pixels": 0 if path == paths[0] else 50}) for path in paths}


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


def tables_of_roboflow(root):
    """The names of columns begin with a space."""
    truth: Truth = {}
    for split in ("train", "valid"):
        paths = pictures(root, *numbered(split))
        csv_file(
            root,
            f"{split}/_classes.csv",
            "filename, a, b",
            [(name(p), f" {1 - n % 2}", f" {n % 2}") for n, p in enumerate(paths)],
        )
        truth |= a_and_b(paths, split)
    return truth


def table_of_attributes(root):
    paths = pictures(root, *numbered("images"))
    csv_file(root, "attributes.csv", "image_id,Bald,Male", [(name(p), 1, (-1) ** n) for n, p in enumerate(paths)])
    return {path: (ANY, ["Bald"] if n % 2 else ["Bald", "Male"]) for n, path in enumerate(paths)}


def table_in_latin_1_with_an_empty_label(root):
    paths = pictures(root, *numbered("images"))
    rows = "".join(f"{p},{label}\n" for p, label in zip(paths, ["caf\u00e9", "th\u00e9", "", "th\u00e9"], strict=True))
    write(root, "labels.csv", f"path,label\n{rows}".encode("latin-1"))
    return {path: (ANY, label) for path, label in zip(paths, ["caf\u00e9", "th\u00e9", None, "th\u00e9"], strict=True)}


def table_of_paths_in_split_folders(root):
    paths = pictures(root, *numbered("train"), *numbered("val"))
    csv_file(root, "labels.csv", "path,label", [(p.replace("/", "\\"), "ab"[n % 2]) for n, p in enumerate(paths)])
    return {path: (path.split("/")[0], "ab"[n % 2]) for n, path in enumerate(paths)}


def table_of_images_in_two_folders(root):
    paths = pictures(root, *numbered("part_1"), *numbered("part_2"))
    csv_file(root, "metadata.csv", "image_id,dx", [(stem(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    return a_and_b(paths)


def table_with_tabs_and_spaces(root):
    paths = pictures(root, *numbered("images"))
    csv_file(root, "labels.csv", "file\t label", [(name(p), f" {'ab'[n % 2]}") for n, p in enumerate(paths)], "\t")
    return a_and_b(paths)


def table_in_each_class_folder(root):
    truth = class_folders(root, "Images/00000", "Images/00001")
    for label in ("00000", "00001"):
        rows = [(name(p), int(label)) for p in truth if label in p]
        csv_file(root, f"Images/{label}/GT-{label}.csv", "Filename;ClassId", rows, ";")
    return truth


def objects_in_json_lines_of_hugging_face(root):
    paths = pictures(root, *numbered("train"))
    x0, y0, x1, y1 = BOX
    rows = [
        {"file_name": name(p), "objects": {"bbox": [[x0, y0, x1 - x0, y1 - y0]], "category": ["cat"]}} for p in paths
    ]
    write(root, "train/metadata.jsonl", "\n".join(map(json.dumps, rows)))
    return objects(paths, "train")


def table_without_a_header(root):
    csv_file(root, "labels.csv", "images/images00.jpg,a", [(p, "a") for p in pictures(root, *numbered("images"))[1:]])
    return "labels.csv: its first row names the image 'images/images00.jpg'"


def table_of_absolute_paths(root):
    csv_file(root, "labels.csv", "path,label", [(f"/home/me/{p}", "a") for p in pictures(root, *numbered("images"))])
    return "no folder holds the images that 'path' names, such as /home/me/images"


def table_of_composed_names(root):
    rows = [(f"{name(p)}_1", "1 400") for p in pictures(root, *numbered("train_images"))]
    csv_file(root, "train.csv", "ImageId_ClassId,EncodedPixels", rows)
    return "holds masks as run lengths, and no column names images"


def table_of_lists_as_text(root):
    rows = [(stem(p), "\"[{'x': 1, 'y': 2}]\"") for p in pictures(root, *numbered("train_images"))]
    csv_file(root, "train.csv", "image_id,annotations", rows)
    return "the cells of 'annotations' are lists as text"


def table_of_lists_of_classes_as_text(root):
    rows = [(name(p), f'"{["a", "b"] if n % 2 else ["a"]}"') for n, p in enumerate(pictures(root, *numbered("images")))]
    csv_file(root, "train.csv", "image,labels", rows)
    return r"the cells of 'labels' are lists as text, such as \['a'\]; write .* JSON lines"


def table_of_fractions_called_target(root):
    rows = [(name(p), n + 0.5, n) for n, p in enumerate(pictures(root, *numbered("images")))]
    csv_file(root, "scores.csv", "image,target,age", rows)
    return {f"images/{name}": (ANY, None) for name, *_ in rows}


def table_of_fractions_called_target_and_classes(root):
    rows = [(name(p), n + 0.5, "ab"[n % 2]) for n, p in enumerate(pictures(root, *numbered("images")))]
    csv_file(root, "scores.csv", "image,target,class", rows)
    return {f"images/{name}": (ANY, label) for name, _, label in rows}


def table_of_numbers_of_classes_and_nan(root):
    rows = [(name(p), f"{n % 2}.0" if n else "nan") for n, p in enumerate(pictures(root, *numbered("images")))]
    csv_file(root, "classes.csv", "image,label", rows)
    return {f"images/{name}": (ANY, label) for name, label in rows}


def table_of_points(root):
    rows = [(name(p), *range(10)) for p in pictures(root, *numbered("images"))]
    csv_file(root, "landmarks.csv", "image,x1,y1,x2,y2,x3,y3,x4,y4,x5,y5", rows)
    return "are points or corners, which tfprep reads from COCO alone; write them as COCO's keypoints or polygons"


def table_of_several_columns(root):
    rows = [
        (1000 + n, "Men", "Shirts") for n, _ in enumerate(pictures(root, *(f"images/{1000 + n}.jpg" for n in range(4))))
    ]
    csv_file(root, "styles.csv", "id,gender,articleType", rows)
    return (
        r"styles.csv names an image in each row.*\(gender, articleType\).*"
        r"Table\('styles.csv', 'images/\{id\}.jpg', label='gender'\).*--as images"
    )


def table_with_commas_in_its_header(root):
    """As ChestX-ray14, where the columns `x` and `y]` are one."""
    paths = pictures(root, *numbered("images"))
    labels = ["Mass", "Mass|Edema", "Edema", "Mass"]
    csv_file(
        root, "Data.csv", "Image,Finding Labels,Spacing[x,y]", [(name(p), labels[n], 1, 2) for n, p in enumerate(paths)]
    )
    return {path: (ANY, labels[n].split("|")) for n, path in enumerate(paths)}


def table_with_a_nameless_column(root):
    csv_file(root, "points.csv", ",0,1", [(name(path), 3, 4) for path in pictures(root, *numbered("images"))])
    return "points.csv: the column that names the images has no name; write one"


def table_of_the_training_alone(root):
    """As APTOS of three splits, whose tables are called otherwise: the one with the most rows is read."""
    paths = pictures(root, *numbered("train_images", 6), *numbered("test_images"))
    for file, part in (("train_1", paths[:6]), ("test", paths[6:])):
        csv_file(root, f"{file}.csv", "id_code,diagnosis", [(stem(p), "ab"[n % 2]) for n, p in enumerate(part)])
    return a_and_b(paths[:6], "train")


def table_with_empty_masks(root):
    """As VisA: pictures without a defect have no mask."""
    paths = pictures(root, *numbered("Images"))
    mask(root, "Masks/0.png", 0, 1)
    csv_file(root, "anno.csv", "image,label,mask", [(paths[0], "a", "Masks/0.png"), *((p, "b", "") for p in paths[1:])])
    return {path: (ANY, "a" if path == paths[0] else "b") for path in paths}


def table_with_numbers_for_names(root):
    pictures(root, *(f"images/{n:04}.png" for n in range(8)))
    csv_file(root, "labels.csv", "id,label", [(n, "ab"[n % 2]) for n in range(8)])
    return "labels.csv: 'id' numbers the images, and 0 stands for 0000"


def table_of_paths_from_above(root):
    """As CheXpert, unpacked by its folder."""
    paths = pictures(root, *numbered("train/patient1"))
    csv_file(root, "train.csv", "Path,label", [(f"CheXpert/{path}", "a") for path in paths])
    return "train/patient1/train_patient100.jpg is there: cut 'CheXpert/' off, or run init on a folder in which"


def table_of_uncertain_flags(root):
    """As CheXpert: the folders of patients are no reason."""
    for split in ("train", "valid"):
        paths = pictures(root, *numbered(f"{split}/{split}1"), *numbered(f"{split}/{split}2"))
        csv_file(root, f"{split}.csv", "Path,Age,Edema", [(path, 60 + n, n % 3 - 1) for n, path in enumerate(paths)])
    return r"train.csv names an image in each row, and none of its columns \(Age, Edema\) is called like a class"


def table_of_paths_without_suffixes(root):
    paths = pictures(root, *numbered("train/x"), *numbered("val/x"))
    csv_file(root, "labels.tsv", "path\tlabel", [(p[:-4], "ab"[n % 2]) for n, p in enumerate(paths)], "\t")
    return {path: (path.split("/")[0], "ab"[n % 2]) for n, path in enumerate(paths)}


def table_of_the_validation_beside_class_folders(root):
    truth = class_folders(root, "train/a", "train/b", split_at=0)
    paths = pictures(root, *numbered("val"))
    csv_file(root, "val_labels.csv", "file,label", [(name(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    return truth | a_and_b(paths, "val")


def table_with_one_column_of_flags(root):
    """Its name says no class, and the names of images hold its digits."""
    paths = pictures(root, *(f"images/{1500 + n}.jpg" for n in range(4)))
    csv_file(root, "train.csv", "image_names,or_not", [(name(p), n % 2) for n, p in enumerate(paths)])
    return {path: ("train", str(n % 2)) for n, path in enumerate(paths)}


def table_with_names_of_what_is_missing(root):
    paths = pictures(root, *numbered("images"))
    csv_file(
        root, "labels.csv", "image,label", [(name(p), ["cat", "dog", "NaN", "cat"][n]) for n, p in enumerate(paths)]
    )
    return {path: (ANY, ["cat", "dog", "NaN", "cat"][n]) for n, path in enumerate(paths)}


def table_of_lesions(root):
    paths = pictures(root, *numbered("images", 6))
    csv_file(root, "meta.csv", "lesion_id,image_id,dx", [(n // 2, stem(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    return a_and_b(paths)


def table_of_boxes_that_fit_no_image(root):
    rows = [(p, "cat", 100, 100, 200, 200) for p in pictures(root, *numbered("images"))]
    csv_file(root, "boxes.csv", "image,label,xmin,ymin,xmax,ymax", rows)
    return "the boxes of xmin, ymin, xmax, ymax do not lie in their images as xyxy, such as row 1"


# --- what is refused by name ----------------------------------------------------------------------------------------


def cvat_xml(root):
    pictures(root, *numbered("images"))
    write(root, "annotations.xml", '<annotations><image id="0" name="a.jpg"></image></annotations>')
    return "annotations.xml is a file of CVAT.*export COCO"


def create_ml(root):
    pictures(root, *numbered("images"))
    content = [{"image": "images00.jpg", "annotations": [{"label": "cat", "coordinates": {"x": 1, "y": 2}}]}]
    write(root, "images/_annotations.createml.json", content)
    return "is a file of CreateML.*convert it to COCO"


def json_of_another_tool(root):
    write(root, "labels.json", {name(path): "cat" for path in pictures(root, *numbered("images"))})
    return "labels.json name images, and tfprep does not read their format.*--as images"


def text_files_of_another_tool(root):
    content = "gsd:0.1\n14 10 42 10 42 30 14 30 plane 0\n"
    beside(root, pictures(root, *numbered("images")), "labelTxt/{}.txt", content)
    return "labelTxt/images00.txt are called like images"


def list_of_classes(root):
    write(root, "train.txt", "".join(f"{path} {n % 2}\n" for n, path in enumerate(pictures(root, *numbered("images")))))
    return "train.txt name images, and tfprep does not read"


FILES = {
    "train.tfrecord-00000-of-00001": "tfprep index 'PATTERN' --split SPLIT",
    "train-images-idx3-ubyte.gz": r"MNIST's idx files; init reads .* keras.datasets.mnist.load_data.*numpy.savez\('mnist.npz'",
    "cifar-10-batches-py/data_batch_1": "CIFAR's batches",
    "cifar-100-python/meta": "meta belongs to CIFAR-100's files; .*keras.datasets.cifar100",
    "mnist_train.csv": r"tables without images; .* init reads .* numpy.loadtxt\('FILE'",
    "imagesTr/liver_0.nii.gz": r"NIfTI; init reads .*nibabel.load\('FILE'",
    "data.7z": "data.7z belongs to archives that tfprep does not read: unpack them",
    "2024/IMG_1.HEIC": "photos as phones and cameras keep them: export them as JPEG",
    "images.h5": r"HDF5; init reads .* h5py.File\('FILE'\)",
}


def classes_of_one_split_alone(root):
    class_folders(root, "train/n01", "train/n02", split_at=0)
    pictures(root, *numbered("val/images"))
    return "val/ has the folders images, which are no classes of train/"


def class_folders_in_a_zip(root):
    return zipped(root, "", "cat", "dog")


def splits_in_a_zip(root):
    truth = zipped(root, "", "train/cat", "train/dog", "val/cat")
    return {path: (path.split("/")[1], value) for path, (_, value) in truth.items()}


def zipped(root: Path, prefix: str, *folders: str) -> Truth:
    """A zip file of class folders. Its samples are named by the archive and the name inside."""
    names = [name for folder in folders for name in numbered(f"{prefix}{folder}")]
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        for number, name in enumerate(names):
            write_picture(root / "picture.jpg", number, HEIGHT, WIDTH)
            archive.write(root / "picture.jpg", name)
    (root / "picture.jpg").unlink()
    return {f"all.zip/{name}": (ANY, name.split("/")[-2]) for name in names}


def zip_of_a_mac(root):
    """With a file of attributes beside each image."""
    truth = class_folders_in_a_zip(root)
    with zipfile.ZipFile(root / "all.zip", "a") as archive:
        for path in truth:
            archive.writestr(f"__MACOSX/{path.split('/')[1]}/._{name(path)}", b"\0\5\x16\7")
    return truth


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


def images_in_a_compressed_tar(root):
    """As the flowers of Oxford."""
    paths = pictures(root, *numbered("jpg"))
    with tarfile.open(root / "flowers.tgz", "w:gz") as archive:
        archive.add(root / "jpg", "jpg")
    shutil.rmtree(root / "jpg")
    return {f"flowers.tgz/{path}": (ANY, None) for path in paths}


def masks_in_a_zip(root):
    zipped(root, "", "images", "masks")
    return "nothing says how they belong together; unpack the archive, and run init on the folder"


def zips_of_splits(root):
    truth: Truth = {}
    for split in ("train", "test"):
        (root / split).mkdir()
        of_split = zipped(root / split, "", "cat", "dog")
        (root / split / "all.zip").rename(root / f"{split}.zip")
        truth |= {path.replace("all", split, 1): (split, label) for path, (_, label) in of_split.items()}
    return truth


def tars_in_a_tar(root):
    truth: Truth = {}
    with tarfile.open(root / "img_train.tar", "w") as outer:
        for label in ("n01", "n02"):
            with tarfile.open(root / f"{label}.tar", "w") as inner:
                for path in pictures(root, *numbered(label)):
                    inner.add(root / path, name(path))
                    truth[f"img_train.tar/{path}"] = ("train", label)
            outer.add(root / f"{label}.tar", f"{label}.tar")
            (root / f"{label}.tar").unlink()
            shutil.rmtree(root / label)
    return truth


def zip_of_coco(root):
    zipped(root, "", "images")
    with zipfile.ZipFile(root / "all.zip", "a") as archive:
        archive.writestr("labels.json", "{}")
    return "the archive holds images and files of annotations .json.; unpack it"


def tiny_imagenet(root):
    truth: Truth = {}
    for label in ("n01", "n02"):
        truth |= dict.fromkeys(pictures(root, *numbered(f"train/{label}/images", suffix=".JPEG")), ("train", label))
    paths = pictures(root, *numbered("val/images", suffix=".JPEG"))
    lines = (f"{name(p)}\tn0{1 + n % 2}\t0\t0\t9\t9\n" for n, p in enumerate(paths))
    write(root, "val/val_annotations.txt", "".join(lines))
    pictures(root, *numbered("test/images", suffix=".JPEG"))
    return truth | {path: ("val", f"n0{1 + n % 2}") for n, path in enumerate(paths)}


def imagenet_with_its_devkit(root):
    truth = class_folders(root, "train/n01", "train/n02", split_at=0)
    paths = pictures(root, *(f"val/ILSVRC2012_val_{n:08}.JPEG" for n in (1, 2, 3, 4)))
    devkit = root / "ILSVRC2012_devkit_t12/data"
    devkit.mkdir(parents=True)
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1\n1\n2\n")
    names = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    scipy.io.savemat(devkit / "meta.mat", {"synsets": np.array([(1, "n02", "b"), (2, "n01", "a")], names)})
    return truth | {path: ("val", label) for path, label in zip(paths, ["n01", "n02", "n02", "n01"], strict=True)}


def masks_of_voc(root):
    truth = masks(root, numbered("JPEGImages"), lambda p: f"SegmentationClass/{stem(p)}.png", None, 0, 1, 2)
    stems = [stem(path) for path in truth]
    write(root, "ImageSets/Segmentation/train.txt", "\n".join(stems[:3]))
    write(root, "ImageSets/Segmentation/val.txt", stems[3])
    return {path: ("val" if stems[3] in path else "train", value) for path, (_, value) in truth.items()}


def trimaps_in_a_deeper_folder(root):
    return masks(root, numbered("images"), lambda p: f"annotations/trimaps/{stem(p)}.png", None, 1, 2, 3)


def masks_of_splits_in_one_folder(root):
    images = [*numbered("train"), *numbered("valid")]
    return masks(root, images, lambda p: f"masks/{p[:-4]}.png", 0, 0, 1)


def masks_beside_satellite_images(root):
    paths = [f"train/{n}_sat.jpg" for n in range(4)]
    return masks(root, paths, lambda p: p.replace("sat.jpg", "mask.png"), 0, 0, 1, 2)


def mask_names_alone(root):
    for n in range(4):
        pictures(root, f"data/a{n}.jpg")
        mask(root, f"data/b{n}_mask.png", 0, 1)
    return "data/b0_mask.png are called like masks, and nothing says which images they belong to"


def instance_masks_in_files(root):
    for case in "ab":
        pictures(root, f"stage1_train/{case}/images/{case}.png")
        mask(root, f"stage1_train/{case}/masks/1.png", 0, 255)
    return "images/ and masks/ are called like folders of images and masks, below what would be the classes"


def splits_with_more_in_their_names(root):
    """As Kaggle's natural scenes."""
    truth = class_folders(
        root, "seg_train/seg_train/sea", "seg_train/seg_train/ice", "seg_test/seg_test/sea", split_at=0
    )
    pictures(root, *numbered("seg_pred/seg_pred"))
    return {path: (split.removeprefix("seg_"), path.split("/")[2]) for path, (split, _) in truth.items()}


def splits_of_images_by_their_names(root):
    paths = pictures(root, *numbered("train_images"), *numbered("val_images"))
    return {path: (path.partition("_")[0], None) for path in paths}


def splits_inside_themselves(root):
    """As dogs and cats of Kaggle."""
    paths = pictures(root, *(f"train/train/{label}.{n}.jpg" for label in ("cat", "dog") for n in range(3)))
    return {path: (path.split("/")[0], None) for path in (*paths, *pictures(root, *numbered("test/test")))}


def splits_with_numbers_beside_training(root):
    paths = pictures(root, *numbered("train"), *numbered("test1"))
    return {path: (path.split("/")[0], None) for path in paths}


def splits_with_a_copy_of_themselves(root):
    """As the chest X-rays of Kaggle; the folders of the copy are no classes."""
    folders = [f"{split}/{label}" for split in ("train", "test") for label in ("ok", "bad")]
    class_folders(root, *(f"xray/xray/{folder}" for folder in folders))
    return class_folders(root, *(f"xray/{folder}" for folder in folders), split_at=1)


def classes_with_and_without_masks(root):
    return class_folders(root, "with_mask", "without_mask")


def a_class_called_test(root):
    return class_folders(root, "control", "test")


def thumbnails_below_classes(root):
    truth = class_folders(root, "cat", "dog")
    for path in list(truth):
        folder, file = path.split("/")
        small = Image.open(root / path).resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.BOX)
        (root / folder / "small").mkdir(exist_ok=True)
        small.save(root / folder / "small" / file)
        truth[f"{folder}/small/{file}"] = (ANY, folder)
    return truth


def pictures_and_depths_of_one_name(root):
    """As NYU's depths."""
    pictures(
        root, *(f"{scene}/{n}.{suffix}" for scene in ("bath", "hall") for n in range(4) for suffix in ("jpg", "png"))
    )
    return "bath/0.jpg and 0.png have one name, and nothing says how they belong together.*--as folders"


def noisy_and_true_pictures_in_folders_of_scenes(root):
    """As SIDD."""
    pictures(root, *(f"S{s}/{s}_{kind}_SRGB_{n}.png" for s in range(3) for kind in ("GT", "NOISY") for n in (1, 2)))
    return "S0/0_GT_SRGB_1.png are called like masks, and nothing says which images they belong to"


def several_hazy_pictures_of_a_clear_one(root):
    """As RESIDE."""
    paths = [f"clear/{n}.png" for n in range(4)] + [f"hazy/{n}_{k}_0.9.png" for n in range(4) for k in range(2)]
    return {path: (ANY, path.split("/")[0]) for path in pictures(root, *paths)}


def hazy_and_clear_pictures_by_the_ends_of_their_names(root):
    """As O-HAZE."""
    paths = [f"{kind}/{n}_outdoor_{kind}.jpg" for kind in ("GT", "hazy") for n in range(4)]
    return {path: (ANY, path.split("/")[0]) for path in pictures(root, *paths)}


def folders_of_days(root):
    return class_folders(root, "2024-05-03", "2024-05-04 Rome", "2025")


def folders_of_a_camera(root):
    return class_folders(root, "DCIM/100CANON", "DCIM/101CANON")


def folders_of_patients(root):
    return class_folders(root, "patient001", "patient002", "patient_3")


def classes_below_a_folder_in_each_split(root):
    truth = class_folders(root, "train/images/cat", "train/images/dog", "val/images/cat", split_at=0)
    return {path: (split, None) for path, (split, _) in truth.items()}


def stereo_of_kitti(root):
    pictures(root, *numbered("training/image_2"), *numbered("training/image_3"), *numbered("training/disp_occ_0"))
    pictures(root, *numbered("testing/image_2"), *numbered("testing/image_3"))
    return "image_2/ and image_3/ and disp_occ_0/ are called like folders of images and masks"


def points_in_files_called_like_images(root):
    """As the heads of cats of the CAT data set."""
    for path in pictures(root, *numbered("CAT_00"), *numbered("CAT_01")):
        write(root, f"{path}.cat", "9 1 2 3 4")
    return "CAT_00/CAT_0000.jpg.cat are called like images"


def points_in_files_of_matlab(root):
    """As ShanghaiTech."""
    beside(root, pictures(root, *numbered("train_data/images")), "train_data/ground-truth/GT_{}.mat", "MATLAB")
    return "train_data/ground-truth/GT_train_data_images00.mat are called like images"


def geojson_of_xview(root):
    pictures(root, *numbered("train_images"), *numbered("val_images"))
    write(root, "xView_train.geojson", {"features": [{"properties": {"image_id": "train_images00.jpg"}}]})
    return "xView_train.geojson name images, and tfprep does not read their format"


def folds(root):
    class_folders(root, "fold1/a", "fold1/b", "fold2/a")
    return "fold1/ is called like a part of the data, not like a class"


def masks_of_mapillary(root):
    """Instances lie beside the masks, and a second version of the masks deeper in the tree."""
    images = pictures(root, *numbered("training/images"))
    for folder in ("v1.2/instances", "v2.0/labels"):
        masks(root, images, lambda path, folder=folder: f"training/{folder}/{stem(path)}.png", 0, 7)
    return masks(root, images, lambda path: f"training/v1.2/labels/{stem(path)}.png", 0, 1)


def masks_of_bdd100k(root):
    """Pictures of the masks lie beside them."""
    images = pictures(root, *numbered("images/10k/train"))
    masks(root, images, lambda path: f"labels/sem_seg/colormaps/train/{stem(path)}.png", 2, 7)
    return masks(root, images, lambda path: f"labels/sem_seg/masks/train/{stem(path)}.png", 2, 0, 1)


def masks_of_kitti(root):
    images = pictures(root, *numbered("training/image_2"), *numbered("testing/image_2"))
    for folder in ("semantic", "instance"):
        masks(root, images[:4], lambda path, folder=folder: f"training/{folder}/{stem(path)}.png", 1, 7)
    return masks(root, images[:4], lambda path: f"training/semantic/{stem(path)}.png", 0, 7, 8)


def masks_and_fields_of_view(root):
    """As DRIVE."""
    paths = [f"training/images/{n}_training.tif" for n in range(4)]
    masks(root, paths, lambda path: f"training/1st_manual/{stem(path)[0]}_manual1.png", 0, 0, 255)
    return masks(root, paths, lambda path: f"training/mask/{stem(path)}_mask.png", 0, 0, 1)


def masks_in_shades_of_gray(root):
    """As REFUGE."""
    paths = [f"{split}/Images/{split}{n}.jpg" for split in ("train", "val") for n in range(4)]
    return masks(root, paths, lambda path: path.replace("Images", "gts").replace(".jpg", ".bmp"), 0, 0, 128, 255)


def masks_of_defects_alone(root):
    """As DAGM."""
    paths = numbered("Class1/Train", 6, ".PNG")
    return masks(root, paths[:3], lambda path: f"Class1/Train/Label/{stem(path)}_label.PNG", 1, 0, 1) | dict.fromkeys(
        pictures(root, *paths[3:]), ("Train", "no mask")
    )


def masks_beside_lists_of_splits(root):
    """As CamVid of fast.ai."""
    write(root, "valid.txt", "images00.png")
    return masks(root, numbered("images", suffix=".png"), lambda path: f"labels/{stem(path)}_P.png", None, 4, 17)


def masks_told_by_the_beginning_of_their_names(root):
    return masks(root, [f"data/image_{n:03}.png" for n in range(4)], lambda p: p.replace("image", "mask"), None, 0, 1)


def masks_of_splits_told_by_the_beginning_of_their_names(root):
    paths = [f"{split}/images/{n}.jpg" for split in ("train", "val") for n in range(9, 13)]
    return masks(root, paths, lambda p: f"{p.split('/')[0]}/masks/mask_{stem(p)}.png", 0, 0, 1)


def masks_below_folders_of_data(root):
    """As CRACK500."""
    paths = [f"{split}data/{split}data/{split}{n}.jpg" for split in ("train", "test") for n in range(4)]
    truth = masks(root, paths, lambda path: path.replace(".jpg", "_mask.png"), None, 0, 1)
    return {path: (path.partition("data")[0], value) for path, (_, value) in truth.items()}


def masks_of_training_and_more_of_tests(root):
    """As the sets of polyps: the tests are not what is divided anew."""
    tests = [f"TestDataset/{name}/images/{n}.png" for name in ("CVC", "ETIS") for n in range(4)]
    masks(root, tests, lambda path: path.replace("images", "masks"), None, 0, 1)
    paths = [f"TrainDataset/image/{n}.png" for n in range(4)]
    return masks(root, paths, lambda path: path.replace("image", "mask"), None, 0, 1)


def masks_beside_run_lengths(root):
    """As Kaggle's salt."""
    truth = masks(root, numbered("train/images"), lambda path: f"train/masks/{stem(path)}.png", 0, 0, 255)
    csv_file(root, "train.csv", "id,rle_mask", [(stem(path), "1 20") for path in truth])
    return truth


def masks_of_objects(root):
    for n, path in enumerate(paths := pictures(root, *numbered("images"))):
        mask(root, f"masks/{stem(path)}.png", 0)
        Image.fromarray(np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint16) % (90 + n)).save(
            root / f"masks/{stem(path)}.png"
        )
    return {path: (ANY, tuple(range(90 + n))) for n, path in enumerate(paths)}


def versions_of_class_folders(root):
    """As in PlantVillage."""
    class_folders(root, "color/rot", "color/rust", "gray/rot", "gray/rust")
    return (
        r"the folders color, gray have the folders rot, rust: .*sources.Folder\('color/\{label\}/\*\*'\).*--as images"
    )


def depth_beside_images(root):
    pictures(root, *numbered("rgb", suffix=".png"))
    pictures(root, *(f"depth/rgb{n:02}.png" for n in range(4)))
    return "rgb/ and depth/ are called like folders of images and masks"


def images_of_two_resolutions(root):
    """As in DIV2K: the names of the files differ."""
    pictures(root, "train_HR/1.png", "train_HR/2.png", "train_LR/1x2.png", "train_LR/2x2.png")
    return "train_HR/ and train_LR/ are called like folders of images and masks"


def images_of_two_resolutions_in_splits(root):
    pictures(
        root,
        *(
            f"D_{split}_{kind}/{split}{n}.png"
            for split in ("train", "valid")
            for kind in ("HR", "LR_x2")
            for n in (1, 2)
        ),
    )
    return "D_train_HR/ is called like a part of the data, not like a class"


def classes_with_folders_in_them(root):
    truth = class_folders(root, "animals/cat", "animals/dog", "plants/rose")
    return {path: (ANY, path.split("/")[0]) for path in truth}


def one_folder_below_each_split(root):
    truth = class_folders(root, "training/image_2", "testing/image_2", split_at=0)
    return {path: (split, None) for path, (split, _) in truth.items()}


def kitti(root):
    content = "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64\n"
    beside(root, pictures(root, *numbered("training/image_2")), "training/label_2/{}.txt", content)
    return "training/label_2/training_image_200.txt are called like images.*the format of KITTI; convert boxes to COCO"


def boxes_and_trimaps(root):
    paths = [*trimaps_in_a_deeper_folder(root)]
    return objects(beside(root, paths, "annotations/xmls/{}.xml", voc_xml()))


def table_of_paths(root):
    """As of the roads of Massachusetts: the column of splits is no class."""
    paths = [f"tiff/{split}/{split}{n}.tiff" for split in ("train", "val") for n in range(4)]
    truth = masks(root, paths, lambda path: f"{path.rpartition('/')[0]}_labels/{stem(path)}.tif", 1, 0, 1)
    rows = (f"{stem(p)},{p.split('/')[1]},{p},{p.rpartition('/')[0]}_labels/{stem(p)}.tif" for p in paths)
    write(root, "metadata.csv", "\n".join(["image_id,split,tiff_image_path,tif_label_path", *rows]))
    return truth


def table_beside_two_folders(root):
    """As Kaggle's CIFAR-10."""
    pictures(root, *(f"test/{n}.png" for n in range(4)))
    write(root, "trainLabels.csv", "\n".join(["id,label", *(f"{n},{'ab'[n % 2]}" for n in range(4))]))
    return {path: (ANY, "ab"[int(stem(path)) % 2]) for path in pictures(root, *(f"train/{n}.png" for n in range(4)))}


def table_of_images_of_one_name(root):
    pictures(root, *(f"{folder}/{n}.png" for folder in ("large", "small") for n in range(4)))
    write(root, "all.csv", "\n".join(["id,label", *(f"{n},{'ab'[n % 2]}" for n in range(4))]))
    return (
        r"the images that 'id' names are in large/ and in small/; write .* sources.Table\('all.csv', 'large/\{id\}.png'"
    )


def table_of_label_studio(root):
    """The numbers of annotations are those of images too."""
    pictures(root, *(f"images/{n}.jpg" for n in range(4)))
    rows = (f"/data/{n}.jpg,{n},{'Cat' if n % 2 else 'Dog'},{n}" for n in range(4))
    write(root, "project.csv", "\n".join(["image,id,choice,annotation_id", *rows]))
    return r"none of its columns \(image, choice\) is called like a class"


def masks_of_splits_by_their_names(root):
    """As in LIP, with the same names in both splits."""
    paths = [f"{split}_images/{n}.jpg" for split in ("train", "val") for n in range(4)]
    truth = masks(root, paths, lambda path: path.replace("images", "segmentations")[:-3] + "png", None, 0, 1)
    return {path: (path.partition("_")[0], value) for path, (_, value) in truth.items()}


def masks_of_duts(root):
    paths = [f"DUTS-{split}/DUTS-{split}-Image/{split}{n}.jpg" for split in ("TR", "TE") for n in range(4)]
    truth = masks(root, paths, lambda path: path.replace("Image", "Mask")[:-3] + "png", None, 0, 255)
    return {path: (path[5:7], (0, 1)) for path in truth}


def masks_of_train_val(root):
    """As in SUIM, with further masks of the test split."""
    images = [*numbered("train_val/images"), *numbered("TEST/images")]
    truth = masks(root, images, lambda path: path.replace("/images/", "/masks/")[:-3] + "png", 0, 0, 1)
    masks(root, numbered("TEST/images"), lambda path: f"TEST/masks/FV/{stem(path)}.png", 0, 0, 1)
    return truth


def masks_below_classes(root):
    """As in COVID-QU; Normal is a class, and no map of normals."""
    paths = [*numbered("Train/Covid/images"), *numbered("Train/Normal/images"), *numbered("Val/Normal/images")]
    return masks(root, paths, lambda path: path.replace("/images/", "/lung masks/")[:-3] + "png", 0, 0, 1)


def masks_beside_masks_of_parts(root):
    """As in the whole of ADE20K."""
    paths = [f"images/{split}/{n}.jpg" for split in ("training", "validation") for n in range(4)]
    masks(root, paths, lambda path: path.replace(".jpg", "_parts_1.png"), 1, 0, 9)
    return masks(root, paths, lambda path: path.replace(".jpg", "_seg.png"), 1, 0, 1)


def masks_beside_their_pictures(root):
    """As in SYNTHIA."""
    paths = numbered("RGB", suffix=".png")
    masks(root, paths, lambda path: f"GT/COLOR/{name(path)}", None, 0, 9)
    return masks(root, paths, lambda path: f"GT/LABELS/{name(path)}", None, 0, 1)


def masks_of_several_people(root):
    """As in CHASE."""
    paths = [f"Image_{n:02}L.jpg" for n in range(12)]
    for end in ("1stHO", "2ndHO"):
        masks(root, paths, lambda path, end=end: f"{stem(path)}_{end}.png", None, 0, 255)
    return r"Image_\d\dL_...HO.png have few colors, as masks have, and files such as Image_\d\dL.jpg are pictures"


def masks_among_what_may_be_classes(root):
    """As in Potsdam."""
    pictures(root, *numbered("1_DSM", 8, ".png"), *numbered("2_Ortho", 8, ".png"))
    masks(root, numbered("2_Ortho", 8, ".png"), lambda path: f"5_All/{name(path)}", None, 0, 1)
    return "files such as 5_All/.* have few colors, as masks have.*--as folders"


def masks_of_other_colors(root):
    """CamVid's folders with colors that are not CamVid's."""
    pictures(root, *numbered("701_StillsRaw_full", suffix=".png"))
    masks(
        root,
        numbered("701_StillsRaw_full", suffix=".png"),
        lambda path: f"LabeledApproved_full/{stem(path)}_L.png",
        None,
        0,
    )
    for path in (root / "LabeledApproved_full").iterdir():
        Image.new("RGB", (WIDTH, HEIGHT), (1, 2, 3)).save(path)
    return r"none of the samples that were opened can be read.*\(1, 2, 3\) is not in the palette"


def copies_of_classes(root):
    class_folders(root, "cat", "dog", "all/cat", "all/dog")
    return "all/cat/ is below what would be the class all, and called like another class; write the recipe by hand"


def splits_below_what_may_be_classes(root):
    class_folders(root, "small/small/ok", "small/small/bad", "large/large/train/ok", "large/large/test/bad")
    return "large/large/test/ is below what would be the class large, and called like a part of the data"


def sequences_of_mot17(root):
    for name in ("MOT17-02", "MOT17-04"):
        pictures(root, *numbered(f"train/{name}/img1"))
        write(root, f"train/{name}/gt/gt.txt", "1,1,5,5,20,20,1,1,1")
    return "train/MOT17-02/gt/gt.txt is below what would be a class, in a folder without images, and no source reads it"


def shards_of_img2dataset(root):
    for folder in ("00000", "00001"):
        beside(root, pictures(root, *numbered(folder)), folder + "/{}.json", {"caption": "a dog"})
    return r"files such as 00000/00000\d+.json are called like images"


def labels_in_an_unknown_format(root):
    """As in CrowdHuman."""
    write(root, "annotation_train.odgt", '{"ID": "1", "gtboxes": []}')
    return dict.fromkeys(pictures(root, *numbered("Images")), (ANY, None))


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


def masks_named_by_a_map_of_cvat(root):
    truth = masks(root, numbered("JPEGImages"), lambda path: f"SegmentationClass/{stem(path)}.png", None, 0)
    for path in (root / "SegmentationClass").iterdir():
        Image.fromarray(np.repeat([[(0, 0, 0), (51, 221, 255)]], HEIGHT, 0).astype(np.uint8)).resize(
            (WIDTH, HEIGHT), 0
        ).save(path)
    write(
        root, "labelmap.txt", "# label:color_rgb:parts:actions\nbackground:0,0,0::\ndog:128,0,0::\ncat:51,221,255::\n"
    )
    return dict.fromkeys(truth, (ANY, (0, 2)))


def masks_of_floodnet(root):
    paths = [f"{split}/{split}-org-img/{n}.jpg" for split in ("train", "val") for n in range(4)]
    return masks(root, paths, lambda path: path.replace("org", "label").replace(".jpg", "_lab.png"), 0, 0, 1)


def masks_of_a_drone(root):
    """As the Semantic Drone Dataset, with pictures of the masks."""
    paths = numbered("data/original_images")
    masks(root, paths, lambda path: f"RGB_color_image_masks/{stem(path)}.png", None, 0, 7)
    return masks(root, paths, lambda path: f"data/label_images_semantic/{stem(path)}.png", None, 0, 1)


def masks_of_splits_in_the_names_of_files(root):
    """As in GlaS."""
    paths = [f"{split}_{n}.bmp" for split in ("train", "testA") for n in range(4)]
    return masks(root, paths, lambda path: f"{stem(path)}_anno.bmp", None, 0, 1)


def folders_of_masks_alone(root):
    class_folders(root, "train", "val")
    mask(root, "train_labels/9.png", 0, 1)
    return "train_labels/ is called like masks, and nothing says which images they belong to"


def classes_below_patients(root):
    """As in the histopathology of Kaggle: one patient has no folder 1."""
    class_folders(root, "8863/0", "8863/1", "9023/0", "9023/1", "9135/0")
    return (
        r"the folders 8863, 9023, 9135 have the folders 0, 1: which of them .*sources.Folder\('8863/\{label\}/\*\*'\)"
    )


def classes_below_letters(root):
    """As in SUN397."""
    class_folders(root, "a/abbey", "a/airport", "b/bar")
    return "the folders a, b have the folders abbey, airport, bar: which of them are the classes"


def alphabets_of_omniglot(root):
    class_folders(root, "images_background/Greek", "images_background/Latin", "images_evaluation/Ge_ez")
    return "images_background/ and images_evaluation/ are called like folders of images and masks"


def splits_with_numbers(root):
    class_folders(root, "data_256/abbey", "data_256/bar", "val_256")
    return "val_256/ is called like a part of the data, not like a class"


def labels_in_text_files_of_icdar(root):
    beside(root, pictures(root, *numbered("images")), "gt/gt_{}.txt", "5,5,20,5,20,20,5,20,HELLO")
    return "gt/gt_images00.txt are called like images"


def table_of_parts_of_images(root):
    """As the Human Protein Atlas: four images a sample."""
    pictures(root, *(f"train/{n}abc_{color}.png" for n in range(4) for color in ("red", "green")))
    write(root, "train.csv", "\n".join(["Id,Target", *(f"{n}abc,{n}" for n in range(4))]))
    return "files such as train.csv name images"


def table_of_kaggle_with_numbers_of_classes(root):
    """As GTSRB of Kaggle: ClassId names the pictures of the classes too."""
    truth = {}
    for split in ("Train", "Test"):
        paths = pictures(root, *numbered(split))
        write(root, f"{split}.csv", "\n".join(["ClassId,Path", *(f"{n % 2},{path}" for n, path in enumerate(paths))]))
        truth |= {path: (split, str(n % 2)) for n, path in enumerate(paths)}
    pictures(root, "Meta/0.png", "Meta/1.png")
    return truth


def table_whose_test_lacks_the_target(root):
    """As Kaggle's Petfinder: the flags are no classes."""
    paths = pictures(root, *numbered("train", 8))
    write(
        root,
        "train.csv",
        "\n".join(["Id,Eyes,Face,kind", *(f"{stem(p)},{n % 2},1,{'ab'[n % 2]}" for n, p in enumerate(paths))]),
    )
    pictures(root, *numbered("test"))
    write(root, "test.csv", "\n".join(["Id,Eyes,Face", *(f"test{n:02},1,0" for n in range(4))]))
    return {path: ("train", "ab"[n % 2]) for n, path in enumerate(paths)}


def table_of_splits_in_two_folders(root):
    """As ISIC 2018, where folders and files are called by the split."""
    truth = {}
    for split in ("Training", "Validation"):
        paths = pictures(root, *numbered(f"Task3_{split}_Input"))
        csv_file(
            root,
            f"Task3_{split}_Truth/Task3_{split}_Truth.csv",
            "image,dx",
            [(stem(p), "ab"[n % 2]) for n, p in enumerate(paths)],
        )
        truth |= a_and_b(paths, split)
    return truth


def masks_of_sequences(root):
    paths = [path for sequence in ("seq0", "seq1") for path in numbered(sequence)]
    return masks(root, paths, lambda path: f"{path.split('/')[0]}_mask/{stem(path)}.png", None, 0, 1)


def table_beside_an_archive(root):
    zipped(root, "", "images")
    write(root, "labels.csv", "image,label\nimages00.jpg,a\n")
    return "the archives hold images alone, and this recipe does not read labels.csv; unpack the archives"


# --- what is ordinary, and gives no doubt -----------------------------------------------------------------------------


def classes_called_like_splits(root):
    return class_folders(root, "test_negative", "test_positive", "valid_ticket")


def classes_without_anything(root):
    """As in data of defects."""
    return class_folders(root, "missing", "none", "scratch")


def classes_of_numbers(root):
    return class_folders(root, "0", "10", "1001", "2001")


def classes_in_files_called_like_masks(root):
    paths = [f"{label}/{label}_{n}.jpg" for label in ("clutter", "target") for n in range(4)]
    return {path: (ANY, path.split("/")[0]) for path in pictures(root, *paths)}


def classes_in_png_files_called_like_masks(root):
    paths = [f"{label}/{label}_{n}.png" for label in ("clutter", "target") for n in range(4)]
    return {path: (ANY, path.split("/")[0]) for path in pictures(root, *paths)}


def masks_in_jpeg_beside_their_images(root):
    pictures(root, *(f"{kind}_{n}.jpg" for kind in ("img", "mask") for n in range(4)))
    return r"mask_\*.jpg seem to be the masks of img_\*.jpg; JPEG does not keep class numbers"


def classes_that_begin_like_folders_of_images(root):
    return class_folders(root, "raw_beef", "raw_chicken", "cooked_beef")


def splits_beside_the_form_of_an_answer(root):
    """As Dogs vs. Cats of Kaggle."""
    paths = pictures(root, *numbered("train"), *numbered("test"))
    csv_file(root, "sample_submission.csv", "id,label", [(name(p), 0) for p in paths[4:]])
    return {path: (path.split("/")[0], None) for path in paths}


def masks_without_an_image(root):
    for n in (8, 9):
        mask(root, f"masks/{n}.png", 0, 1)
    return masks(root, [f"images/{n}.jpg" for n in range(4)], lambda path: f"masks/{stem(path)}.png", None, 0, 1)


def masks_beside_a_drawing(root):
    mask(root, "logo.png", 0, 1)
    return masks(root, [f"images/{n}.jpg" for n in range(4)], lambda path: f"masks/{stem(path)}.png", None, 0, 1)


def masks_in_a_folder_for_each_image(root):
    """As in the Data Science Bowl of 2018."""
    paths = [f"{n}/images/{n}.png" for n in range(4)]
    return masks(root, paths, lambda path: path.replace("images", "mask"), None, 0, 1)


def coco_with_a_few_images_without_objects(root):
    paths = pictures(root, *numbered("images", 20))
    content = coco_json([*map(name, paths)])
    write(root, "labels.json", content | {"annotations": content["annotations"][1:]})
    return objects(paths) | {paths[0]: (ANY, [])}


def table_of_scenes(root):
    paths = pictures(root, *numbered("images"))
    csv_file(
        root,
        "meta.csv",
        "image,scene,label",
        [(name(p), ["in", "out"][n // 2], "ab"[n % 2]) for n, p in enumerate(paths)],
    )
    return a_and_b(paths)


def table_with_patients_of_some(root):
    paths = pictures(root, *numbered("images"))
    csv_file(
        root,
        "meta.csv",
        "image,patient,label",
        [(name(p), ["", "", "p", "q"][n], "ab"[n % 2]) for n, p in enumerate(paths)],
    )
    return a_and_b(paths)


def table_of_a_validation_of_all_images(root):
    paths = pictures(root, *numbered("train"), *numbered("test"))
    csv_file(root, "labels_validation.csv", "image,label", [(p, "ab"[n % 2]) for n, p in enumerate(paths)])
    return a_and_b(paths)


def table_of_the_test_alone(root):
    pictures(root, *numbered("train"))
    paths = pictures(root, *numbered("test"))
    csv_file(root, "test.csv", "image,label", [(name(p), "ab"[n % 2]) for n, p in enumerate(paths)])
    return "test.csv has labels of a part of the images alone; write the recipe by hand"


def table_with_an_index_beside_names_of_other_images(root):
    pictures(root, *(f"images/{n:04}.jpg" for n in range(4)))
    csv_file(root, "meta.csv", ",image,label", [(n, f"{n}x.jpg", "ab"[n % 2]) for n in range(4)])
    return "no folder holds the images that 'image' names, such as 0x.jpg"


LAYOUTS = [one for one in list(globals().values()) if isfunction(one) and [*signature(one).parameters] == ["root"]]
"""A layout returns what is read, or, where it is refused, what is said."""
SAID = {
    splits_with_more_in_their_names: "seg_pred/seg_pred/ holds 4 .jpg files that this recipe does not read",
    splits_inside_themselves: "the file names begin with 2 words (cat, dog), which may be classes",
    splits_with_a_copy_of_themselves: "xray/xray/test/bad/ holds 4 .jpg files that this recipe does not read",
    a_class_called_test: "unsure: test/ is called like a part of the data: is it a class?",
    thumbnails_below_classes: "seem to be one picture, and 15 more of those opened have a copy too",
    several_hazy_pictures_of_a_clear_one: "unsure: clear/ and hazy/ hold files of the same names",
    hazy_and_clear_pictures_by_the_ends_of_their_names: "unsure: GT/ and hazy/ hold files of the same names",
    folders_of_days: "unsure: the folders 2024-05-03, 2024-05-04 Rome, 2025 are called like dates",
    folders_of_a_camera: "unsure: the folders 100CANON, 101CANON are called like dates, folders of cameras",
    folders_of_patients: "--as images reads them without",
    classes_below_a_folder_in_each_split: "which is no class; if those in it (cat, dog) are classes: "
    "sources.Folder('{split}/images/{label}/**')",
    masks_of_sequences: "makes them classes, or group_by= keeps each in one split",
    masks_of_kitti: "training/instance/ holds 4 .png files that this recipe does not read",
    masks_and_fields_of_view: "unsure: training/1st_manual/ may hold masks too",
    masks_of_training_and_more_of_tests: "TestDataset/CVC/masks/ holds 4 .png files that this recipe does not read",
    yolo_whose_test_has_no_labels: "unsure: test: all samples have no objects",
    masks_in_shades_of_gray: "unsure: the masks hold 0, 128, 255: are these shades of gray",
    masks_of_defects_alone: "unsure: image without its mask, which is a reject: 3",
    masks_beside_lists_of_splits: "unsure: valid.txt may say which images are for training, and this recipe draws new splits",
    masks_beside_run_lengths: "this recipe does not read train.csv",
    masks_of_objects: "unsure: one mask holds 93 numbers: are these classes, or objects",
    table_of_fractions_called_target: "'target' is taken for scalar (fields=)\nunsure: this recipe does not read the columns age",
    table_of_fractions_called_target_and_classes: "this recipe does not read the columns target",
    masks_below_classes: "unsure: the folders Covid, Normal are no labels; {label} for {part1} in image=",
    table_with_commas_in_its_header: "this recipe does not read the columns Spacing[x, y]",
    table_of_the_training_alone: "this recipe does not read test.csv",
    table_with_empty_masks: "unsure: 'mask' is empty in 3 rows, and is not read",
    table_with_names_of_what_is_missing: "unsure: the classes 'NaN' of label may stand for a value that is missing",
    splits_beside_the_form_of_an_answer: "this recipe does not read sample_submission.csv",
    masks_without_an_image: "masks/ holds 2 .png files that this recipe does not read",
    masks_beside_a_drawing: "unsure: ./ may hold masks too",
    table_of_scenes: "this recipe does not read the columns scene",
    table_with_patients_of_some: "this recipe does not read the columns patient",
    table_of_lesions: "unsure: images share 'lesion_id', and may be in two splits",
    classes_with_folders_in_them: "the classes are animals, plants, and the folders in them (cat, dog, rose) are not",
    one_folder_below_each_split: "the only folder below the splits is image_2, which is no class",
    boxes_and_trimaps: "annotations/trimaps/ holds 4 .png files that this recipe does not read",
    a_split_of_files_alone: "test/ holds 2 .jpg files that this recipe does not read",
    split_folders_beside_another: "this recipe does not read extra/1.jpg",
    coco_in_latin_1: "read as Latin-1",
    coco_of_classes: "the annotations have no boxes: box_labels are the classes of an image",
    coco_with_one_name_twice: "class 'cat' is that of several categories: 0, 7",
    yolo_with_a_missing_val: "val is 'images/val', which is not below this folder",
    yolo_like_coco128: "val names the images of train, which are in train alone",
    yolo_with_two_lists_of_names: "unsure: labels/classes.txt names other classes than classes.txt",
    yolo_with_gaps_in_names: "names has no 1",
    masks_of_mapillary: "training/v2.0/labels/ holds 4 .png files that this recipe does not read",
    masks_of_bdd100k: "labels/sem_seg/colormaps/train/ holds 4 .png files that this recipe does not read",
    masks_of_0_and_255: "the masks hold 0 and 255: two classes",
    masks_of_splits_in_the_names_of_files: "called test and train, and this recipe draws new splits from all of them",
    masks_named_by_a_table_of_colors: "the classes of the colors are those of class_dict.csv",
    masks_named_by_a_map_of_cvat: "the classes of the colors are those of labelmap.txt",
    masks_of_a_drone: "RGB_color_image_masks/ holds 4 .png files that this recipe does not read",
    table_of_kaggle_with_numbers_of_classes: "Meta/ holds 2 .png files that this recipe does not read",
    table_whose_test_lacks_the_target: "this recipe does not read test.csv",
    masks_of_train_val: "TEST/masks/FV/ holds 4 .png files that this recipe does not read",
    masks_beside_masks_of_parts: "images/training/ holds 4 .png files that this recipe does not read",
    masks_beside_their_pictures: "GT/COLOR/ holds 4 .png files that this recipe does not read",
    labels_in_an_unknown_format: "this recipe does not read annotation_train.odgt",
    table_of_paths: "this recipe does not read the columns image_id",
    table_beside_two_folders: "test/ holds 4 .png files that this recipe does not read",
    two_folders_of_the_same_names: "x/ and y/ hold files of the same names",
    coco_beside_a_list_without_annotations: "this recipe does not read annotations/image_info_test.json",
    tiny_imagenet: "test/images/ holds 4 .jpeg files that this recipe does not read",
    imagenet_with_its_devkit: "this recipe does not read ILSVRC2012_devkit_t12/data/meta.mat",
    masks_of_some_splits: "test has no masks, and is left out",
    table_of_kaggle: "this recipe does not read sample_submission.csv",
    table_of_kaggle_with_a_test: "this recipe does not read test.csv",
    files_without_a_suffix: "Annotation/cat/ holds 4 files without a suffix that this recipe does not read",
    table_of_boxes_in_pixels: "this recipe does not read the columns width, height",
    table_with_images_without_boxes: "this recipe does not read class_info.csv",
    table_with_decimal_commas: "the boxes are taken for rel_xyxy of xmin, ymin, xmax, ymax",
    table_of_run_lengths: "counted from 1, down the columns",
    table_of_several_classes: "each cell of 'labels' holds several classes, divided by ' '",
    table_in_latin_1_with_an_empty_label: "label: the cell is empty, which is a reject: 1",
    table_in_each_class_folder: "this recipe does not read Images/00000/GT-00000.csv",
}
"""What `init` says of a layout that it reads."""
NOT_SAID = {
    classes_called_like_splits: "unsure",
    classes_without_anything: "unsure",
    classes_of_numbers: "unsure",
    classes_in_files_called_like_masks: "unsure",
    classes_in_png_files_called_like_masks: "unsure",
    classes_that_begin_like_folders_of_images: "unsure",
    masks_without_an_image: "may hold masks too",
    masks_in_a_folder_for_each_image: "unsure",
    coco_with_a_few_images_without_objects: "unsure",
    table_of_scenes: "may be in two splits",
    table_with_patients_of_some: "may be in two splits",
}
"""Doubts that `init` has not about a layout."""


def found_in(found: Detected, root: Path) -> Truth:
    """What the source makes of each image."""
    listing, truth = found.source.scan(root), {}
    decoders = found.source.decoders()
    for entry in listing.entries:
        if len(entry.files) > 1 and not (root / entry.files[1]).exists():
            truth[entry.files[0]] = (entry.split, "no mask")
            continue
        raw = read_files(root, listing.files, entry) | dict(zip(listing.values, entry.values, strict=True))
        value: Any = None
        if "label" in raw:
            names, number = listing.classes["label"], raw["label"]
            several = isinstance(number, list)
            value = None if number is None else [names[n] for n in number] if several else names[number]
        elif "instances" in decoders and "boxes" not in decoders:
            value = {"pixels": int((decoders["instances"].decode(raw, (HEIGHT, WIDTH)) > 0).sum())}
        elif "mask" in raw:
            own = decoders["mask"].decode(raw, None) if "mask" in decoders else Image.open(root / entry.files[1])
            value = tuple(np.unique(np.asarray(own)).tolist())
        elif "boxes" in decoders:
            boxes = decoders["boxes"].decode(raw, (HEIGHT, WIDTH)).tolist()
            labels = raw["box_labels"] if "boxes" in raw else decoders["box_labels"].decode(raw, (HEIGHT, WIDTH))
            value = list(zip([listing.classes["box_labels"][n] for n in labels], boxes, strict=True))
        elif "box_labels" in decoders:
            value = [listing.classes["box_labels"][n] for n in decoders["box_labels"].decode(raw, (HEIGHT, WIDTH))]
        truth[entry.files[0] if parse_reference(entry.files[0]).bytes is None else entry.key] = (entry.split, value)
    return truth


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout_is_read_as_it_was_meant_or_refused_by_name(tmp_path, layout):
    root = tmp_path / "data"  # not where copies of archives lie
    root.mkdir()
    truth = layout(root)
    if isinstance(truth, str):
        with pytest.raises(SourceError, match=truth):
            detect(root)
        return
    detected = detect(root)
    found = found_in(detected, root)
    assert {path: value for path, (_, value) in found.items()} == {path: value for path, (_, value) in truth.items()}
    assert {path: split for path, (split, _) in found.items() if truth[path][0]} == {
        path: split for path, (split, _) in truth.items() if split
    }
    said = "\n".join(detected.lines())
    assert SAID.get(layout, "") in said
    assert layout not in NOT_SAID or NOT_SAID[layout] not in said
    assert ("does not read" in said) == ("does not read" in SAID.get(layout, "")) or layout in PARTS


PARTS = {
    masks_beside_a_drawing,
    masks_and_fields_of_view,
    masks_beside_lists_of_splits,
    table_with_empty_masks,
    table_of_lesions,
} | {
    one_folder_below_each_split,
    masks_of_some_splits,
    yolo_of_label_studio,
    yolo_of_cvat,
    table_of_kaggle,
}
"""Layouts with files that no recipe needs."""


def test_a_file_that_is_not_read_needs_no_package(tmp_path, monkeypatch):
    masks_without_an_image(tmp_path)
    write(tmp_path, "scans/1.dcm", b"\0" * 128 + b"DICM" + b"\0" * 64)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert "this recipe does not read scans/1.dcm" in "\n".join(detect(tmp_path).lines())


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_another_format_is_refused_by_name(tmp_path, file):
    write(tmp_path, file, b"x")
    for name in ("meta", "train", "test") if "100" in file else ():
        write(tmp_path, f"cifar-100-python/{name}", b"x")
    with pytest.raises(SourceError, match=FILES[file]):
        detect(tmp_path)


def test_a_layout_that_is_named_is_taken(tmp_path):
    coco_that_is_cut_short(tmp_path)
    found = detect(tmp_path, "images")
    assert sum(found.facts.splits.values()) == 4
    assert "unsure: this recipe does not read labels.json" in found.lines()
    with pytest.raises(SourceError, match="is not laid out as --as yolo says; leave it out"):
        detect(tmp_path, "yolo")


def test_classes_in_file_names_are_said(tmp_path):
    """As in Kaggle's Dogs vs. Cats: more files of each word than are kept by name."""
    pictures(tmp_path, *(f"train/{word}.{n}.jpg" for word in ("cat", "dog") for n in range(70)))
    said = "\n".join(detect(tmp_path).lines())
    assert "the file names begin with 2 words (cat, dog), which may be classes; this recipe has no label" in said


@pytest.mark.parametrize("names", [["IMG_1", "IMG_2", "IMG_3"], ["cat.0", "dog.0", "owl.0"], ["cat.0", "cat.1", "7"]])
def test_names_that_say_no_classes(tmp_path, names):
    pictures(tmp_path, *(f"{name}.jpg" for name in names))
    assert "which may be classes" not in "\n".join(detect(tmp_path).lines())


def test_a_few_pictures_that_are_alike_are_no_copies(tmp_path):
    """As digits that have the same names in every class."""
    pictures(tmp_path, *(f"{digit}/{n}.png" for digit in ("one", "two", "six") for n in range(8)))
    for n in range(2):
        shutil.copy(tmp_path / f"one/{n}.png", tmp_path / f"two/{n}.png")
    assert "seem to be one picture" not in "\n".join(detect(tmp_path).lines())
