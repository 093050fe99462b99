"""Datasets are opened, loaded and checked in a process in which OpenCV cannot be imported, and what is read is the same."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions

BLOCKED = """
import importlib.util, sys

class NoOpenCv:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cv2":
            raise ModuleNotFoundError(f"No module named {name!r}", name="cv2")

sys.meta_path.insert(0, NoOpenCv())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "cv2" else found(name, package)
"""
LOADS = """
import hashlib, json, numpy as np, tfprep
from tfprep import augment

data = tfprep.open(sys.argv[1])
digests = {}
for name, options in {
    "plain": {},
    "whole pixels": {"geometry": [augment.Flip(), augment.Crop(20, 24)], "fields": ["image", "mask", "depth"]},
    "processes": {"workers": "processes", "threads": 2, "cache": False},
}.items():
    seen = hashlib.sha256()
    for batch in data.numpy_loader("train", batch_size=2, **options):
        for field in sorted(batch):
            seen.update(np.ascontiguousarray(batch[field]).tobytes())
    digests[name] = seen.hexdigest()
print(json.dumps(digests))
"""


def run(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Images as JPEG, masks and 16-bit maps as PNG."""
    root = tmp_path_factory.mktemp("without_opencv")
    draws = np.random.default_rng(0)
    for number in range(6):
        for name, array in {
            "image": draws.integers(0, 256, (32, 40, 3)).astype(np.uint8),
            "mask": draws.integers(0, 4, (32, 40)).astype(np.uint8),
            "depth": draws.integers(0, 65536, (32, 40)).astype(np.uint16),
        }.items():
            (root / "raw" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / f"raw/{name}/{number}.png")
    recipe = Recipe(
        name="plain",
        source=sources.Paired("image/*.png", "mask/*.png", fields={"depth": ("map", "depth/*.png")},
                              pixels={"depth": sources.Pixels()}),
        derive={"copy": copy_of_image},
        store={"image": codecs.Jpeg(), "mask": codecs.Png(), "depth": codecs.Png(), "copy": codecs.Png()},
    )  # fmt: skip
    tfprep.build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0))
    return root / "out"


def copy_of_image(sample, generator):
    return np.asarray(sample["image"]).copy()


copy_of_image.kind = "image"  # type: ignore[attr-defined]


def test_loaders_deliver_the_same(built):
    without, with_it = run(BLOCKED + LOADS, built), run("import sys\n" + LOADS, built)
    assert without.returncode == 0, without.stderr
    digests = json.loads(without.stdout)
    assert digests == json.loads(with_it.stdout)
    assert len(digests) == 3


COMMANDS = """
--version
--help
doctor
info {0}
verify {0}
stats {0} --json
diff {0} {0}
check {0}
export {0} --out {1} --to webdataset
export {0} --out {2} --to parquet
init {3} --ignore depth/* --out {4}
"""
EACH = """
from tfprep.cli import main
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as ended:
        assert not ended.code, command
"""


def test_commands_work(built, tmp_path):
    places = built, tmp_path / "webdataset", tmp_path / "parquet", built.parent / "raw", tmp_path / "new.py"
    done = run(BLOCKED + EACH, *COMMANDS.format(*places).strip().splitlines())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from tfprep import augment; augment.Rotate(10); from tfprep.augment import warp; warp.cv2.warpAffine",
        "from tfprep.cli import run\nsys.argv[0] = 'tfprep'\nrun()",
    ],
)
def test_what_needs_opencv_says_what_to_install(built, tmp_path, code):
    done = run(BLOCKED + code, "show", built, "--out", tmp_path / "sheet.png")
    assert done.returncode == 1
    assert "needs OpenCV: pip install 'tfprep[opencv]'" in done.stderr
