"""`tfprep init` on each layout, then `tfprep build` with no edit: the recipe is right, and nothing is lost."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.sources.building import read_rejected
from tests.sources.detection.test_layouts import OBJECTS, found_in, lay_out
from tests.sources.test_parquet import row
from tests.sources.test_parquet import write as write_parquet
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import SourceError
from tfprep.export import Format, export
from tfprep.recipe.file import data_root, load_recipe
from tfprep.recipe.template import recipe_text, recognized
from tfprep.sources.detection.detect import NotRecognized, detect

SERIAL = BuildOptions(workers=0)
NAMES = [f"{n:02}" for n in range(12)]


def sixteen_bits_with_masks(root):
    """255 is the object: where it was taken for void, the recipe filled what is outside of the image with objects."""
    lay_out(root, " ".join(f"masks/{name}=0,255" for name in NAMES))
    (root / "images").mkdir()
    for n, name in enumerate(NAMES):
        pixels = np.random.default_rng(n).integers(0, 1 << 16, (40, 56)).astype(np.uint16)
        Image.fromarray(pixels).save(root / f"images/{name}.png")


def hugging_face(root):
    for split, numbers_of_rows in (("train", range(9)), ("validation", range(9, 12))):
        write_parquet(root / f"data/{split}-00000-of-00001.parquet", [row(n) for n in numbers_of_rows])


def videos(root):
    from tests.sources.test_video import write

    for n, name in enumerate(NAMES):
        write(root / f"{'ab'[n % 2]}/{name}.mkv", [n] * 5)


LAYOUTS = {
    hugging_face: "Table(table='data/{split}-*-of-*.parquet', image='image', label='label', fields={'mask': ('mask', 'mask'), "
    "'caption': ('text', 'caption'), 'box_labels': ('label', 'objects.category'), 'boxes': ('boxes', 'objects.bbox')}, "
    "splits=('train', 'validation'), box_format='xywh')",
    videos: "Video(videos='{label}/**/*.mkv', every=25, splits=sources.Fractions(train=0.8, val=0.2))",
    sixteen_bits_with_masks: "numbers={0: 0, 255: 1}, splits=sources.Fractions(train=0.8, val=0.2), "
    "pixels={'image': sources.Pixels()})",
    "pics~{x}/#.png table.csv=rows:pics:id,label:STEM,LABEL": "Table(table='table.csv', image='pics {{x}}/{id}.png', label=",
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: getattr(layout, "__name__", layout))
def test_the_recipe_builds_as_it_stands(tmp_path, layout):
    if layout is videos:
        pytest.importorskip("av")
    root = tmp_path / "data"
    root.mkdir()
    lay_out(root, layout) if isinstance(layout, str) else layout(root)
    found = recognized(root)
    assert LAYOUTS[layout] in repr(found.source)
    path = tmp_path / "recipe_of_init.py"
    path.write_text(recipe_text(found, root, path))
    recipe = load_recipe(path)
    assert recipe.source == found.source
    exact = {"mask", "map"} | ({"image"} if found.facts.deep else set())
    for field, kind in found.facts.kinds.items():
        assert (recipe.store[field] == codecs.Zstd()) == (kind in exact), field
    summary = tfprep.build(path, tmp_path / "out", data=data_root(path), options=SERIAL)
    assert not read_rejected(tmp_path / "out")
    assert summary.samples == sum(found.facts.splits.values())


def test_a_folder_of_mixed_forms_builds_and_names_the_rare_ones(tmp_path):
    """RGB, gray, palettes and transparency become 8-bit RGB."""
    noise = np.random.default_rng(0).integers(0, 65536, (40, 50, 4)).astype(np.uint16)
    eight = (noise >> 8).astype(np.uint8)
    rgb = Image.fromarray(eight[:, :, :3])
    forms = {"rgb": (rgb, 30), "gray": (rgb.convert("L"), 4), "palette": (rgb.quantize(16), 3)}
    forms |= {"alpha": (Image.fromarray(eight), 6), "deep": (Image.fromarray(noise[:, :, 0]), 2)}
    root = tmp_path / "raw"
    root.mkdir()
    for name, (image, count) in forms.items():
        for number in range(count):
            image.save(root / f"{name}{number}.png")
    found = detect(root, "images")
    path = tmp_path / "recipe_mixed.py"
    path.write_text(recipe_text(found, root, path))
    assert tfprep.build(path, tmp_path / "out", data=root, options=SERIAL).samples == 43
    assert {key[:4] for key in read_rejected(tmp_path / "out")} == {"deep"}


def test_a_source_that_fails_is_named_beside_the_doubts_about_it(tmp_path):
    for day in ("2024-05-03", "2024-05-04"):
        (tmp_path / "raw" / day).mkdir(parents=True)
        (tmp_path / "raw" / day / f"of {day}.jpg").write_bytes(b"no image")
    with pytest.raises(
        SourceError, match=r"have names of images, dates(.|\n)*none of 2 samples that were opened can be read"
    ):
        detect(tmp_path / "raw")


def test_pipes_are_not_opened(tmp_path):
    lay_out(tmp_path, "raw/#")
    names = {
        "table.csv": sources.Table("table.csv", image="file"),
        "rows.jsonl": sources.Table("rows.jsonl", image="file"),
        "rows.parquet": sources.Table("rows.parquet", image="file"),
        "data.yaml": sources.Yolo("data.yaml"),
    }
    for name in (*names, "x.json", "x.xml"):
        os.mkfifo(tmp_path / "raw" / name)
    with pytest.raises(NotRecognized, match="no source reads 6 files"):
        detect(tmp_path / "raw")
    for name, source in names.items():
        with pytest.raises(SourceError, match=f"{name}.*not a regular file"):
            list(source.scan(tmp_path / "raw").entries)


# --- exports of our own ---------------------------------------------------------------------------------------------

STORE = {"image": codecs.Png(), "mask": codecs.Png(), "label": codecs.Scalar()}


def exported(root: Path, source: Any, store: dict[str, Any], to: Format) -> tuple[Any, Path]:
    """A dataset, and its export."""
    tfprep.build(Recipe(name="set", source=source, store=store), root / "built", root / "raw", options=SERIAL)
    data = tfprep.open(root / "built")
    export(data, root / "export", to)
    return data, root / "export"


def content(data: Any, names: tuple[str, ...]) -> dict[bytes, Any]:
    """The split, the label and the mask of each sample by its pixels."""
    return {
        sample["image"].tobytes(): (split, names.index(data.classes["label"][sample["label"]]), sample["mask"].tolist())
        for split in data.splits
        for sample in data.samples(split)
    }


@pytest.mark.parametrize(("to", "names"), [("webdataset", ("0", "1")), ("parquet", ("a", "b"))])
def test_an_export_comes_back(tmp_path, to: Format, names):  # WebDataset's labels are numbers
    rows = '{"f":"PATH","m":"masks/STEM.png","s":"SPLIT","l":"LABEL"}'
    lay_out(tmp_path / "raw", f"images/#.png masks/#=0,1,2 t.jsonl=rows:images::{rows}")
    source = sources.Table("t.jsonl", "f", "l", {"mask": ("mask", "m")}, splits="s")
    data, folder = exported(tmp_path, source, STORE, to)
    source = detect(folder).source
    assert source.kinds().keys() == STORE.keys()
    tfprep.build(Recipe(name="again", source=source, store=STORE), tmp_path / "again", folder, options=SERIAL)
    again = content(tfprep.open(tmp_path / "again"), names)
    assert again == content(data, ("a", "b"))
    assert {split for split, *_ in again.values()} == {"training", "testing"}


def test_boxes_of_an_export_come_back(tmp_path):
    lay_out(tmp_path / "raw", '# t.jsonl=rows:::{"f":"PATH","b":[[14,10,42,30]],"l":["cat"]}')
    source = sources.Table("t.jsonl", "f", fields={"boxes": ("boxes", "b"), "box_labels": ("label", "l")})
    store = {"image": codecs.Png(), "boxes": codecs.Scalar(), "box_labels": codecs.Scalar()}
    _, folder = exported(tmp_path, source, store, "parquet")
    assert [value for _, value in found_in(detect(folder), folder).values()] == [OBJECTS] * 4
