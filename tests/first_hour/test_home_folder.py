"""`~` is the home folder in a recipe's DATA, in --out and in open()."""

import tfprep
from tests.commands import status_of
from tests.photos import write_photos

RECIPE = """from tfprep import Recipe, codecs, sources

DATA = "~/photos"
RECIPE = Recipe(
    name="photos",
    source=sources.Folder("{label}/*.png"),
    store={"image": codecs.Jpeg(95), "label": codecs.Scalar()},
)
"""


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_photos(tmp_path / "photos", 2)
    (tmp_path / "recipe.py").write_text(RECIPE)
    assert status_of("build", tmp_path / "recipe.py", "--out", "~/out", "--workers", "0") == 0
    assert len(tfprep.open("~/out").index("train")) == 2
    assert (tmp_path / "out" / "tfprep.json").exists()
