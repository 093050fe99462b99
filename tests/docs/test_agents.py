"""The pages for agents and of troubleshooting, and llms.txt: the messages are those of the package, commands and pages exist."""

import re
import sys
from pathlib import Path

import pytest

import tfprep
from tests.photos import write_photos
from tests.test_without_opencv import BLOCKED, run
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.cli import COMMANDS, main
from tfprep.errors import TfprepError

keras = pytest.importorskip("keras")

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "agents.md").read_text()
TROUBLESHOOTING = (DOCS / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `([^`]*)` \|", TROUBLESHOOTING.partition("## Messages")[2], re.M)
STORE = {"image": codecs.Original(), "label": codecs.Scalar()}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Photos of two sizes in class folders, and a dataset of them."""
    root = tmp_path_factory.mktemp("agents")
    write_photos(root / "photos", 4, "a/{number}.png", noise=(20, 20))
    write_photos(root / "photos", 4, "b/{number}.png", noise=(20, 24))
    build(root, root / "built", Recipe(name="photos", source=sources.Folder(), store=STORE))
    return root


def build(root, out, recipe):
    tfprep.build(recipe, out, root / "photos", options=BuildOptions(workers=0))


def command(*args):
    main([str(arg) for arg in args])


def recipe_file(root, pattern="{label}/*.png"):
    path = root / "recipe.py"
    path.write_text(
        "from tfprep import Recipe, codecs, sources\n"
        f'RECIPE = Recipe(name="x", source=sources.Folder({pattern!r}), store={{"image": codecs.Png()}})\n'
    )
    return path


def without(package, call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        call()


def build_without_opencv(root):
    args = ["build", recipe_file(root), "--data", root / "photos", "--out", root / "x", "--workers", "0"]
    raise TfprepError(run(f"{BLOCKED}from tfprep.cli import run\nsys.argv[0] = 'tfprep'\nrun()", *args).stderr)


def on_another_backend(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "numpy")
        call()


def opened(root):
    return tfprep.open(root / "built")


TRIGGERS = {
    "needs OpenCV": build_without_opencv,
    "loader() needs": lambda root: without("tensorflow", lambda: opened(root).loader("train", 4)),
    "already exists": lambda root: command("init", root / "photos", "--out", recipe_file(root)),
    "no such folder": lambda root: command("build", recipe_file(root), "--data", root / "none", "--out", root / "x"),
    "no file fits": lambda root: command(
        "build", recipe_file(root, "*/images/*.jpg"), "--data", root / "photos", "--out", root / "x"
    ),
    "and this recipe": lambda root: build(
        root, root / "built", Recipe(name="other", source=sources.Folder(), store=STORE)
    ),
    "belongs in": lambda root: Recipe(
        name="x", source=sources.Folder(), geometry=[augment.Brightness(0.2)], store=STORE
    ),
    "use Scalar()": lambda root: build(
        root, root / "x", Recipe(name="x", source=sources.Folder(), store={"label": codecs.Jpeg()})
    ),
    "the dataset has": lambda root: opened(root).numpy_loader("train", 4, inputs="photo"),
    "differ in shape": lambda root: on_another_backend(
        lambda: opened(root).keras_loader("train", 4, inputs="image", seed=0)
    ),
}
"""By the beginning of a message: what raises it."""


@pytest.mark.parametrize("beginning", TRIGGERS)
def test_each_error_of_the_table_is_what_the_package_says(beginning, root, capsys):
    (message,) = [message for message in MESSAGES if message.startswith(beginning)]
    with pytest.raises((TfprepError, SystemExit)) as caught:
        TRIGGERS[beginning](root)
    assert message in str(caught.value) + capsys.readouterr().err


def test_every_message_is_tried_and_every_command_exists():
    assert len(MESSAGES) == len(TRIGGERS)
    assert set(re.findall(r"`tfprep ([a-z-]+)", PAGE + TROUBLESHOOTING)) <= COMMANDS.keys()


def test_llms_txt_lists_every_page():
    text = (DOCS / "llms.txt").read_text()
    title, _, summary = text.splitlines()[:3]
    assert title == "# tfprep"
    assert summary.startswith("> ")
    listed = set(re.findall(r"\(https://raw\.githubusercontent\.com/tfprep/tfprep/main/docs/([^)]+)\)", text))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert listed == pages - {"index.md", "gallery/README.md"} - {
        page for page in pages if page.startswith("reference")
    }
