"""`tfprep init` on each layout, then `tfprep build` with no edit: the recipe is right, and nothing is lost."""

import io
import os
import re
import shutil
import tarfile

import cv2
import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.examples import detection, serialized
from tests.examples import write as write_records
from tests.photos import save
from tests.sources.building import read_rejected
from tests.sources.detection.test_layouts import lay_out
from tests.sources.test_archives import content
from tests.sources.test_parquet import row
from tests.sources.test_parquet import write as write_parquet
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import index_tfrecords
from tfprep.errors import SourceError
from tfprep.recipe.file import data_root, load_recipe
from tfprep.recipe.template import recipe_text, recognized
from tfprep.sources.detection import pictures
from tfprep.sources.detection.detect import NotRecognized, detect

NAMES = [f"{n:02}" for n in range(12)]


def sixteen_bits(root):
    for n, name in enumerate(NAMES):
        pixels = np.random.default_rng(n).integers(0, 65536, (40, 56, 3)).astype(np.uint16)
        for split in ("a", "b"):
            (root / split).mkdir(exist_ok=True)
        cv2.imwrite(str(root / f"{'ab'[n % 2]}/{name}.png"), pixels)


def sixteen_bits_with_masks(root):
    """255 is the object: where it was taken for void, the recipe filled what is outside of the image with objects."""
    for n, name in enumerate(NAMES):
        save(root / f"images/{name}.png", np.random.default_rng(n).integers(0, 65536, (40, 56)).astype(np.uint16))
        save(root / f"masks/{name}.png", np.tri(40, 56, dtype=np.uint8) * 255)


def transparent(root):
    for n, name in enumerate(NAMES):
        save(
            root / f"{'ab'[n % 2]}/{name}.png", np.random.default_rng(n).integers(0, 256, (40, 56, 4)).astype(np.uint8)
        )


def slices(root):
    for n, name in enumerate(NAMES):
        pixels = np.random.default_rng(n).integers(0, 4096, (40, 56)).astype(np.uint16)
        from tests.sources.test_pixels import dicom

        (root / f"{name}.dcm").write_bytes(dicom(pixels, patient=f"p{n // 3}", slope=(1, -1024)))


def transparent_animations(root):
    for n, name in enumerate(NAMES):
        noise = np.random.default_rng(n).integers(0, 255, (2, 40, 56, 4)).astype(np.uint8)
        frames = [Image.fromarray(frame) for frame in noise]
        frames[0].save(root / f"{name}.webp", save_all=True, append_images=frames[1:])


def shards(root):
    for split in ("train", "val"):
        (root / split).mkdir()
        with tarfile.open(root / split / "000.tar", "w") as archive:
            for n, name in enumerate(NAMES):
                for ending, data in content(n).items():
                    info = tarfile.TarInfo(f"{name}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def hugging_face(root):
    for split, numbers_of_rows in (("train", range(9)), ("validation", range(9, 12))):
        write_parquet(root / f"data/{split}-00000-of-00001.parquet", [row(n) for n in numbers_of_rows])


def videos(root):
    from tests.sources.test_video import write

    for n, name in enumerate(NAMES):
        write(root / f"{'ab'[n % 2]}/{name}.mkv", [n] * 5)


def built_dataset(root):
    lay_out(root, "raw/cat/#.png")
    recipe = Recipe(name="first", source=sources.Folder("raw/{label}/*"), variants={"train": 2},
                    store={"image": codecs.Png(), "label": codecs.Scalar()})  # fmt: skip
    tfprep.build(recipe, root / "out", root, options=BuildOptions(workers=0))
    shutil.rmtree(root / "raw")
    for path in (root / "out").iterdir():
        path.rename(root / path.name)
    (root / "out").rmdir()


def imported_records(root):
    """TFRecords of TensorFlow's Object Detection API: the image has another name, and some fields are lists."""
    pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    write_records(root / "train.tfrecord", [serialized(detection(rng, number)) for number in range(len(NAMES))])
    index_tfrecords(root / "train.tfrecord", "train")


LAYOUTS = {
    hugging_face: "Table(table='data/{split}-*-of-*.parquet', image='image', label='label', fields={'mask': ('mask', 'mask'), "
    "'caption': ('text', 'caption'), 'boxes': ('boxes', 'objects.bbox'), 'box_labels': ('label', 'objects.category')}, "
    "box_format='xywh')",
    videos: "Video(videos='{label}/**/*.mkv', every=25, splits=sources.Fractions(train=0.8, val=0.2))",
    built_dataset: "Records(fields={'image': 'image', 'label': 'label'}, splits=None)",
    shards: "Archives(archives='{split}/*.tar', image=('png',), label='cls', fields={'mask': ('mask', 'seg.png'), "
    "'text': ('text', 'txt')})",
    sixteen_bits: "Folder(splits=sources.Fractions(train=0.8, val=0.2, stratify='label'), pixels={'image': sources.Pixels()})",
    sixteen_bits_with_masks: "numbers={0: 0, 255: 1}, splits=sources.Fractions(train=0.8, val=0.2), "
    "pixels={'image': sources.Pixels()})",
    slices: "group_by='PatientID'), pixels={'image': sources.Pixels()})",
    transparent: "stratify='label'), pixels={'image': sources.Pixels(background=(255, 255, 255))})",
    transparent_animations: "pixels={'image': sources.Pixels(page=0)}",
    "set~{1}/images/#.png set~{1}/masks/#=0,1,2": "Paired(image='set {{1}}/images/*.png', mask='set {{1}}/masks/*.png'",
    "pics~{x}/#.png table.csv=rows:pics:id,label:STEM,LABEL": "Table(table='table.csv', image='pics {{x}}/{id}.png', label=",
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: getattr(layout, "__name__", layout))
def test_the_recipe_builds_as_it_stands(tmp_path, layout):
    if layout is videos:
        pytest.importorskip("av")
    if layout is slices:
        pytest.importorskip("pydicom")
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
    summary = tfprep.build(path, tmp_path / "out", data=data_root(path), options=BuildOptions(workers=0, limit=None))
    assert not read_rejected(tmp_path / "out")
    assert summary.samples == sum(found.facts.splits.values())


def test_a_shade_of_gray_is_not_filled_in_as_void(tmp_path):
    for numbers, fills in (("0,1,255", True), ("0,128,255", False)):
        root = tmp_path / numbers
        lay_out(root, f"images/# masks/#={numbers}")
        assert ("fill={" in recipe_text(recognized(root), root, tmp_path / "recipe.py")) == fills


def test_lists_of_imported_records_are_named(tmp_path):
    imported_records(tmp_path)
    assert "Records(fields={'image_encoded': 'image', 'image_filename': 'text', " in repr(recognized(tmp_path).source)
    assert [line for line in recognized(tmp_path).lines() if "check" in line] == [
        "check: image_object_class_text is a list of texts, which this recipe does not read",
    ]


def test_a_damaged_dataset_is_not_taken_for_raw_files(tmp_path):
    lay_out(tmp_path, "cat/# dog/#")
    (tmp_path / "tfprep.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tfprep\.json.*--as LAYOUT"):
        recognized(tmp_path)
    assert recognized(tmp_path, "folders").facts.labels == {"label": {"cat": 4, "dog": 4}}


@pytest.mark.parametrize(
    ("counts", "built", "said"),
    [
        ({"rgb": 20, "gray": 4, "deep": 4, "alpha": 3, "palette": 3}, 30, "such as deep.*16 bits"),
        ({"deep": 9, "rgb": 1}, 9, "most images are uint16"),
    ],
)
def test_a_folder_of_mixed_forms_builds_and_names_the_rare_ones(tmp_path, counts, built, said):
    """RGB, gray, palettes and transparency become 8-bit RGB, unless most images have 16 bits."""
    noise = np.random.default_rng(0).integers(0, 65536, (40, 50, 4)).astype(np.uint16)
    eight = (noise >> 8).astype(np.uint8)
    forms = {"rgb": eight[:, :, :3], "gray": eight[:, :, 0], "deep": noise[:, :, 0], "alpha": eight}
    images = {name: Image.fromarray(pixels) for name, pixels in forms.items()}
    images["palette"] = images["rgb"].quantize(16)
    root = tmp_path / "raw"
    root.mkdir()
    for name, count in counts.items():
        for number in range(count):
            images[name].save(root / f"{name}{number}.png")
    found = detect(root, "images")
    assert any(re.search(said, line) for line in found.lines())
    path = tmp_path / "recipe_mixed.py"
    path.write_text(recipe_text(found, root, path))
    assert tfprep.build(path, tmp_path / "out", data=root, options=BuildOptions(workers=0)).samples == built
    assert {key[:3] for key in read_rejected(tmp_path / "out")} == {"rgb" if counts["deep"] == 9 else "dee"}


def test_a_source_that_fails_is_named_beside_the_doubts_about_it(tmp_path):
    for day in ("2024-05-03", "2024-05-04"):
        (tmp_path / "raw" / day).mkdir(parents=True)
        (tmp_path / "raw" / day / f"of {day}.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"have names of dates(.|\n)*none of 2 samples that were opened can be read"):
        detect(tmp_path / "raw")


def test_damaged_dicom_is_no_traceback(tmp_path):
    """A file of pydicom's own tests, in which the number of frames is '1A'."""
    pydicom = pytest.importorskip("pydicom")
    (tmp_path / "raw").mkdir()
    shutil.copy(pydicom.data.get_testdata_file("badVR.dcm"), tmp_path / "raw/bad.dcm")
    with pytest.raises(SourceError, match=r"none of 1 samples .* bad.dcm"):
        detect(tmp_path / "raw")


def test_the_colors_of_a_file_are_counted_once_however_many_folders_have_its_name(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(pictures, "has_few_colors", lambda data: counted.append(hash(data)))
    for n in range(8 * 3):
        save(
            tmp_path / f"{'abcdefgh'[n % 8]}/{n // 8}.png",
            np.random.default_rng(n).integers(0, 256, (24, 24, 3)).astype(np.uint8),
        )
    detect(tmp_path)
    assert len(counted) == len({*counted}) == 24


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
