"""The job scripts of docs/scale.md run as printed, as indexed shell jobs on this machine: they make the bytes of one build."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docs import pages
from tests.photos import write_photos
from tfprep.builder import BuildOptions, build, finish_build

PAGE = pages.text("scale.md")
RECIPE = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe("photos", sources.Folder(), {"image": codecs.Png(), "label": codecs.Scalar()}, shards={"train": 20})
"""
INDEXED = {
    "SLURM_ARRAY_TASK_ID": "Slurm",
    "JOB_COMPLETION_INDEX": "Kubernetes",
}


def section(heading):
    return PAGE.split(f"### {heading}", 1)[1].split("\n##", 1)[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Raw files, a recipe, a folder with the command `tfprep`, and the bytes of one build."""
    root = tmp_path_factory.mktemp("scale")
    write_photos(root / "data", 40)
    (root / "photos.py").write_text(RECIPE)
    command = root / "bin" / "tfprep"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tfprep "$@"\n')
    command.chmod(0o755)
    build(root / "photos.py", root / "expected", root / "data", options=BuildOptions(workers=0))
    return root


def files(folder):
    return {
        path.name: path.read_bytes()
        for path in (folder / "current").iterdir()
        if path.is_file() and path.name != "report.html"
    }


def shell(script, root, out, **variables):
    environment = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "DATA": str(root / "data")}
    run = {"env": {**environment, "OUT": str(out), **variables}, "cwd": root}
    subprocess.run(["bash", "-euc", script], check=True, timeout=600, **run)


@pytest.mark.parametrize("variable", INDEXED)
def test_the_script_of_an_indexed_job(site, tmp_path, variable):
    """A few parts run as the printed script, with the index that the scheduler sets; the others directly."""
    (line,) = re.findall(rf"tfprep build .*\${variable}/16.*", section(INDEXED[variable]))
    out = tmp_path / "out"
    for index in (15, 0):
        shell(f"{line} --workers 0", site, out, **{variable: str(index)})
    receipts = sorted(path.name for path in (out / ".tfprep/receipts").glob("train-*[0-9].json"))
    assert receipts == ["train-00000.json", "train-00015.json", "train-00016.json"]


@pytest.mark.parametrize("tool", ["seq 0 15 | xargs", "parallel"])
def test_the_scripts_for_a_few_machines_and_the_last_step(site, tmp_path, tool):
    if shutil.which(tool.split()[-1]) is None:
        pytest.skip(f"{tool} is not installed")
    (line,) = re.findall(rf"^{re.escape(tool)} .*", PAGE, re.M)
    out = tmp_path / "out"
    line = re.sub(r"0( |\.\.)15", r"0\g<1>3", line.replace("/16", "/4").replace(" --workers 1", ""))  # takes less time
    (site / "hosts").write_text(":\n")  # this machine
    shell(line.replace("--quiet", "--quiet --workers 0"), site, out)
    finish_build(site / "photos.py", out, site / "data", options=BuildOptions(workers=0))
    assert files(out) == files(site / "expected")
