"""Recipe files with mistakes: each raises an error of tfprep or builds, and none ends in a traceback.

    python benchmarks/fuzz.py recipes [--count 500] [--seed 0] [--json FILE]

Each recipe is one of four valid recipes with one to three random mistakes: an option of another type, a misspelt name, a missing
bracket, a class that is not called, an op in the wrong list, a missing field, a function that raises or returns something else.
It is loaded and, if that succeeds, built from six images with `workers=0`. The script counts the outcomes: refused when loaded,
with or without the line number; refused by the build; built, with or without rejected samples. Any other outcome is printed with
its recipe, and the exit status is then 1.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from PIL import Image

from tfprep import build
from tfprep.builder import BuildOptions
from tfprep.errors import TfprepError
from tfprep.recipe.file import load_recipe

HEAD = """import numpy as np
from tfprep import Recipe, augment, codecs, derive, sources

def lifted(sample, generator):
    return sample["image"][:, :, 0].astype(np.float32) * FACTOR

def darker(image, generator):
    return (image * generator.uniform(0.5, 1)).astype(np.uint8)

FACTOR = 2.0
"""
FOLDER = """RECIPE = Recipe(
    name="photos",
    source=sources.Folder(splits=sources.Fractions(train=0.5, val=0.5, stratify="label")),
    geometry=[augment.RandomResizedCrop(16, 16), augment.Flip(p=0.5), augment.Maybe(augment.Rotate(10), p=0.3)],
    derive={"lifted": lifted},
    color=[augment.Brightness(0.2), augment.OneOf([augment.Blur((0.5, 1.0)), augment.Hue(0.1)]), darker],
    variants={"train": 2},
    shards={"train": 1},
    store={"image": codecs.Jpeg(95), "label": codecs.Scalar(), "lifted": codecs.Raw("float32")},
    seed=1,
)
"""
PAIRED = """RECIPE = Recipe(
    name="masks",
    source=sources.Paired(image="{label}/*.jpg", mask="{label}/*.png", classes=("ground", "thing", "void")),
    geometry=[augment.Crop(16, 20), augment.Scale((0.9, 1.2))],
    derive={
        "clicks": derive.Clicks(mask="mask", target=1, void=2),
        "distance": derive.Distance(mask="mask", target=1, truncate_px=20),
        "edges": derive.Boundaries(mask="mask", void=2),
    },
    fill={"mask": 2, "image": (1, 2, 3)},
    border="constant",
    variants={"train": 2},
    store={"image": codecs.Png(), "mask": codecs.Png(), "clicks": codecs.Raw(), "distance": codecs.Raw("float16")},
    seed=3,
)
"""
TABLE = """RECIPE = Recipe(
    name="rows",
    source=sources.Table(
        "rows.jsonl", image="path", label="kind", fields={"boxes": ("boxes", "boxes"), "age": ("scalar", "age")}
    ),
    geometry=[augment.Resize(16, 16)],
    min_visible=0.1,
    row_fields={"boxes": ["boxes"]},
    store={"image": codecs.Jpeg(90), "boxes": codecs.Scalar(), "age": codecs.Scalar(), "label": codecs.Scalar()},
)
"""
ORIGINAL = """RECIPE = Recipe(
    "kept", sources.Folder("**"), {"image": codecs.Original()}, shards={"train": 2}, dct_downscale=False
)
"""
GOOD = [HEAD + recipe for recipe in (FOLDER, PAIRED, TABLE, ORIGINAL)]
VALUES = [
    "None", "True", "-1", "0", "1.5", "20", "1e400", "float('nan')", "10 ** 30", "'x'", "''", "'a\\nb'", "'../../evil'",
    "'\\ud800'", "b'x'", "[]", "[1]", "()", "(1, 0)", "{}", "{'x': 1}", "{1: 2}", "{'../../evil': codecs.Png()}", "object()",
    "print", "int", "lambda: 1", "lambda a, b: a", "lambda a, b: 1 / 0", "lambda a, b: sys.exit()", "np.zeros(3)",
    "np.float32(0.5)", "augment.Flip", "augment.Flip()", "augment.Hue(0.1)", "codecs.Jpeg", "codecs.Raw('float16')",
    "derive.Sobel()", "derive.Clicks()", "sources.Folder", "sources.Paired(image='*.jpg', mask='*.png')", "range(3)",
    "iter([])", "...", "open(__file__)", "RECIPE",
]  # fmt: skip
VALUE = re.compile(
    r"(?<==)(?:[\w.']+\([^()]*\)|[\w.'\"]+)|(?<=: )(?:codecs|derive)\.\w+\([^()]*\)|(?<=[\[(, ])(?:\d[\d.]*|\"[^\"]*\")"
)
LIMIT_S = 60.0
NAME = re.compile(r"[A-Za-z_]{3,}")


def run(options: Any) -> None:
    def cases(folder: Path) -> Iterator[tuple[str, Callable[[], str], float]]:
        write_data(folder / "data")
        for number in range(options.count):
            path, text = folder / f"recipe_{number}.py", with_mistakes(random.Random(f"{options.seed}/{number}"))
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            yield f"{path.name}\n{text}", partial(outcome, path), LIMIT_S

    with tempfile.TemporaryDirectory(prefix="tfprep-fuzz-") as folder:
        expected = ("refused", "built")
        harness.run_cases(options, cases(Path(folder)), allowed=lambda outcome: outcome.startswith(expected))


def write_data(data: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(6):
        path = data / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 28, 3), np.uint8)).save(path)
        Image.fromarray(rng.integers(0, 3, (24, 28), np.uint8)).save(path.with_suffix(".png"))
        name, kind = f"{path.parent.name}/{path.name}", path.parent.name
        rows.append({"path": name, "kind": kind, "boxes": [[1, 2, 10, 20]], "age": number})
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def with_mistakes(rng: random.Random) -> str:
    """A valid recipe with one to three mistakes."""
    text = rng.choice(GOOD)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choices(MISTAKES, weights=(8, 1, 1, 1, 4))[0](text, rng)
    return text


def other_value(text: str, rng: random.Random) -> str:
    matches = list(VALUE.finditer(text))
    match = rng.choice([match for match in matches if match.start() > len(HEAD)] or matches or [None])
    return text if match is None else text[: match.start()] + rng.choice(VALUES) + text[match.end() :]


def misspelt(text: str, rng: random.Random) -> str:
    name = rng.choice(list(NAME.finditer(text)))
    at = rng.randrange(name.start(), name.end())
    return text[:at] + rng.choice(["", "x", text[at].upper()]) + text[at + 1 :]


def without_a_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return "".join(lines) or "\n"


def character_changed(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(["", "(", ")", "'", ",", "\n", "\0", "é", "=", "]"]) + text[at + 1 :]


def other_body(text: str, rng: random.Random) -> str:
    """Replaces the body of one of the user's functions."""
    bodies = [
        "return None", "raise KeyError('x')", "return image", "return sample", "import sys; sys.exit(3)", "while False: yield 1",
        "1",
    ]  # fmt: skip
    return re.sub(r"(?m)^    return .*$", f"    {rng.choice(bodies)}", text, count=rng.randint(1, 2))


MISTAKES: list[Callable[[str, random.Random], str]] = [
    other_value,
    misspelt,
    without_a_line,
    character_changed,
    other_body,
]


def outcome(path: Path) -> str:
    """The outcome of one recipe; an error where it wrote outside its folder."""
    folder = path.parent
    shutil.rmtree(folder / "out", ignore_errors=True)
    before = set(folder.parent.iterdir())
    result = load_and_build(path, folder / "out", folder / "data")
    known = {"data", "out", "__pycache__"}
    stray = {entry.name for entry in folder.iterdir() if not entry.name.startswith("recipe_")} - known
    stray |= {entry.name for entry in set(folder.parent.iterdir()) - before if "evil" in entry.name}
    assert not stray, f"wrote outside its folder: {stray}"
    return result


def load_and_build(path: Path, out: Path, data: Path) -> str:
    try:
        load_recipe(path)
    except TfprepError as error:
        return f"refused when loaded, {'with' if ', line ' in str(error) else 'without'} its line"
    try:
        summary = build(path, out, data, options=BuildOptions(workers=0))
    except TfprepError as error:
        return f"refused by the build: {type(error).__name__}"
    return "built, with rejected samples" if summary.rejected else "built"
