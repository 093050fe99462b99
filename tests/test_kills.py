"""Every command that writes a dataset is killed at its steps: readers see one whole version, and the same command ends as if
nothing had happened, without a leftover."""

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tfprep.builder import BuildOptions, build
from tfprep.dataset import index_tfrecords
from tfprep.model_fields import add_fields, remove_fields

STRIDE = 1 if int(os.environ.get("TFPREP_TEST_KILLS", "1")) > 1 else 31
"""Only each 31st rename, link, removal or opened file on average is one at which a command is killed, but in the nightly run."""
SEED = os.environ.get("TFPREP_TEST_SEED", "0")

RECIPE = """
import numpy as np
from tfprep import ModelFields, Recipe, augment, codecs, sources


def model():
    return lambda batch: {"score": batch["image"].astype(np.float32).mean(axis=(1, 2))}


FIELDS = ModelFields(model=model, inputs=["image"], store={"score": codecs.Raw("float32")}, batch_size=4)
RECIPE = Recipe(
    name="tiny", source=sources.Folder("{split}/{label}/*.png"), geometry=[augment.Flip(p=1.0)],
    store={"image": codecs.Png(), "label": codecs.Scalar()}, variants={"train": 2}, shards={"train": 2, "val": 1},
)
"""

COUNTED = """
import io, os, sys
from pathlib import Path

import cv2, tfprep.builder.publish, tfprep.builder.shard

steps = die_at = 0
POINTS = -1  # dies when it is about to replace the pointer
cv2.setNumThreads(0)
tfprep.builder.publish.write_report = lambda *arguments: ""
os.fsync, os.sync = lambda descriptor: None, lambda: None  # what a killed process wrote stays: before a sync as after it


def counted(function):
    def step(*arguments, **options):
        global steps
        steps += 1
        points = arguments and Path(str(arguments[-1])).name == "tfprep.json"
        if steps == die_at or die_at == POINTS and points:
            os._exit(9)
        return function(*arguments, **options)
    return step


def count(*names):
    "From now on, this process exits at step `die_at`: a call of these functions of `os`, or a file that was opened for writing."
    for name in names:
        setattr(os, name, counted(getattr(os, name)))
    io.open = opened
    Path.replace = lambda self, target: os.replace(self, target)
    Path.rmdir = lambda self: os.rmdir(self)
    def unlink(self, missing_ok=False):
        try:
            os.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise
    Path.unlink = unlink


def opened(file, mode="r", *arguments, open_file=io.open, **options):
    "A file that is opened for writing when the process exits stays empty."
    handle = open_file(file, mode, *arguments, **options)
    if set("wax+") & set(mode):
        counted(lambda: None)()
    return handle


def status(*functions):
    "Run functions in a fork of this process, which has no other thread."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            for function in functions:
                function()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
"""A script's beginning, with which a process exits at a chosen step of its work on files."""

SCRIPT = """
import hashlib, random, re, shutil

import pyarrow as pa
import tfprep.model_fields.add
from tfprep.builder import BuildOptions, build
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.dataset.clean import clean
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError
from tfprep.export import export
from tfprep.model_fields import add_fields, remove_fields

name, root, stride, chance = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), random.Random(sys.argv[4])
out = root / "out"


def built(recipe="recipe.py", **options):
    build(root / recipe, out, root / "raw", options=BuildOptions(workers=0, **options))


def removed():
    try:
        remove_fields(out, "score")
    except DatasetError as error:  # the last step was done
        assert "has no added fields" in str(error)


COMMANDS = {
    "build": lambda: built("changed.py"),
    "reshard": lambda: built("more.py", reshard=True),
    "replace": lambda: built("other.py", replace=True),
    "verify": lambda: built(verify=True),
    "fields add": lambda: add_fields(out, root / "recipe.py"),
    "fields remove": lambda: removed(),
    "index": lambda: index_tfrecords(
        str(root / "foreign/*.tfrecord"), "train", root / "index", workers=0
    ),
    "export": lambda: export(open_dataset(out), root / "exported", "webdataset"),
    "clean": lambda: clean(out, remove=True),
}


def places():
    return [place for place in (out, root / "index") if (place / "tfprep.json").exists()]


def content(place):
    path = open_dataset(place).path
    files = [one for one in path.rglob("*") if one.is_file() and one.name != "report.html"]
    return {one.relative_to(path).as_posix(): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def everything():
    "The content of what readers see, and the names of all files there are; numbers of versions do not count."
    names = {re.sub(r"\\bv[0-9]{4}\\b", "v", str(one.relative_to(root))) for one in root.rglob("*")}
    exported = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in (root / "exported").rglob("*.*")}
    return repr((sorted(names), exported, [content(place) for place in places()]))


def note(file, function):
    Path(file).write_text(function())


def check_reader():
    for place in places():
        assert name == "verify" or not list(verify(place)), list(verify(place))
        seen = repr(content(place))
        assert seen in (root / ".." / f"{place.name}.allowed").read_text().split("\\n"), f"{place}: neither version"


def note_allowed():
    for place in places():
        with open(root / ".." / f"{place.name}.allowed", "a") as file:
            file.write(repr(content(place)) + "\\n")


def restore():
    shutil.rmtree(root)
    os.system(f"cp -a {root}.before {root}")


restore()
assert status(note_allowed, COMMANDS[name], note_allowed, lambda: note(root / "../expected", everything)) == 0
killed, die_at = 0, POINTS
while True:
    restore()
    ended = status(lambda: count("replace", "unlink", "rename", "link", "rmdir", "mkdir", "symlink"), COMMANDS[name])
    before, die_at = die_at, max(die_at, 0) + chance.randint(1, 2 * stride - 1)
    if ended != 9 and before == POINTS:
        continue
    if ended != 9:
        break
    killed += 1
    assert status(check_reader) == 0, before
    assert status(COMMANDS[name], lambda: note(root / "../found", everything)) == 0, before
    expected, found = Path(root, "../expected").read_text(), Path(root, "../found").read_text()
    assert found == expected, (before, sorted(set(found.split(", ")) ^ set(expected.split(", ")))[:20])
assert ended == 0, ended
print(killed)
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A dataset of two versions, the later one with added fields, and TFRecords that are indexed once."""
    root = tmp_path_factory.mktemp("kills") / "site"
    for number in range(9):
        path = root / "raw" / ("val" if number > 6 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8))
    changes = {
        "recipe": ("", ""), "changed": ('"label": codecs.Scalar()', '"label": codecs.Scalar(), "image": codecs.Jpeg(90)'),
        "more": ('shards={"train": 2, "val": 1}', 'shards={"train": 3, "val": 2}'), "other": ('"tiny"', '"other"'),
    }  # fmt: skip
    for name, change in changes.items():
        (root / f"{name}.py").write_text(RECIPE.replace(*change) if change[0] else RECIPE)
    code = f"""
import shutil
from pathlib import Path
from tfprep.builder import BuildOptions, build
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.model_fields import add_fields
root = Path({str(root)!r})
build(root / "recipe.py", root / "out", root / "raw", options=BuildOptions(workers=0))
add_fields(root / "out", root / "recipe.py")
(root / "foreign").mkdir()
for number, path in enumerate(sorted(open_dataset(root / "out").path.glob("*-train.tfrecord-*-of-00002"))):
    shutil.copy(path, root / f"foreign/{{number}}.tfrecord")
    index_tfrecords(str(root / "foreign/*.tfrecord"), "train", root / "index", workers=0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    return root


LEAST = {"export": 0, "clean": 1}
COMMANDS = ("build", "reshard", "replace", "verify", "fields add", "fields remove", "index", "export", "clean")


@pytest.mark.parametrize("command", COMMANDS)
def test_kills_at_every_step_of_a_command(before, tmp_path, command):
    site = tmp_path / "site"
    shutil.copytree(before, tmp_path / "site.before", symlinks=True)
    shutil.copytree(before, site, symlinks=True)
    if command == "build":  # another recipe, and other raw files
        raw = tmp_path / "site.before/raw"
        (raw / "val/b/7.png").unlink()
        shutil.copy(raw / "val/a/8.png", raw / "train/a/new.png")
    if command == "fields add":
        subprocess.run(
            [sys.executable, "-m", "tfprep", "fields", "remove", tmp_path / "site.before/out", "score"], check=True
        )
    if command == "index":
        shutil.copy(site / "foreign/0.tfrecord", tmp_path / "site.before/foreign/2.tfrecord")
    if command == "verify":
        shard = next((tmp_path / "site.before/out/current").glob("tiny-train.tfrecord-00000-of-00002"))
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    stride = 1 if command in LEAST else STRIDE
    words = [sys.executable, "-W", "ignore", "-c", COUNTED + SCRIPT, command, site, str(stride), SEED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(command, "was killed", done.stdout.split()[-1], "times")
    assert int(done.stdout.split()[-1]) > LEAST.get(command, 20 // STRIDE), done.stdout


class Watch:
    """Notes which inodes are synced, and fails where something gets its name before what it describes is durable."""

    def __init__(self, out):
        self.private = out / ".tfprep"
        self.synced, self.withdrawn, self.moved, self.receipts = set(), set(), [], [0, 0]

    def sync(self, descriptor, fsync=os.fsync):
        fsync(descriptor)
        self.synced.add(os.fstat(descriptor).st_ino)
        self.withdrawn.discard(os.fstat(descriptor).st_ino)

    def forget(self, path):
        if os.path.lexists(path) and os.lstat(path).st_nlink == 1:  # another file may get its number
            self.synced.discard(os.lstat(path).st_ino)

    def remove(self, path, unlink=os.unlink, **options):
        self.forget(path)
        unlink(path, **options)
        if RECEIPT.fullmatch(os.path.basename(path)):
            self.withdrawn.add(os.stat(os.path.dirname(path)).st_ino)

    def move(self, source, target, *, real):
        self.forget(target)
        name, folder = os.path.basename(target), os.path.dirname(target)
        if re.fullmatch("v[0-9]{4}", name):
            parts = [Path(source), *Path(source).rglob("*")]
            late = [str(one) for one in parts if one.stat().st_ino not in self.synced and one.name != "report.html"]
            assert not late, late
            self.moved.append(name)
        elif name == "tfprep.json":
            assert {os.stat(source).st_ino, os.stat(folder).st_ino} <= self.synced
        elif (shard := SHARD.fullmatch(name)) and Path(folder) == self.private / "new":
            assert not self.withdrawn, "a receipt was removed, which a power failure would undo"
            assert not (self.private / f"receipts/{shard[1]}-{shard[2]}.json").exists(), "it describes another shard"
        elif RECEIPT.fullmatch(name):  # and the folder of its shards
            computed = [one for one in Path(folder).iterdir() if one.is_dir()]
            assert {one.stat().st_ino for one in computed or [self.private / "new"]} <= self.synced
            self.receipts[bool(computed)] += 1
        if os.path.isfile(source) and not os.path.islink(source) and name != "report.html":
            assert os.stat(source).st_ino in self.synced, target
        real(source, target)
        if name != "current":  # a link for people, which the next build makes again
            self.synced.discard(os.stat(folder).st_ino)


RECEIPT, SHARD = (
    re.compile(r"\w+-(?:v\d+-)?\d{5}\.json"),
    re.compile(r"\w+?-(\w+?)(?:_v\d+)?\.tfrecord-(\d{5})-of-\d{5}"),
)


@pytest.mark.filterwarnings("ignore:the fields 'score' that a model added")
def test_nothing_is_named_before_it_is_durable(before, tmp_path, monkeypatch):
    """All files of a version and its folders are synced before it gets its name, and that name before the pointer is replaced."""
    root = shutil.copytree(before, tmp_path / "site", symlinks=True)
    shutil.copy(root / "foreign/0.tfrecord", root / "foreign/2.tfrecord")
    out, raw, recipe, options = root / "out", root / "raw", root / "recipe.py", BuildOptions(workers=0)
    watch = Watch(out)
    monkeypatch.setattr(os, "fsync", watch.sync)
    monkeypatch.setattr(os, "unlink", watch.remove)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, functools.partial(watch.move, real=getattr(os, name)))
    for place, command in (
        (out, lambda: remove_fields(out, "score")),
        (out, lambda: add_fields(out, recipe)),
        (out, lambda: build(root / "changed.py", out, raw, options=options)),
        (out, lambda: build(root / "more.py", out, raw, options=dataclasses.replace(options, reshard=True))),
        (out, lambda: build(root / "other.py", out, raw, options=dataclasses.replace(options, replace=True))),
        (root / "index", lambda: index_tfrecords(str(root / "foreign/*.tfrecord"), "train", root / "index", workers=0)),
    ):
        watch.synced = {path.lstat().st_ino for path in root.rglob("*") if path.is_file()}  # published or there before
        watch.withdrawn.clear()
        command()
        assert place.stat().st_ino in watch.synced, "the pointer is durable when a command ends"
    assert len(watch.moved) == 6
    assert all(watch.receipts)
