"""Tutorials run from top to bottom as printed: shell commands, files, and Python as one session, which makes a picture."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands import status_of
from tests.warm_python import run_python
from tfprep.demo.scenes import write_objects, write_scenes

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.S | re.M)
SCORE = re.compile(r"(?:val_accuracy: |not seen: )(\d\.\d+)")
PAGES = {
    "start": ("out/photos.png", 0.85),
    "tutorials/clicks": ("demo/result.png", 0.3),
    "tutorials/detection": ("demo/result.png", 0.3),
    "tutorials/distillation": ("demo/result.png", 0.5),
    "tutorials/embeddings": ("", 0.5),
    "tutorials/from-image-dataset": ("", 0.5),
    "tutorials/from-torch": ("", 0.5),
    "tutorials/segmentation": ("demo/result.png", 0.5),
}
"""Each page's picture, if it has one, and the least result: guessing gives an accuracy of 0.33, and finds next to no objects."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What `tfprep demo --only-data --out demo --scenes 120` makes; the command keeps what is there."""
    folder = tmp_path_factory.mktemp("tutorials") / "demo"
    write_scenes(folder / "raw", {"train": 120, "val": 30})
    write_objects(folder / "objects", 120)
    return folder


@pytest.fixture
def session(demo, tmp_path, monkeypatch):
    """A folder with the demo's data to follow a page in, and the names of its Python session."""
    keras = pytest.importorskip("keras")
    shutil.copytree(demo, tmp_path / "demo", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield {"__name__": "session"}
    keras.utils.clear_session()


def run_command(line):
    if line.startswith("python "):
        arguments = shlex.split(line)[1:]
        if importlib.util.find_spec("tensorflow"):
            done = run_python(arguments, cwd=Path.cwd(), env={"TF_CPP_MIN_LOG_LEVEL": "3"})
        else:  # the environment of PyTorch
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        print(done.stdout)
        assert done.returncode == 0, done.stderr[-3000:]
        return
    assert line.startswith("tfprep ")
    assert status_of(line) == 0, line


def run_block(block, names, number):
    """Run a block from a file, as TensorFlow reads the source of functions that it traces."""
    path = Path(f"block{number}.py").absolute()
    path.write_text(block)
    exec(compile(block, str(path), "exec"), names)


def follow(blocks, names):
    """Do what a page says, block after block."""
    for number, (language, block) in enumerate(blocks):
        if language == "bash":
            for line in block.splitlines():
                run_command(line)
        elif block.startswith("# file: "):
            Path(block.splitlines()[0].removeprefix("# file: ")).write_text(block)
        else:
            run_block(block, names, number)


def check_result(printed, picture, least):
    assert float(SCORE.findall(printed)[-1]) > least
    assert not picture or np.asarray(Image.open(picture)).std() > 10


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)  # Keras saves
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_ends_with_a_trained_model_and_a_picture(page, session, capsys):
    if page == "tutorials/from-torch":
        pytest.importorskip("torch")
    follow(BLOCK.findall((DOCS / f"{page}.md").read_text()), session)
    check_result(capsys.readouterr().out, *PAGES[page])


def test_the_first_page_names_each_edit_of_the_recipe(demo, tmp_path, monkeypatch):
    monkeypatch.chdir(demo.parent)
    page = (DOCS / "start.md").read_text()
    assert status_of("tfprep init demo/objects", "--out", tmp_path / "objects.py") == 0
    written = set((tmp_path / "objects.py").read_text().splitlines())
    (listed,) = re.findall(r"```python\n# file: objects.py\n(.*?)```", page, re.S)
    edits_named = page.partition("Make three edits")[2].partition("```")[0]
    edits = {line for line in listed.splitlines() if line not in written and not line.startswith("DATA = ")}
    assert {line.strip().partition("=")[0] for line in edits} == set(re.findall(r"^- `(\w+)", edits_named, re.M))


@pytest.mark.parametrize(
    ("name", "page"), [("distillation", "distillation"), ("embeddings", "embeddings"), ("latents", "embeddings")]
)
def test_a_recipe_of_pipelines_is_that_of_its_page(name, page):
    code = (DOCS.parent / "pipelines" / f"{name}.py").read_text().partition('"""\n\n')[2]
    assert f"# file: {name}.py\n{code}```" in (DOCS / "tutorials" / f"{page}.md").read_text()


def test_the_notebook_is_that_of_the_page():
    """Its cells are the blocks of the page: `!` lines are commands, and `%%writefile` cells are files."""
    names = {"__file__": str(DOCS / "tutorials" / "notebook.py"), "__name__": "notebook"}
    exec((DOCS / "tutorials" / "notebook.py").read_text(), names)
    page = DOCS / "tutorials" / "segmentation.md"
    printed = names["notebook"](page)
    cells = ["".join(cell["source"]) for cell in json.loads(printed)["cells"] if cell["cell_type"] == "code"]
    code = [re.sub("^!", "", cell, flags=re.M).replace("%%writefile", "# file:") for cell in cells[1:]]
    assert code == [block.rstrip("\n") for _, block in BLOCK.findall(page.read_text())]
    assert printed == page.with_suffix(".ipynb").read_text(), "python docs/tutorials/notebook.py segmentation"


def test_a_file_that_another_one_imports_runs_nothing():
    """A script that imports `network` from the script of before would train the model of before first."""
    for page in sorted(DOCS.rglob("*.md")):
        files = dict(re.findall(r"^# file: (\w+)\.py\n(.*?)^```", page.read_text(), re.S | re.M))
        for name, code in files.items():
            if any(re.search(rf"^(from|import) {name}\b", other, re.M) for other in files.values()):
                runs = [
                    one for one in ast.parse(code).body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)
                ]
                assert not runs, (page, name)


def test_no_page_builds_into_the_folder_of_another_recipe():
    """A reader follows several in one folder, where a build refuses to replace another dataset."""
    recipes = {}
    for page in sorted(DOCS.rglob("*.md")):
        for recipe, out in re.findall(r"^tfprep build (\S+) .*--out (demo/\S+)$", page.read_text(), re.M):
            assert recipes.setdefault(out, recipe) == recipe, (page.name, out)
    assert len(recipes) > 4
