"""The commands as a user types them, run in this process where possible."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.commands import status_of
from tests.photos import oriented, write_photos
from tests.waiting import wait_until
from tfprep import units
from tfprep.builder.options import BuildEvent
from tfprep.builder.plan import warning_of_opencv
from tfprep.cli import COMMANDS, text
from tfprep.cli.options import share
from tfprep.demo.scenes import LEAF

PIPELINES = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos") / "My Photos"
    return write_photos(root, 40, "{label}/{number}.jpg", labels=("cat", "dog"), noise=(5, 7), size=(90, 120))


RECIPE = """
from tfprep import Recipe, augment, codecs, sources
print("a recipe may print")
RECIPE = Recipe(
    name="pets",
    source=sources.Folder(splits=sources.Fractions(train=0.75, val=0.25, stratify="label")),
    geometry=[augment.Resize(48, 64)],
    variants={"train": 2},
    store={"image": codecs.Jpeg(), "label": codecs.Scalar()},
)
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory):
    """The dataset of the recipe; tests must not change it."""
    root = tmp_path_factory.mktemp("built")
    (root / "recipe.py").write_text(RECIPE)
    assert status_of("build", root / "recipe.py", "--data", photos, "--out", root / "out", "--workers", 0) == 0
    return root / "out"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(succeed, command):
    out = succeed(command, "--help")
    assert out.startswith(f"Usage: tfprep {command}")


def test_dry_run_sends_the_functions_of_a_recipe_that_names_its_data_to_workers(succeed, tmp_path, photos):
    own = "def identity(image, generator):\n    return image\n\n\nDATA = " + repr(str(photos)) + "\n"
    (tmp_path / "own.py").write_text(own + RECIPE.replace("store={", "color=[identity],\n    store={"))
    assert "Expected, from a sample: " in succeed("build", tmp_path / "own.py", "--out", tmp_path / "out", "--dry-run")


def test_build_explains_reports_its_work_and_then_that_nothing_is_to_do(run, succeed, recipe, photos, tmp_path):
    order = ("build", recipe, "--data", photos, "--out", tmp_path / "out", "--workers", 1)
    for option in ("--dry-run", "--explain"):
        out = succeed(*order, option)
        assert "2 of 2 shards: not built yet (40 samples would be built)" in out
        assert ("Expected, from a sample: " in out) == (option == "--dry-run")
        assert not (tmp_path / "out").exists()
    assert "(10 samples would be built)" in run(*order, "--explain", "--limit", 10)[1]
    _, out, err = run(*order, "--dry-run", "--json")
    assert "a recipe may print" in err
    planned = json.loads(out)
    assert (len(planned["shards"]), *planned["expected"]) == (2, "bytes", "seconds")
    assert len(json.loads(run(*order, "--explain", "--json")[1])) == 2
    out = succeed(*order)
    assert "40 samples, 70 records" in out
    assert "Built 40 samples" in out
    out = succeed(*order)
    assert "up to date" in out
    os.utime(next(photos.rglob("*.jpg")), (0, 0))
    assert "samples would be built; files that changed are compared by content first)" in succeed(*order, "--explain")
    summary = json.loads(run(*order, "--json")[1])
    assert summary["samples"] == 40
    assert summary["splits"]["train"]["variants"] == 2
    status, out, err = run(*order, "--quiet", "--replace")
    assert (status, out) == (0, "")
    warning = warning_of_opencv()  # of versions before 5
    assert set(err.splitlines()) == {"a recipe may print", *([f"Warning: {warning}"] if warning else [])}


def test_rejected_samples_are_counted_and_bounded(run, succeed, recipe, photos, tmp_path):
    bad = shutil.copytree(photos, tmp_path / "bad")
    (bad / "cat" / "empty.jpg").write_bytes(b"")
    (bad / "dog" / "words.jpg").write_text("only text")
    order = ("build", recipe, "--data", bad, "--out", tmp_path / "out", "--workers", 0)
    status, _, err = run(*order, "--on-bad", "fail")
    assert status == 1
    assert "cat/empty.jpg" in err or "dog/words.jpg" in err
    status, _, err = run(*order, "--max-bad", "1%")
    assert status == 3
    assert "2 of 42 samples were rejected" in err
    assert not (tmp_path / "out" / "tfprep.json").exists()
    out = succeed(*order, "--max-bad", "10%")
    assert "2 inputs were rejected, such as cat/empty.jpg: the file is empty (0 bytes); see " in out
    assert json.loads(run(*order, "--json")[1])["first_rejected"] == "cat/empty.jpg: the file is empty (0 bytes)"


def test_files_that_the_source_does_not_read_are_counted(recipe, photos, run, succeed, tmp_path):
    raw = shutil.copytree(photos, tmp_path / "raw")
    shutil.copy(raw / "cat/0.jpg", raw / "cat/0.JPEG")
    (raw / "notes.txt").write_text("")
    recipe.write_text(RECIPE.replace("sources.Folder(", "sources.Folder('{label}/*.jpg', "))
    order = ("build", recipe, "--data", raw, "--out", tmp_path / "out", "--workers", 0)
    assert "Left out or missing: not an image by its suffix (1), outside the pattern (1)" in succeed(*order)
    assert json.loads(run(*order, "--json")[1])["passed_over"] == {
        "not an image by its suffix": 1,
        "outside the pattern": 1,
    }


def test_info(run, succeed, built, tmp_path):
    out = succeed("info", built)
    assert "train" in out
    assert "48 x 64 x 3" in out
    assert "cat" in out
    out = succeed("info", built, "--json")
    assert json.loads(out)["splits"]["val"]["samples"] == 10
    _, _, err = run("info", tmp_path / "\x1b[2Jgone")  # names with control characters are printed escaped
    assert "\x1b" not in err
    assert "\\x1b[2Jgone" in err


def test_mixed_sizes_are_said_with_the_lines_that_crop_or_pad(run, succeed, built, photos, tmp_path):
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    Image.new("RGB", (300, 230)).save(mixed / "cat" / "large.jpg")
    (tmp_path / "plain.py").write_text(RECIPE.replace("augment.Resize(48, 64)", ""))
    out = succeed("build", tmp_path / "plain.py", "--data", mixed, "--out", tmp_path / "plain", "--workers", 0)
    said = out.splitlines()[-1]
    assert said.startswith("Sizes differ: image. One array per batch")
    assert said in run("info", tmp_path / "plain")[1].splitlines()
    ways = re.findall(r"\[augment.*?\)\]", said)
    assert len(ways) == 2
    for way in ways:
        geometry = eval(way, {"augment": tfprep.augment})
        batch = next(iter(tfprep.open(tmp_path / "plain").numpy_loader("train", 8, geometry=geometry)))
        assert batch["image"].shape == (8, 224, 224, 3)
    assert "Sizes differ" not in run("info", built)[1]


def test_show(run, succeed, built, tmp_path):
    path = tmp_path / "a folder that is made" / "x.png"
    out = succeed("show", built, "--samples", 3, "--out", path)
    assert str(path) in out
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.height > 3 * 100
    run("show", built)
    assert (built.parent / "out-sheet.png").exists()


def test_a_sheet_that_is_interrupted_leaves_the_one_before(run, built, tmp_path, monkeypatch):
    def half(self, file, *_):
        (file.open("wb") if isinstance(file, Path) else file).write(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "x.png"
    path.write_bytes(b"before")
    monkeypatch.setattr(Image.Image, "save", half)
    assert run("show", built, "--out", path)[0] == 130
    assert path.read_bytes() == b"before"


def test_the_picture_of_imported_records_is_beside_their_folder(run, indexed):
    assert run("show", indexed)[0] == 0
    assert indexed.with_name("indexed-sheet.png").exists()


def test_init_writes_a_recipe_that_builds_unchanged(run, succeed, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = succeed("init", photos)
    assert "cat 20, dog 20" in out
    assert "Next: tfprep build recipe.py --out out/my_photos" in out
    assert run("build", "recipe.py", "--out", "out/my_photos", "--workers", 0)[0] == 0
    status, _, err = run("init", photos)
    assert status == 2
    assert "--force overwrites it" in err
    out = succeed("init", photos, "--force")
    assert "recipe-preview.png shows 3 samples as this recipe builds them" in out
    with Image.open("recipe-preview.png") as picture:
        assert np.unique(np.asarray(picture.convert("L"))).size > 50  # photos, not only paper


def test_pictures_that_commands_draw_among_the_raw_files_are_not_samples(succeed, photos, tmp_path, monkeypatch):
    shutil.copytree(photos, tmp_path / "raw")
    monkeypatch.chdir(tmp_path / "raw")
    succeed("init", ".")
    succeed("build", "recipe.py", "--out", "out/x", "--workers", 0)
    succeed("show", "out/x")
    out = succeed("build", "recipe.py", "--out", "out/x", "--workers", 0)  # out/x-sheet.png would be of a class `out`
    assert "Nothing to do" in out
    assert "a picture that tfprep show or init drew (2)" in out
    assert "cat 20, dog 20" in succeed("init", ".", "--force", "--ignore", "out/x/*")


def test_init_of_a_folder_with_only_a_test_split_says_so_and_builds(run, succeed, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, tmp_path / "raw" / "test")
    out = succeed("init", "raw")
    assert "check: all samples are in the split 'test'; none is left for another" in out
    assert run("build", "recipe.py", "--out", "out", "--workers", 0)[0] == 0
    assert list(tfprep.open("out").splits) == ["test"]


def test_init_leaves_warnings_about_photos_to_the_build(run, tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (40 * number, 90, 9)).save(path)
        path.write_bytes(path.read_bytes()[:-2])
    assert run("init", "raw")[0] == 0
    assert not [one for one in recwarn if "have warnings" in str(one.message)]
    assert "4 samples have warnings" in run("build", "recipe.py", "--out", "out")[2]


def test_init_finds_the_photos_from_a_recipe_in_a_folder_that_is_a_link(photos, succeed, tmp_path):
    (tmp_path / "deep/er/recipes").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er/recipes")
    succeed("init", photos, "--out", tmp_path / "link/pets.py")
    succeed("build", tmp_path / "link/pets.py", "--out", tmp_path / "out", "--workers", 0)


def test_printed_commands_work_for_names_with_spaces(photos, run, succeed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = succeed("init", photos, "--out", "my pets.py")
    (command,) = re.findall(r"Next: (tfprep .*)", out)
    succeed(*shlex.split(command)[1:], "--workers", 0)
    (command,) = re.findall(r"^Build: (tfprep .*)", Path("my pets.py").read_text(), re.M)
    succeed(*shlex.split(command)[1:], "--workers", 0)
    os.rename("out", "my out")
    next(Path("my out").rglob("*.tfrecord-*")).write_bytes(b"damaged")
    status, out, _ = run("verify", "my out/my_photos")
    (command,) = re.findall(r"(tfprep build .* --verify) makes", out)
    succeed(*shlex.split(command.replace("RECIPE", "'my pets.py'"))[1:], "--workers", 0)
    assert (status, run("verify", "my out/my_photos")[0]) == (1, 0)


def test_init_names_files_whose_names_are_not_utf8(photos, succeed, tmp_path):
    for split, noise in (("train", (6, 8)), ("val", (7, 8))):
        write_photos(tmp_path / "raw" / split, 20, noise=noise)
    (tmp_path / "raw/test").mkdir()
    shutil.copy(photos / "cat/0.jpg", tmp_path / "raw/test" / os.fsdecode(b"caf\xe9.jpg"))
    recipe = tmp_path / os.fsdecode(b"r\xe9.py")
    out = succeed("init", tmp_path / "raw", "--out", recipe)
    assert "have no labels, and are left out: test/caf\\udce9.jpg" in out
    assert "caf/udce9.jpg" in recipe.read_text()


def test_init_says_why_it_draws_no_samples(succeed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "whole.jpg")
    for number in range(3):  # only its beginning, with the size, can be read
        (tmp_path / f"raw/{number}.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    (tmp_path / "recipe-preview.png").write_bytes(b"of another folder")
    out = succeed("init", "raw", "--as", "images")
    assert "check: no picture of samples could be drawn: " in out
    assert not (tmp_path / "recipe-preview.png").exists()


def suggestion(option, *possibilities):
    """How the installed version of click puts it."""
    return click.NoSuchOption(option, possibilities=possibilities).format_message()


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["info", "nowhere"], 1, "the folder does not exist"),
        (["build", "nowhere.py", "--out", "x"], 1, "'tfprep init FOLDER' writes one"),
        (["build", "{recipe}", "--data", "nowhere", "--out", "x"], 1, "--data"),
        (["build", "recipe.py"], 2, "--out"),
        (["build", "recipe.py", "--out", "x", "--max-bad", "many"], 2, "a share such as 1%"),
        (["bild"], 2, "No such command 'bild'. Did you mean 'build'?"),
        (["frobnicate"], 2, "No such command 'frobnicate'. There are init, build, show,"),
        (["build", "recipe.py", "--uot", "x"], 2, suggestion("--uot", "--out", "--quiet")),
        (["fields", "add", "out", "{recipe}", "--part", ""], 2, "a part is written as NUMBER/PARTS"),
        (["--vresion"], 2, suggestion("--vresion", "--version")),
        (["show", "nowhere"], 1, "does not exist"),
        (["show", "{photos}"], 1, "`tfprep init` writes a recipe for raw images"),
        (["show", "nowhere", "--out", "x.ico"], 2, "a sheet is a .png or a .jpg, not 'x.ico'"),
        (["show", "nowhere", "--out", "s3://bucket/x.png"], 2, "a local path is needed here, not the URL 's3://bucket"),
        (["export", "nowhere", "--to", "parquet", "--out", "gs://bucket/x"], 2, "a local path is needed here"),
    ],
)
def test_exit_codes_and_messages(run, recipe, photos, args, status, message):
    got, _, err = run(*(arg.format(recipe=recipe, photos=photos) for arg in args))
    assert got == status
    assert message in err


SLOW = """
import time
from tfprep import Recipe, codecs, sources
def slow(sample, generator):
    time.sleep(0.2)
    return sample["image"]
RECIPE = Recipe(name="slow", source=sources.Folder(), derive={"d": slow}, store={"d": codecs.Raw()})
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_says_how_to_continue_and_the_same_command_continues(photos, tmp_path, sent):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "tfprep", "build", "slow.py", "--data", photos, "--out", "out", "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        folder = tmp_path / "out/.tfprep"  # `os.walk`, unlike `glob`, goes on where a folder is removed meanwhile
        wait_until(lambda: any(name.endswith(".tmp") for *_, names in os.walk(folder) for name in names), process)
        process.send_signal(sent)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues the build" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "out").glob(".tfprep/**/*.tmp"))
    (tmp_path / "slow.py").write_text(SLOW.replace("0.2", "0.0"))
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_ctrl_c_while_text_is_executed_has_the_same_exit_status(tmp_path):
    """Python itself would end the process by the signal."""
    (tmp_path / "recipe.py").write_text('exec("import signal; signal.raise_signal(signal.SIGINT)")')
    command = [sys.executable, "-m", "tfprep", "build", "recipe.py", "--out", "out"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 130


# --- how numbers are printed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "cases"),
    [
        (units.size, {0: "0 B", 999: "999 B", 12_700_000: "12.7 MB", 244e6: "244 MB", 1.5e13: "15 TB"}),
        (units.duration, {0.05: "0.1 s", 59.9: "59.9 s", 61: "1 min 01 s", 7325: "2 h 02 min"}),
        (text.table, {(("a", "n"), ("bb", 1200)): "  a       n\n  bb  1,200"}),
        (share, {"1%": 0.01, "0.01": 0.01, "100%": 1, "0": 0, "1": 1}),
    ],
)  # fmt: skip
def test_amounts_and_tables(function, cases):
    assert {value: function(value) for value in cases} == cases


@pytest.mark.parametrize("typed", ["", "lots", "nan", "101%", "-1%", "1%%", "inf"])
def test_anything_but_a_share_is_refused(typed):
    with pytest.raises(click.BadParameter, match="expected a share"):
        share(typed)


def test_every_character_of_a_name_is_valid_json(capsys):
    """U+007F to U+009F, which act on a terminal, and what stands for bytes that are not UTF-8."""
    names = ["".join(map(chr, range(0xA0))), "größe", "\u202e"]
    text.print_json({"names": names, "numbers": [float("nan"), -float("inf"), 1.5]})
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=lambda name: name) == {"names": names, "numbers": [None, None, 1.5]}
    assert not [one for one in out if 0x7F <= ord(one) <= 0x9F]
    event = BuildEvent("reject", "a\x7f\x85", 1.0, {"key": "b\x9f"})
    assert json.loads(text.escaped_json(event.to_json()))["key"] == "b\x9f"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("check", "{}", "--html", "/"), "is a directory"),
        (("stats", "{}", "--html", "."), "is a directory"),
        (("check", "{}", "--groups", "nowhere/a.csv"), "the folder nowhere does not exist"),
        (("index", "{}", "--out", ""), "'--out': it is empty"),
        (("build", "{}", "--out", ""), "'--out': it is empty"),
        (("export", "{}", "--to", "parquet", "--out", ""), "'--out': it is empty"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(run, built, order, message):
    status, _, err = run(*(argument.format(built) for argument in order))
    assert status == 2
    assert message in err


def test_an_error_with_json_is_json(run, tmp_path):
    status, out, err = run("info", tmp_path / "missing", "--json")
    assert status == 1
    error = json.loads(out)["error"]
    assert error["type"] == "DatasetError"
    assert error["message"] in err
    status, out, _ = run("bench", "--rounds", "0", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "UsageError"


def test_demo_makes_data_for_tutorials(succeed, tmp_path):
    out = succeed("demo", "--only-data", "--out", tmp_path, "--scenes", 20)
    assert "20 photos of one object, in a folder for each class" in out
    masks = sorted((tmp_path / "raw" / "train" / "masks").iterdir())
    assert len(masks) == len(list((tmp_path / "raw" / "train" / "images").iterdir())) == 20
    assert {int(value) for path in masks for value in np.unique(Image.open(path))} == {0, 1, 2, 3}
    for path in masks:
        assert (np.asarray(Image.open(path)) == LEAF).mean() > 0.002, f"{path} shows a leaf, the demo's target"
    assert sorted(path.name for path in (tmp_path / "objects").iterdir()) == ["leaf", "star", "stone"]
    assert len(list((tmp_path / "objects").rglob("*.jpg"))) == 20
    coco = json.loads((tmp_path / "raw" / "annotations" / "instances_train.json").read_text())
    assert [image["file_name"] for image in coco["images"]] == [f"{path.stem}.jpg" for path in masks]
    for image, path in zip(coco["images"], masks, strict=True):
        mask, covered = np.asarray(Image.open(path)), np.zeros((image["height"], image["width"]), bool)
        for annotation in coco["annotations"]:
            if annotation["image_id"] == image["id"]:
                x, y, width, height = annotation["bbox"]
                part = mask[y : y + height, x : x + width] == annotation["category_id"]
                covered[y : y + height, x : x + width] |= part
                assert all(part.any(1)[[0, -1]]), "the box ends where the object ends"
                assert all(part.any(0)[[0, -1]]), "the box ends where the object ends"
        assert np.array_equal(covered, mask > 0), "every object has a box"


def test_the_end_of_a_command_loses_no_output_and_runs_what_was_registered(tmp_path):
    code = "import atexit, sys; atexit.register(print, 'registered'); from tfprep.cli import main; main()"
    command = [sys.executable, "-c", code, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Commands" in ended.stdout
    assert ended.stdout.endswith("registered\n")


def test_the_end_of_a_command_writes_the_files_that_a_recipe_left_open(photos, tmp_path):
    (tmp_path / "recipe.py").write_text("""
from tfprep import Recipe, codecs, sources
LOG = open("log.txt", "w")
def noted(sample, generator):
    LOG.write("one sample\\n")
    return sample["image"]
RECIPE = Recipe("noted", sources.Folder(), derive={"d": noted}, store={"d": codecs.Raw()})
""")
    command = [sys.executable, "-m", "tfprep", "build", "recipe.py", "--data", photos, "--out", "out", "--workers", "0"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert len((tmp_path / "log.txt").read_text().splitlines()) >= len(list(photos.rglob("*.jpg")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("args", [["--help"], ["info", "{folder}", "--json"]])
def test_an_output_that_cannot_be_written_is_an_error(args, built):
    command = [sys.executable, "-m", "tfprep", *(arg.format(folder=built) for arg in args)]
    with Path("/dev/full").open("w") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_encoding_of_the_output_does_not_have_is_shown(encoding, tmp_path):
    folder = write_photos(tmp_path / "фото …", 4, labels=("кот", "дом"))
    command = [sys.executable, "-m", "tfprep", "init", folder, "--out", tmp_path / "r.py"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    command = [sys.executable, "-m", "tfprep", "info", folder, "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 1
    assert "фото …" in json.loads(ended.stdout)["error"]["message"]


def test_json_is_the_only_output_also_where_child_processes_print(recipe, photos, tmp_path):
    recipe.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'])\n{RECIPE}")
    command = [sys.executable, "-m", "tfprep", "build", recipe, "--data", photos, "--out", tmp_path / "out", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["samples"] == 40
    assert {"1", "a recipe may print"} <= set(ended.stderr.splitlines())


def test_a_build_without_standard_streams_is_a_build(recipe, photos, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tfprep", "build", str(recipe), "--data", str(photos), "--out", str(out)]
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], check=True)
    assert tfprep.open(out).split("train").samples == 30


@pytest.mark.parametrize("turned", [0, 3])
def test_init_counts_turned_images(tmp_path, run, turned):
    write_photos(tmp_path / "raw", 8)
    for number, orientation in enumerate([1, 3, 6, 8][: turned + 1]):
        for path in (tmp_path / "raw").glob(f"*/{number}.png"):
            Image.open(path).save(path.with_suffix(".jpg"), exif=oriented(orientation))
            path.unlink()
    status, out, _ = run("init", tmp_path / "raw", "--out", tmp_path / "recipe.py")
    assert status == 0
    lines = [line.strip() for line in out.splitlines() if "EXIF" in line]
    assert lines == (["turned by EXIF, 8 opened: 3"] if turned else [])
