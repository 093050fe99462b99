"""Small modules that import nothing but errors: pages, text to print, Python files of users, JSON and boxes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jinja2
import numpy as np
import pytest

import tfprep
from tfprep.dataset.plain_json import from_json, indented
from tfprep.errors import RecipeError
from tfprep.fields import BOX_FORMATS
from tfprep.inspect import report as pages
from tfprep.recipe.file import import_file
from tfprep.units import printable


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A template in a temporary package."""
    (tmp_path / "page.html.j2").write_text('<p title="{{ name }}">{{ name }}</p>')
    monkeypatch.setattr(pages, "_PACKAGE", tmp_path)
    pages.environment.cache_clear()
    yield "page.html.j2"
    pages.environment.cache_clear()


def test_values_are_escaped(template):
    text = pages.render(template, name="<script>'\"&")
    assert text == '<p title="&lt;script&gt;&#39;&#34;&amp;">&lt;script&gt;&#39;&#34;&amp;</p>'


def test_an_undefined_name_raises(template):
    with pytest.raises(jinja2.UndefinedError, match="'name' is undefined"):
        pages.render(template)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢\tand\n", "plain, é, 漢\tand\n"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 back\x08 null\x00 \r", "bell\\x07 back\\x08 null\\x00 \\x0d"),
        ("\x9b2J", "\\x9b2J"),  # The one-byte form of ESC [.
        ("photo\u202egpj.exe", "photo\\u202egpj.exe"),
        ("bad \udcff name", "bad \\udcff name"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    printable(text).encode("utf-8")


def test_an_edit_of_the_same_size_within_a_second_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "recipe.py"
    for number in (1, 2):
        path.write_text(f"NUMBER = {number}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert number == import_file(path, "tfprep_test_recipe").NUMBER
    assert not (tmp_path / "__pycache__").exists()


def test_modules_of_tfprep_that_a_recipe_imports_are_compiled_once(tmp_path):
    """An installation without bytecode, as uv makes it, would compile them in each process of each build."""
    (tmp_path / "own.py").write_text("from tfprep import sources\nSOURCE = sources.Folder()\n")
    code = "import sys, pathlib; from tfprep.recipe.file import import_file; import_file(pathlib.Path('own.py'), 'own_test')"
    cached = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=cached, check=True)
    names = {path.name.partition(".")[0] for path in (tmp_path / "cache").rglob("*.pyc")}
    assert "folder" in names
    assert "own" not in names


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(OSError, match=r"its name does not end in \.py"):
        import_file(tmp_path / "recipe.txt", "tfprep_test_recipe")


@dataclass(frozen=True)
class File:
    name: str
    sizes: tuple[int, ...]

    @cached_property
    def total(self):
        return sum(self.sizes)


def test_a_dataclass_is_the_object_of_its_fields():
    file = File("a", (1, 2))
    assert file.total == 3, "it is kept beside the fields"
    assert json.loads(indented({"file": file})) == {"file": {"name": "a", "sizes": [1, 2]}}


def test_what_has_no_form_in_json_is_an_error():
    with pytest.raises(TypeError, match="has no form in JSON"):
        indented({"a": [{17}]})


@dataclass(frozen=True)
class Inner:
    shape: tuple[int | None, ...]
    kind: Literal["image", "mask"]


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    inner: Inner | None
    by_name: Mapping[str, Mapping[str, Inner]]
    rows: Sequence[Any]
    flag: bool = False


OUTER = Outer("ü", 2, Inner((None, 3), "mask"), {"a": {"b": Inner((), "image")}}, (1, "x", [None]))


@pytest.mark.parametrize("value", [OUTER, replace(OUTER, inner=None, share=0.5, flag=True)])
def test_a_dataclass_survives_json(value):
    assert from_json(Outer, json.loads(json.dumps(asdict(value)))) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name is text, not 3"),
        ({"share": True}, "share is a number, not True"),
        ({"flag": 1}, "flag is true or false, not 1"),
        ({"inner": {"shape": [None, 1.5], "kind": "mask"}}, r"inner\.shape\[1\] is a whole number from 0 on, not 1\.5"),
        ({"inner": {"shape": [1], "kind": "map"}}, r"inner\.kind is one of image, mask, not 'map'"),
        ({"inner": {"shape": [1]}}, r"inner\.kind is missing"),
        ({"more": 1}, "more is unknown"),
        ({"by_name": [1]}, "by_name is an object, not list"),
        ({"by_name": {"a": {"b\n": 3}}}, r"by_name\.a\.b\n is an object, not 3"),
    ],
)
def test_what_is_no_such_dataclass_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        from_json(Outer, {**json.loads(json.dumps(asdict(OUTER))), **change})


BOXES = np.array([[[10, 20, 30, 60], [0, 0, 200, 100]], [[1.5, 2.25, 99, 100], [5, 5, 6, 7]]], np.float32)


@pytest.mark.parametrize("target", BOX_FORMATS)
def test_every_form_is_that_of_keras_and_comes_back(target):
    keras = pytest.importorskip("keras")
    made = tfprep.convert_boxes(BOXES, target, size=(100, 200))
    expected = keras.utils.bounding_boxes.convert_format(BOXES, source="xyxy", target=target, height=100, width=200)
    np.testing.assert_allclose(made, np.asarray(expected), rtol=1e-6)
    back = tfprep.convert_boxes(made, "xyxy", source=target, size=(100, 200))
    np.testing.assert_allclose(back, BOXES, rtol=1e-6, atol=1e-5)
    whole = np.array([[100, 120, 250, 240]])
    expected = tfprep.convert_boxes(whole.astype(float), target, size=(100, 200))
    for integers in (whole.astype(np.uint8), whole.tolist()):
        np.testing.assert_array_equal(tfprep.convert_boxes(integers, target, size=(100, 200)), expected)
    assert tfprep.convert_boxes([], target, size=(100, 200)).shape == (0, 4)


def test_tensors_and_ragged_tensors_keep_their_type():
    tf = pytest.importorskip("tensorflow")
    expected = tfprep.convert_boxes(BOXES, "rel_yxyx", size=(100, 200))
    np.testing.assert_allclose(tfprep.convert_boxes(tf.constant(BOXES), "rel_yxyx", size=(100, 200)), expected)
    ragged = tf.RaggedTensor.from_row_lengths(BOXES.reshape(-1, 4), [3, 0, 1])
    converted = tfprep.convert_boxes(ragged, "rel_yxyx", size=(100, 200))
    assert converted.row_lengths().numpy().tolist() == [3, 0, 1]
    np.testing.assert_allclose(converted.flat_values, expected.reshape(-1, 4))


@pytest.mark.parametrize("library", ["numpy", "tensorflow"])
@pytest.mark.parametrize("target", ["xywh", "rel_center_xywh"])
def test_the_rows_that_a_loader_pads_with_stay_as_they_are(library, target):
    xp = pytest.importorskip(library)
    padded = np.concatenate([BOXES, np.full((2, 3, 4), -1, np.float32)], 1)
    converted = np.asarray(tfprep.convert_boxes(xp.stack(padded), target, size=(100, 200)))
    np.testing.assert_allclose(converted[:, :2], tfprep.convert_boxes(BOXES, target, size=(100, 200)))
    assert (converted[:, 2:] == -1).all()
    assert tfprep.convert_boxes(xp.stack([[1, 2, 3, 4], [-1] * 4]), "rel_xyxy", size=(2, 4))[1, 0] == -1


def test_mistakes_are_named():
    with pytest.raises(RecipeError, match="a form of boxes is one of xyxy, yxyx"):
        tfprep.convert_boxes(BOXES, "coco")
    with pytest.raises(RecipeError, match=r"boxes from xyxy to rel_xywh need size=\(height, width\)"):
        tfprep.convert_boxes(BOXES, "rel_xywh")
    with pytest.raises(RecipeError, match=r"boxes are numbers \[..., 4\], not an array of shape \(1, 3\)"):
        tfprep.convert_boxes([[1, 2, 3]], "xywh")
