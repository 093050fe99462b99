"""The bytes of a build depend only on the recipe and the inputs; its records contain what the recipe says; it imports no
TensorFlow.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.builder.conftest import check_whole, digests
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build, plan_build
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, RecipeError, SourceError
from tfprep.images import encode_jpeg, perceptual_hash
from tfprep.seeding import sample_hash


def test_equal_bytes_with_any_number_of_workers(full):
    full.build()
    expected = digests(full.out)
    for workers in (1, 2, 3):
        out = full.out.with_name(f"workers{workers}")
        full.build(out, workers=workers)
        assert digests(out) == expected
    assert len([name for name in expected if ".tfrecord-" in name and not name.endswith(".idx")]) == 4 * 2 + 2
    check_whole(full.out)


def test_equal_bytes_for_any_folder_and_modification_time_of_the_data(full):
    expected = full.from_nothing()
    moved = full.data.with_name("moved elsewhere")
    shutil.copytree(full.data, moved)
    for path in moved.rglob("*.jpg"):
        os.utime(path, (1, 1))
    full.data = moved
    assert full.from_nothing("again") == expected


def test_a_second_build_does_nothing(full):
    full.build()
    before = {path: path.stat().st_mtime_ns for path in full.out.iterdir() if path.is_file()}
    summary = full.build()
    assert (summary.built_samples, summary.built_shards) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in full.out.iterdir() if path.is_file()} == before


def test_files_beside_the_recipe_may_be_named_as_modules_of_the_standard_library(full):
    """Of `random`, tfprep uses Python's own, which it had imported; of `wave`, the recipe uses the file beside it."""
    full.build()
    expected, out = digests(full.out), full.out.with_name("again")
    folder = full.recipe.with_name("beside")  # no process of the tests imports from there
    folder.mkdir()
    (folder / "random.py").write_text("raise SystemExit('imported')\n")
    (folder / "wave.py").write_text("HERE = True\n")
    recipe = folder / full.recipe.name
    recipe.write_text("import wave\nassert wave.HERE\n" + full.recipe.read_text())
    command = [sys.executable, "-m", "tfprep", "build", recipe, "--data", full.data, "--out", out, "--workers", "2"]
    subprocess.run(command, check=True, cwd=full.data)
    assert digests(out) == expected


def test_samples_have_the_shard_and_position_of_their_hash(full):
    full.build()
    rows = open_dataset(full.out).index("train").to_pylist()
    keys = sorted(path.relative_to(full.data).as_posix() for path in (full.data / "train").rglob("*.jpg"))
    expected = sorted(keys, key=lambda key: (sample_hash(3, key) % 4, sample_hash(3, key)))
    assert [row["key"] for row in rows] == expected
    assert [row["shard"] for row in rows] == [sample_hash(3, key) % 4 for key in expected]


def test_the_index_agrees_with_the_records(full):
    full.build()
    data = open_dataset(full.out)
    classes = {"cat": 0, "dog": 1}
    for variant in (0, 1):
        for row, sample in zip(data.index("train", variant).to_pylist(), data.samples("train", variant), strict=True):
            path = full.out / data.file("train", variant, row["shard"]).name
            content = path.read_bytes()
            jpeg = content[row["image_offset"] :][: row["image_size"]]
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(jpeg))), sample["image"])
            png = content[row["mask_offset"] :][: row["mask_size"]]
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), sample["mask"])
            assert (row["height"], row["width"]) == sample["image"].shape[:2] == (16, 20)
            assert row["label"] == sample["label"] == classes[row["key"].split("/")[1]]
            assert row["source_digest"] == _source_digest(full, row["key"])


def test_the_index_has_the_digest_and_the_hash_of_each_image(full):
    imagehash = pytest.importorskip("imagehash")
    full.recipe.write_text(full.recipe.read_text().replace("codecs.Jpeg(90)", "codecs.Png()"))
    full.build()
    data = open_dataset(full.out)
    for row, sample in zip(data.index("train").to_pylist(), data.samples("train"), strict=True):
        content = (full.data / row["key"]).read_bytes()
        expected = hashlib.sha256(len(content).to_bytes(8, "little") + content).digest()[:16]
        assert row["image_digest"] == expected
        reference = int(str(imagehash.phash(Image.fromarray(sample["image"]))), 16)
        assert (
            row["image_hash"] ^ reference
        ).bit_count() <= 8  # of 16 x 20 pixels, which both enlarge in their own way
    assert data.index("train", 1)["image_hash"].null_count == 24


def test_a_build_without_hashes_makes_the_same_shards(full):
    full.build(hash=False)
    data = open_dataset(full.out)
    assert data.index("train")["image_hash"].null_count == 24
    assert data.index("train")["image_digest"].null_count == 0
    plain = digests(full.out)
    other = full.from_nothing()
    assert {name for name in plain if plain[name] != other[name]} == {"croissant.json", "index.parquet", "tfprep.json"}


def test_an_image_that_is_stored_by_its_own_bytes_has_the_hash_of_its_pixels(full):
    full.recipe.write_text(full.recipe.read_text().replace("codecs.Jpeg(90)", "codecs.Original()"))
    for option in ("geometry=", "colour=", "derive=", "variants="):
        text = full.recipe.read_text()
        full.recipe.write_text("".join(line for line in text.splitlines(True) if not line.strip().startswith(option)))
    full.change_recipe('"distance": codecs.Raw("float16"), ', "")
    full.build()
    data = open_dataset(full.out)
    for row in data.index("train").to_pylist():
        pixels = np.asarray(Image.open(full.data / row["key"]).convert("RGB"))
        assert row["image_hash"] == perceptual_hash(pixels)


def _source_digest(site, key):
    sha256 = hashlib.sha256()
    for name in (key, key.removesuffix(".jpg") + ".mask.png"):
        content = (site.data / name).read_bytes()
        sha256.update(len(content).to_bytes(8, "little") + content)
    sha256.update(json.dumps([{"cat": 0, "dog": 1}[key.split("/")[1]]]).encode())
    return sha256.digest()[:16]


def test_statistics_and_counts_are_those_of_the_stored_training_pixels(full):
    full.recipe.write_text(full.recipe.read_text().replace("codecs.Jpeg(90)", "codecs.Png()"))
    full.build()
    data = open_dataset(full.out)
    images = np.stack([sample["image"] for sample in data.samples("train")]).astype(np.float64)
    statistics = data.manifest.statistics["image"]
    np.testing.assert_allclose(statistics.mean, images.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(statistics.std, images.std((0, 1, 2)), rtol=1e-9)
    for split in ("train", "val"):
        masks = np.stack([sample["mask"] for sample in data.samples(split)])
        expected = tuple(int((masks == number).sum()) for number in range(3))
        assert data.manifest.class_counts["mask"][split] == expected
        labels = [int(sample["label"]) for sample in data.samples(split)]
        assert data.manifest.class_counts["label"][split] == (labels.count(0), labels.count(1))


def test_a_build_and_its_workers_import_no_tensorflow(full, run_python):
    code = (
        "import sys\nfrom tfprep.builder import build, BuildOptions\n"
        "build(*sys.argv[1:], options=BuildOptions(workers=1))\n"
        "assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules)"
    )
    full.change_recipe("RECIPE = Recipe(", "def loaded(sample, generator):\n"
                       "    import sys\n"
                       "    assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules), 'a framework'\n"
                       "    assert os.path.basename(sys.argv[0]) == 'child_process.py', sys.argv\n"
                       "    return sample['mask']\n\nRECIPE = Recipe(")  # fmt: skip
    full.change_recipe("derive={", 'derive={"loaded": loaded, ')
    done = run_python(code, str(full.recipe), str(full.out), str(full.data))
    assert done.returncode == 0, done.stderr
    assert full.rejects() == []


def test_a_recipe_object_is_built_like_its_file(full):
    expected = full.from_nothing()
    recipe = tfprep.recipe.file.load_recipe(full.recipe)
    for workers in (0, 1):
        out = full.out.with_name(f"object{workers}")
        build(recipe, out, full.data, options=BuildOptions(workers=workers))
        assert digests(out) == expected


def test_a_function_that_no_worker_can_import_is_refused_with_the_way_out(full):
    recipe = Recipe("local", sources.Folder("train/{label}/*.jpg"), {"image": codecs.Raw()}, colour=[lambda i, g: i])
    with pytest.raises(RecipeError, match=r"put the recipe into a file of its own .* or build with workers=0"):
        build(recipe, full.out, full.data, options=BuildOptions(workers=1))
    assert build(recipe, full.out, full.data, options=BuildOptions(workers=0)).samples == 24


def test_a_function_of_the_main_script_is_refused_with_the_way_out(full, run_python):
    code = (
        "import sys\nfrom tfprep import Recipe, sources, codecs\nfrom tfprep.builder import build, BuildOptions\n"
        "def same(image, generator): return image\n"
        "r = Recipe('main', sources.Folder('train/{label}/*.jpg'), {'image': codecs.Raw()}, colour=[same])\n"
        "build(r, sys.argv[1], sys.argv[2], options=BuildOptions(workers=1))"
    )
    done = run_python(code, str(full.out), str(full.data))
    assert "a function of the script that was started" in done.stderr
    assert "put the recipe into a file of its own" in done.stderr


def test_limit_takes_the_same_samples_each_time(full):
    summary = full.build(limit=5)
    first = open_dataset(full.out)
    keys = [key for split in first.splits for key in first.index(split)["key"].to_pylist()]
    everything = [path.relative_to(full.data).as_posix() for path in full.data.rglob("*.jpg")]
    assert sorted(keys) == sorted(sorted(everything, key=lambda key: sample_hash(3, key))[:5])
    assert summary.samples == 5
    assert full.build(limit=5).built_samples == 0
    assert (
        full.build(limit=1, replace=True).samples == 1
    )  # The limit leaves samples of one split; the recipe may still name the other.


def test_the_number_of_shards_is_kept_when_the_data_grows(full):
    full.change_recipe('    shards={"train": 4, "val": 2},\n', "")
    for number in range(80):
        full.add(f"train/cat/more{number}", number)
    full.build()
    shards = open_dataset(full.out).split("train").shards
    assert shards == 3  # 104 samples, at least 32 per shard.
    for number in range(200):
        full.add(f"train/dog/more{number}", number)
    full.build()
    assert open_dataset(full.out).split("train").shards == shards


def test_original_keeps_the_files_bytes_and_decodes_some_of_each_shard(full):
    full.change_recipe("geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10), augment.Crop(16, 20)],", "")
    full.change_recipe("colour=[augment.Brightness(0.2)],", "")
    full.change_recipe('derive={"distance": derive.Distance(mask="mask", target=1)},', "")
    full.change_recipe('variants={"train": 2},', "")
    full.change_recipe('codecs.Jpeg(90), "mask": codecs.Png(), "distance": codecs.Raw("float16")', "codecs.Original()")
    full.change_recipe('shards={"train": 4, "val": 2},', 'shards={"train": 1},')
    Image.fromarray(np.zeros((24, 28, 3), np.uint8)).save(full.data / "train/cat/000.jpg", exif=_orientation(6))
    Image.fromarray(np.zeros((28, 24), np.uint8)).save(full.data / "train/cat/000.mask.png")
    full.build()
    data = open_dataset(full.out)
    for row in data.index("train").to_pylist():
        content = (full.out / data.file("train", 0, 0).name).read_bytes()[row["image_offset"] :][: row["image_size"]]
        if row["key"] == "train/cat/000.jpg":
            assert content.startswith(b"\x89PNG")
        else:
            assert content == (full.data / row["key"]).read_bytes()
    first = [row["key"] for row in data.index("train").to_pylist()][:16]
    pixels = np.concatenate([np.asarray(Image.open(full.data / key)).reshape(-1, 3) for key in first]).astype(float)
    np.testing.assert_allclose(data.manifest.statistics["image"].mean, pixels.mean(0), rtol=1e-12)


def _orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers is at least 0, not -1"),
        ({"limit": 0}, "limit is at least 1, not 0"),
        ({"on_bad": "explode"}, "on_bad is 'skip' or 'fail', not 'explode'"),
        ({"max_bad": 1.5}, "max_bad is a share from 0 to 1, not 1.5"),
        ({"item_timeout_s": 0}, "item_timeout_s is more than 0 seconds, not 0"),
    ],
)
def test_options_check_themselves(options, message):
    with pytest.raises(BuildError, match=message):
        BuildOptions(**options)


def test_missing_data_raises_with_the_folder(full):
    with pytest.raises(SourceError, match=r"no such folder of raw data; say where it is with --data"):
        build(full.recipe, full.out, full.data / "nowhere")
    with pytest.raises(SourceError, match=r"no such folder of raw data"):
        plan_build(full.recipe, full.out, full.data / "nowhere")


def without_opencv(events):
    """The events but for the warning that a build with OpenCV 4 gives."""
    return [event for event in events if "rounds warps" not in event.text]


def test_progress_and_events_add_up(full):
    seen, events = [], []
    full.build(workers=2, on_progress=seen.append, on_event=events.append)
    assert (seen[-1].samples_done, seen[-1].samples) == (30, 30)
    assert (seen[-1].shards_done, seen[-1].shards) == (6, 6)
    assert all(len(progress.workers) == 2 for progress in seen)
    names = [event.name for event in without_opencv(events)]
    assert [name for name in names if name not in ("space", "shard", "empty")] == ["planned", "published"]
    shards = [json.loads(event.to_json()) for event in events if event.name == "shard"]
    assert sorted((event["split"], event["shard"]) for event in shards) == [
        *(("train", number) for number in range(4)), *(("val", number) for number in range(2)),
    ]  # fmt: skip
    assert sum(event["samples"] for event in shards) == 30
    log = (full.out / ".tfprep/build.log").read_text()
    assert "planned: 6 of 6 shards: not built yet" in log
    assert "published: 54 records of 30 samples, 0 rejected" in log


def test_shards_that_are_built_twice_are_counted_once(full):
    """A second round rebuilds shards whose records have another form than most records; the counts of the first round are
    then too high."""
    full.change_recipe('classes=("ground", "thing", "void")', "")
    full.change_recipe('mask="{split}/{label}/*.mask.png", ', 'mask="{split}/{label}/*.mask.png"')
    Image.fromarray(np.full((24, 28), 7, np.uint16)).save(full.data / "train/cat/000.mask.png")
    seen, events = [], []
    summary = full.build(on_progress=seen.append, on_event=events.append)
    assert "differing" in [event.name for event in events]
    assert (summary.built_samples, summary.built_shards, summary.rejects) == (30, 6, 1)
    assert {(progress.samples, progress.shards) for progress in seen} == {(30, 6)}
    assert all(progress.samples_done <= 30 and progress.rejects <= 1 for progress in seen)
    assert (seen[-1].samples_done, seen[-1].shards_done, seen[-1].rejects) == (30, 6, 1)


def test_class_names_that_tensorflow_datasets_would_misread_are_a_warning(site, monkeypatch):
    """The sources of tfprep refuse such names; a user's source may give them."""
    monkeypatch.setattr("tfprep.sources.folder.class_name_fault", lambda name: "")
    site.add("train/cat/1", 1)
    site.add("train/dog /2", 2)
    site.add("val/cat/3", 3)
    with pytest.warns(UserWarning, match=r"label\.labels\.txt was not written: TensorFlow Datasets would misread"):
        site.build()
    assert not (site.out / "label.labels.txt").exists()
    assert open_dataset(site.out).manifest.classes["label"] == ("cat", "dog ")
    events = []
    site.build(on_event=events.append)
    assert "warning" not in [event.name for event in without_opencv(events)]  # nothing was built again


IMPORTS = """
import sys
from pathlib import Path
from tfprep import Recipe, build, codecs, sources
store = {"image": codecs.Jpeg(), "label": codecs.Scalar()}
summary = build(Recipe("photos", sources.Folder(), store), "out", "data", **OPTIONS)
assert summary.samples == 6 and Path("out/report.html").exists()
print([name for name in ("pandas", "tensorflow", "tqdm") if name in sys.modules])
"""


@pytest.mark.parametrize("options", ["{}", "{'options': __import__('tfprep').builder.BuildOptions(workers=0)}"])
def test_a_build_with_its_report_imports_no_pandas(tmp_path, options):
    pytest.importorskip("pandas")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    for number in range(6):
        path = tmp_path / "data" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(pixels, 90 + number, "420"))
    command = [sys.executable, "-c", IMPORTS.replace("OPTIONS", options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
