"""Makes a notebook of a tutorial: `python docs/tutorials/notebook.py segmentation` writes segmentation.ipynb beside the page.

Shell commands become `!` lines, files become `%%writefile` cells, and the text between the blocks becomes Markdown cells.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SITE = "https://github.com/tfprep/tfprep/blob/main/docs/"
INSTALL = (
    f"%pip install -q 'tfprep[opencv,tensorflow] @ git+{SITE.partition('/blob')[0]}'\n"
)
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.S | re.M)
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!http)([^)]+)\)")


def notebook(page: Path) -> str:
    """Return the notebook of `page` as JSON."""
    text, end = page.read_text(), 0
    cells = [_cell("code", 0, INSTALL)]
    for block in BLOCK.finditer(text):
        cells.append(_markdown(len(cells), text[end : block.start()]))
        cells.append(_code(len(cells), *block.groups()))
        end = block.end()
    cells.append(_markdown(len(cells), text[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    file = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    return json.dumps({**file, "nbformat_minor": 5}, indent=1) + "\n"


def _markdown(number: int, text: str) -> dict[str, Any]:
    """A cell of text. Its links lead to the site, since the notebook may be opened anywhere; it has no pictures but its own."""
    return _cell("markdown", number, LINK.sub(_absolute, text).strip() + "\n")


def _absolute(link: re.Match[str]) -> str:
    picture, words, target = link.groups()
    if picture:
        return words
    below_docs = target.removeprefix("../") if "../" in target else f"tutorials/{target}"
    return f"[{words}]({SITE}{below_docs})"


def _code(number: int, language: str, block: str) -> dict[str, Any]:
    if language == "bash":
        block = "".join(f"!{line}\n" for line in block.splitlines())
    elif block.startswith("# file: "):
        name, _, rest = block.removeprefix("# file: ").partition("\n")
        block = f"%%writefile {name}\n{rest}"
    return _cell("code", number, block)


def _cell(kind: str, number: int, source: str) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = source.rstrip("\n").splitlines(keepends=True)
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    return {**cell, **code, "source": lines}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (FOLDER / f"{name}.ipynb").write_text(notebook(FOLDER / f"{name}.md"))
