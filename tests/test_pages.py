"""Pages: everything is escaped, misspelt names raise, and the templates are part of the installed package."""

from __future__ import annotations

import configparser
import fnmatch
from pathlib import Path

import jinja2
import pytest

from tfprep import pages

ROOT = Path(__file__).parents[1]


@pytest.fixture
def template(tmp_path, monkeypatch):
    """A template in a temporary package."""
    (tmp_path / "page.html.j2").write_text('<p title="{{ name }}">{{ name }}</p>')
    monkeypatch.setattr(pages, "_PACKAGE", tmp_path)
    return "page.html.j2"


def test_values_are_escaped(template):
    text = pages.render(template, name="<script>'\"&")
    assert text == '<p title="&lt;script&gt;&#39;&#34;&amp;">&lt;script&gt;&#39;&#34;&amp;</p>'


def test_an_undefined_name_raises(template):
    with pytest.raises(jinja2.UndefinedError, match="'name' is undefined"):
        pages.render(template)


def test_every_file_of_the_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = [pattern for value in config["options.package_data"].values() for pattern in value.split()]
    data = [path for path in (ROOT / "tfprep").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sum(path.name.endswith(".html.j2") for path in data) > 1
    for path in data:
        assert any(fnmatch.fnmatch(str(path.relative_to(ROOT / "tfprep")), pattern) for pattern in patterns), path
