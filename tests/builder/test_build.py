"""The bytes of a build depend only on the recipe and the inputs; its records contain what the recipe says; it imports no
TensorFlow.
"""

import hashlib
import io
import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.builder.conftest import check_whole, digests, run
from tests.photos import oriented, write_photos
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions, Ray, build, plan_build, start
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, RecipeError, SourceError
from tfprep.images import perceptual_hash
from tfprep.seeding import sample_hash
from tfprep.storage.address import parse_url

WITHOUT_STEPS = (
    "geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10), augment.Crop(16, 20)],", "",
    "color=[augment.Brightness(0.2)],", "",
    'derive={"distance": derive.Distance(mask="mask", target=1)},', "",
    'variants={"train": 2},', "",
    '"distance": codecs.Raw("float16"), ', "",
)  # fmt: skip


def test_a_recipe_is_built_beside_one_whose_name_is_not_utf8(full):
    other = full.recipe.with_name("caf\udce9.py")
    shutil.copy(full.recipe, other)
    tfprep.recipe.file.load_recipe(other)
    recipe = tfprep.recipe.file.load_recipe(full.recipe)
    assert build(recipe, full.out, full.data, options=BuildOptions(workers=1)).samples


def test_equal_bytes_for_any_workers_folder_times_and_form_of_the_recipe(full):
    """The files beside a recipe may be named as modules of the standard library: of `random`, tfprep uses Python's own, which it
    had imported; of `wave`, the recipe uses the file beside it."""
    expected = full.from_nothing()
    assert len([name for name in expected if ".tfrecord-" in name and not name.endswith(".idx")]) == 4 * 2 + 2
    moved = full.data.with_name("moved elsewhere")
    shutil.copytree(full.data, moved)
    for path in moved.rglob("*.jpg"):
        os.utime(path, (1, 1))
    recipe = tfprep.recipe.file.load_recipe(full.recipe)
    for made, data, workers in ((full.recipe, moved, 3), (recipe, full.data, 0), (recipe, moved, 1)):
        out = full.out.with_name(f"out{workers}")
        build(made, out, data, options=BuildOptions(workers=workers))
        assert digests(out) == expected
        check_whole(out)
    folder = full.recipe.with_name("beside")  # no process of the tests imports from there
    folder.mkdir()
    (folder / "random.py").write_text("raise SystemExit('imported')\n")
    (folder / "wave.py").write_text("HERE = True\n")
    beside = folder / full.recipe.name
    beside.write_text("import wave\nassert wave.HERE\n" + full.recipe.read_text())
    full.recipe = beside
    done = run(full.command("--workers", "2"), cwd=full.data)
    assert (done.returncode, digests(full.out)) == (0, expected), done.stderr


def test_a_second_build_does_nothing(full):
    full.build()
    before = {path: path.stat().st_mtime_ns for path in full.out.glob("v*/*")}
    summary = full.build()
    assert (summary.built_samples, summary.built_shards) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in full.out.glob("v*/*")} == before


def test_the_index_agrees_with_the_hashes_the_raw_files_and_the_records(full):
    imagehash = pytest.importorskip("imagehash")
    full.change_recipe("codecs.Jpeg(90)", "codecs.Png()")
    full.build()
    data = open_dataset(full.out)
    keys = sorted(path.relative_to(full.data).as_posix() for path in (full.data / "train").rglob("*.jpg"))
    expected = sorted(keys, key=lambda key: (sample_hash(3, key) % 4, sample_hash(3, key)))
    for variant in (0, 1):
        rows = data.index("train", variant).to_pylist()
        assert [(row["key"], row["shard"]) for row in rows] == [(key, sample_hash(3, key) % 4) for key in expected]
        for row, sample in zip(rows, data.samples("train", variant), strict=True):
            content = (data.path / data.file("train", variant, row["shard"]).name).read_bytes()
            for name in ("image", "mask"):
                png = content[row[f"{name}_offset"] :][: row[f"{name}_size"]]
                np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), sample[name])
            assert (row["height"], row["width"]) == sample["image"].shape[:2] == (16, 20)
            label = {"cat": 0, "dog": 1}[row["key"].split("/")[1]]
            assert row["label"] == sample["label"] == label
            files = [(full.data / name).read_bytes() for name in (row["key"], row["key"][:-4] + ".mask.png")]
            files = [len(content).to_bytes(8, "little") + content for content in files]
            whole = b"".join(files) + json.dumps([label]).encode()
            assert row["source_digest"] == hashlib.sha256(whole).digest()[:16]
            if variant == 0:
                assert row["image_digest"] == hashlib.sha256(files[0]).digest()[:16]
                reference = int(str(imagehash.phash(Image.fromarray(sample["image"]))), 16)
                # The hash is one of 16 x 20 pixels, which both enlarge in their own way.
                assert (row["image_hash"] ^ reference).bit_count() <= 8
    assert data.index("train", 1)["image_hash"].null_count == 24


def test_a_build_without_hashes_makes_the_same_shards(full):
    full.build(hash=False)
    index = open_dataset(full.out).index("train")
    assert (index["image_hash"].null_count, index["image_digest"].null_count) == (24, 0)
    plain, other = digests(full.out), full.from_nothing()
    assert {name for name in plain if plain[name] != other[name]} == {
        "index.parquet",
        "manifest.json",
    }


def test_originals_keep_the_bytes_and_have_the_hash_of_their_pixels_and_some_are_decoded_for_statistics(full):
    full.change_recipe(*WITHOUT_STEPS, "codecs.Jpeg(90)", "codecs.Original()", '"train": 4', '"train": 1')
    turned = full.data / "train/cat/000.jpg"
    Image.fromarray(np.zeros((24, 28, 3), np.uint8)).save(turned, exif=oriented(6))
    Image.fromarray(np.zeros((28, 24), np.uint8)).save(full.mask("train/cat/000"))
    with pytest.warns(
        UserWarning, match="1 images were turned upright by their EXIF orientation; labels that were drawn"
    ):
        full.build()
    data, pixels = open_dataset(full.out), []
    content = (data.path / data.file("train", 0, 0).name).read_bytes()
    for row in data.index("train").to_pylist():
        stored, raw = content[row["image_offset"] :][: row["image_size"]], (full.data / row["key"]).read_bytes()
        assert stored.startswith(b"\x89PNG") if row["key"] == "train/cat/000.jpg" else stored == raw
        pixels.append(np.asarray(Image.open(io.BytesIO(stored)).convert("RGB")))
        assert row["image_hash"] == perceptual_hash(pixels[-1])
    first = np.concatenate([image.reshape(-1, 3) for image in pixels[:16]]).astype(float)
    np.testing.assert_allclose(data.manifest.statistics["image"].mean, first.mean(0), rtol=1e-12)


def test_counts_are_those_of_the_stored_pixels(full):
    full.build()
    data = open_dataset(full.out)
    for split in ("train", "val"):
        masks = np.stack([sample["mask"] for sample in data.samples(split)])
        expected = tuple(int((masks == number).sum()) for number in range(3))
        assert data.manifest.class_counts["mask"][split] == expected
        labels = [int(sample["label"]) for sample in data.samples(split)]
        assert data.manifest.class_counts["label"][split] == (labels.count(0), labels.count(1))


def test_functions_that_no_worker_can_import_are_refused_with_the_fix(full):
    options = {"color": [lambda i, g: i], "variants": {"train": 2}}
    recipe = Recipe("local", sources.Folder("{split}/{label}/*.jpg"), {"image": codecs.Raw()}, **options)
    with pytest.raises(RecipeError, match=r"put the recipe into a file of its own .* or build with BuildOptions"):
        build(recipe, full.out, full.data, options=BuildOptions(workers=1))
    assert build(recipe, full.out, full.data, options=BuildOptions(workers=0)).samples == 30
    unused = replace(recipe, geometry=[augment.Crop(8, 8), augment.Flip()], variants={})
    with pytest.warns(
        UserWarning,
        match=r"^Flip\(p=0\.5, .*\), color: only augmented variants are changed, and the recipe asks for none",
    ):
        build(unused, full.out.with_name("unused"), full.data, options=BuildOptions(workers=0))
    code = (
        "import sys\nfrom tfprep import Recipe, sources, codecs\nfrom tfprep.builder import build, BuildOptions\n"
        "def same(image, generator): return image\n"
        "r = Recipe('main', sources.Folder('train/{label}/*.jpg'), {'image': codecs.Raw()}, color=[same])\n"
        "build(r, sys.argv[1], sys.argv[2], options=BuildOptions(workers=1))"
    )
    done = run([sys.executable, "-c", code, full.out.with_name("main"), full.data])
    assert "a function of the script that was started" in done.stderr
    assert "put the recipe into a file of its own" in done.stderr


def test_limit_takes_the_same_samples_each_time(full):
    assert full.due() == "6 of 6 shards: not built yet"
    assert not full.out.exists(), "a dry run writes nothing"
    assert full.build(limit=5).samples == 5
    first = open_dataset(full.out)
    keys = [key for split in first.splits for key in first.index(split)["key"].to_pylist()]
    everything = [path.relative_to(full.data).as_posix() for path in full.data.rglob("*.jpg")]
    assert sorted(keys) == sorted(sorted(everything, key=lambda key: sample_hash(3, key))[:5])
    assert full.build(limit=5).built_samples == 0
    for limit in (9, None):
        full.build(limit=limit)
    assert digests(full.out) == full.from_nothing(), "it grows into the whole dataset"
    # The limit leaves samples of one split; the recipe may still name the other.
    assert full.build(limit=1, replace=True).samples == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers is at least 0, not -1"),
        ({"workers": "2"}, "workers is a whole number, not '2'"),
        ({"limit": 2.5}, "limit is a whole number, not 2.5"),
        ({"limit": 0}, "limit is at least 1, not 0"),
        ({"on_bad": "explode"}, "on_bad is 'skip' or 'fail', not 'explode'"),
        ({"on_warning": "drop"}, "on_warning is 'keep' or 'reject', not 'drop'"),
        ({"max_bad": 1.5}, "max_bad is a share from 0 to 1, .*not 1.5"),
        ({"max_bad": "1%"}, "max_bad is a share from 0 to 1, such as 0.01, not '1%'"),
        ({"item_timeout_s": "9"}, "item_timeout_s is more than 0 seconds, not '9'"),
        ({"item_timeout_s": 0}, "item_timeout_s is more than 0 seconds, not 0"),
        ({"item_timeout_s": float("nan")}, "item_timeout_s is more than 0 seconds, not nan"),
    ],
)
def test_options_check_themselves(options, message):
    with pytest.raises(BuildError, match=message):
        BuildOptions(**options)


def test_missing_data_raises_with_the_folder(full):
    for function in (build, plan_build):
        with pytest.raises(SourceError, match=r"no such folder of raw data; say where it is with --data"):
            function(full.recipe, full.out, full.data / "nowhere")


def without_opencv(events):
    """The events but for the warning that a build with OpenCV 4 gives."""
    return [event for event in events if "rounds warps" not in event.text]


def test_progress_and_events_add_up(full):
    """A second round rebuilds shards whose records have another form than most records; these are counted once."""
    full.change_recipe(', classes=("ground", "thing", "void")', "")
    full.mask("train/cat/000", 7, np.uint16)
    seen, events = [], []
    summary = full.build(workers=2, on_progress=seen.append, on_event=events.append)
    assert (summary.built_samples, summary.built_shards, summary.rejected) == (30, 6, 1)
    assert {(progress.samples, progress.shards) for progress in seen} == {(30, 6)}
    assert all(progress.samples_done <= 30 and progress.rejected <= 1 for progress in seen)
    assert (seen[-1].samples_done, seen[-1].shards_done, seen[-1].rejected) == (30, 6, 1)
    names = [event.name for event in without_opencv(events) if event.name not in ("shard", "empty")]
    assert names == ["planned", "differing", "published"]
    shards = [json.loads(event.to_json()) for event in events if event.name == "shard"]
    first, again = shards[:6], shards[6:]
    places = {(split, shard) for split, count in (("train", 4), ("val", 2)) for shard in range(count)}
    assert {(event["split"], event["shard"]) for event in first} == places
    assert sum(event["samples"] for event in first) == 30
    assert [(event["split"], event["rejected"]) for event in again] == [("train", 1)]
    assert "planned: 6 of 6 shards: not built yet" in full.log()
    assert "published: 52 records of 29 samples, 1 rejected" in full.log()


def test_class_names_that_tensorflow_datasets_would_misread_are_a_warning(site, monkeypatch):
    """The sources of tfprep refuse such names; a user's source may give them."""
    monkeypatch.setattr("tfprep.sources.folder.class_name_fault", lambda name: "")
    for number, name in enumerate(("train/cat/1", "train/dog /2", "val/cat/3")):
        site.add(name, number)
    with pytest.warns(UserWarning, match=r"label\.labels\.txt was not written: TensorFlow Datasets would misread"):
        site.build()
    assert not (site.out / "current/label.labels.txt").exists()
    assert open_dataset(site.out).manifest.classes["label"] == ("cat", "dog ")
    events = []
    site.build(on_event=events.append)
    assert "warning" not in [event.name for event in without_opencv(events)]  # nothing was built again


IMPORTS = """
import sys
from dataclasses import replace
from pathlib import Path
from tfprep import Recipe, build, codecs, sources
from tfprep.builder import BuildOptions
store = {"image": codecs.Jpeg(), "label": codecs.Scalar()}
summary = build(Recipe("photos", sources.Folder(), store), "out", "raw", options=BuildOptions(workers=int(sys.argv[1])))
assert summary.samples == 6 and Path("out/current/report.html").exists()
print([name for name in ("tensorflow", "keras", "torch", "tqdm") if name in sys.modules])
"""


PUBLISHED = """
import sys
from tfprep.builder.run import Build

def publish(self, *arguments, real=Build._publish, **options):
    before = set(sys.modules)
    summary = real(self, *arguments, **options)
    packages = ("numpy", "pyarrow", "PIL", "jinja2", "importlib", "tfprep")
    print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in packages))
    return summary

Build._publish = publish
"""


def test_what_publishes_a_version_is_imported_while_workers_are_busy(tmp_path):
    """All cores but one wait for the publication. A build that finds nothing to do imports nothing that only a report needs."""
    write_photos(tmp_path / "raw", 6)
    done = run([sys.executable, "-c", PUBLISHED + IMPORTS, 1], cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "[]", done.stderr
    shown = "print('tfprep.inspect.stats' in sys.modules, summary.built_shards)"
    again = run([sys.executable, "-c", IMPORTS + shown, 1], cwd=tmp_path)
    assert again.stdout.splitlines()[1] == "False 0", again.stderr


def test_a_build_with_its_report_and_its_workers_import_no_framework(full, tmp_path):
    write_photos(tmp_path / "raw", 6)
    for workers in (0, 1):
        done = run([sys.executable, "-c", IMPORTS, workers], cwd=tmp_path)
        assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
        shutil.rmtree(tmp_path / "out")
    full.derive(
        "loaded",
        "import sys\n"
        "assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules), 'a framework'\n"
        "assert os.path.basename(sys.argv[0]) == 'pool.py', sys.argv\n"
        "return sample['mask']",
    )
    assert full.build(workers=1).rejected == 0


# --- the start of the workers -----------------------------------------------------------------------------------------


class Watched:
    """An engine that counts its starts."""

    starts = 0

    def start(self):
        self.starts += 1

    def close(self):
        pass


MEMORY = "memory://.* is in the memory of this process.* build with .*workers=0.*, or use"
TWO = {"options": BuildOptions(workers=2)}


@pytest.mark.parametrize(
    ("recipe", "out", "data", "options", "error", "starts"),
    [
        ("mistyped.py", "out", None, {}, "no such recipe", 0),
        ("recipe.txt", "out", "data", {}, "its name ends in .py", 0),
        ("folder.py", "out", "data", {}, "is a folder", 0),
        ("wrong.py", "out", None, {}, "ZeroDivisionError", 1),
        ("wrong.py", "memory://out", "data", TWO, MEMORY, 0),
        ("wrong.py", "out", "memory://data", TWO, MEMORY, 1),
        ("wrong.py", "out", parse_url("memory://data/x"), TWO, MEMORY, 1),
        ("wrong.py", "out", None, {"engine": Ray()}, "ZeroDivisionError", 0),
    ],
)
def test_workers_start_before_the_recipe_is_loaded_and_after_what_is_quick_to_check(
    monkeypatch, tmp_path, recipe, out, data, options, error, starts
):
    """Those of a cluster start on its nodes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("1 / 0")
    (tmp_path / "recipe.txt").write_text("RECIPE = 1")
    (tmp_path / "folder.py").mkdir()
    watched = Watched()
    monkeypatch.setattr(start, "Pool", lambda *_, **__: watched)
    with pytest.raises((BuildError, RecipeError), match=error):
        build(recipe, out, data, **options)
    assert watched.starts == starts


def test_workers_begin_as_this_process_did_whenever_they_start(site):
    """They start before the recipe is loaded, or where a dataset is there already, after its shards were looked at."""
    site.fill(1, 0).change_recipe(', "val": 2', "")
    site.define(
        "import sys\n"
        'os.environ["LOADED"] = os.environ.get("LOADED", "") + "once"\n'
        'sys.path.insert(0, "/added/by/the/recipe")\n'
    )
    site.derive(
        "checked",
        'assert (os.environ["LOADED"], sys.path.count("/added/by/the/recipe")) == ("once", 1)\nreturn sample["mask"]',
    )
    for seed in ("seed=3", "seed=4"):
        site.change_recipe("seed=3", seed)
        done = run(site.command("--max-bad", "0", "--workers", "1"))
        assert done.returncode == 0, done.stderr
        assert "Built 1 sample" in done.stdout
