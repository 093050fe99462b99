"""Tutorials run from top to bottom as printed: shell commands, files, and Python as one session, which makes a picture."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.S | re.M)
SCORE = re.compile(r"(?:val_accuracy: |not seen: )(\d\.\d+)")


def run(command: list[str], folder: Path) -> str:
    root = str(DOCS.parent)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**ENVIRONMENT, "PYTHONPATH": root}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def follow(page: Path, folder: Path) -> str:
    """Do what the page says, and return what its Python session printed."""
    session = ""
    for language, block in BLOCK.findall(page.read_text()):
        if language == "bash":
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "tfprep"
                run([sys.executable, "-m", "tfprep", *arguments], folder)
        elif block.startswith("# file: "):
            (folder / block.splitlines()[0].removeprefix("# file: ")).write_text(block)
        else:
            session += block
    (folder / "session.py").write_text(session)
    return run([sys.executable, "-W", "error", "session.py"], folder)


@pytest.mark.parametrize(
    ("page", "picture", "least"), [("start", "out/photos.png", 0.6), ("tutorials/segmentation", "demo/result.png", 0.5)]
)
def test_a_tutorial_ends_with_a_trained_model_and_a_picture(page, picture, least, tmp_path):
    """Guessing gives an accuracy of 0.33, and an intersection over union of 0.2 where everything is marked."""
    printed = follow(DOCS / f"{page}.md", tmp_path)
    assert float(SCORE.findall(printed)[-1]) > least
    assert np.asarray(Image.open(tmp_path / picture)).std() > 10
