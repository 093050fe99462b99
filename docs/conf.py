"""The documentation site: `scripts/docs` builds it into out/docs, with warnings as errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tfprep import __version__
from tfprep.load.data import Loaders

project = "tfprep"
author = "The tfprep developers"
copyright = "The tfprep developers, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Links to files outside docs/; tests/docs/test_links.py checks them.
suppress_warnings = ["myst.xref_missing"]

default_role = "code"  # docstrings write names in single backticks, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    ("Attributes", "params_style"),
    ("Yields", "returns_style"),
]
intersphinx_mapping: dict[str, tuple[str, str | None]] = {}

html_theme = "furo"
html_static_path = ["style"]
html_css_files = ["cards.css"]
html_extra_path = ["llms.txt"]
html_title = "tfprep"
html_search_scorer = str(Path(__file__).parent / "scorer.js")
html_theme_options = {
    "source_repository": "https://github.com/tfprep/tfprep/",
    "source_branch": "main",
    "source_directory": "docs/",
}


def prepare_docstring(app, what, name, value, options, lines):
    """Show indented lines that follow a blank line as code, and attributes as they are written."""
    for number in range(len(lines) - 1, 0, -1):
        before, blank, first = lines[max(0, number - 2)], lines[number - 1], lines[number]
        if (
            first.startswith("    ")
            and not blank.strip()
            and not before.startswith("    ")
        ):
            lines[number:number] = ["::", ""]
    if what in ("attribute", "data", "property"):
        # An empty comment: in the first line, Napoleon takes words before a colon for a type.
        lines[:0] = ["..", ""]


def mark_options(app, context, lines):
    """Show options in help texts as code, where their two dashes do not become one."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(".."):
            lines[number] = re.sub(r"(?<![\w`-])(--[a-z-]+)", r"``\1``", line)


def setup(app):
    app.connect("sphinx-click-process-description", mark_options)
    app.connect("sphinx-click-process-options", mark_options)
    # Before Napoleon, which has the priority 500.
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)


# Options are documented once, at `LoaderOptions`: the pages show the calls of loaders as they are written.
for call in vars(Loaders).values():
    if hasattr(call, "__signature__"):
        del call.__signature__
