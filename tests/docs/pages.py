"""What the pages of docs/ hold: their text, their commands and their Python."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="photos", source=sources.Folder("{split}/{label}/**"),
                store={"image": codecs.Jpeg(95), "label": codecs.Scalar()})
"""
"""The recipe of the photos that pages build without printing how."""


def text(name):
    """The page, with commands of several lines joined."""
    return re.sub(r" \\\n +", " ", (DOCS / name).read_text())


def commands(name):
    """The lines that call `tfprep`, without their comments."""
    return re.findall(r"^(tfprep .*?)(?:\s+#.*)?$", text(name), re.M)


def blocks(name):
    """The blocks of Python."""
    return re.findall(r"```python\n(.*?)```", text(name), re.S)
