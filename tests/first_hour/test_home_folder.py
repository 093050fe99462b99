"""`~` is the home folder in a recipe's DATA, in --out and in open()."""

import pytest

import tfprep
from tests.commands import status_of
from tests.photos import write_photos
from tfprep.builder import plan_build

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
    states = plan_build(tmp_path / "recipe.py", "~/out")
    assert [state.up_to_date for state in states] == [True] * len(states)


def test_a_tilde_that_is_no_home_folder_is_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "~photos of nobody", 2)
    (tmp_path / "recipe.py").write_text(RECIPE.replace("~/photos", "~photos of nobody"))
    assert status_of("build", "recipe.py", "--out", "~out of nobody", "--workers", "0") == 0
    assert len(tfprep.open("~out of nobody").index("train")) == 2
    with pytest.raises(tfprep.errors.DatasetError, match="~no_such_user holds no"):
        tfprep.open("~no_such_user")
    assert status_of("doctor", "~no_such_user") == 1
    assert "~no_such_user is not a folder" in capsys.readouterr().err
