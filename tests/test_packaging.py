"""What is published: a wheel with only the package, and an sdist with everything that is needed to test it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_IN_SDIST = {".gitignore", ".pre-commit-config.yaml"}
SOURCES = ("benchmarks", "data/README.md", "docs", "pipelines", "scripts", "tests", "tfprep", ".ci")
TOP = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md",
       "pyproject.toml", "setup.cfg")  # fmt: skip


def files_below(root, name):
    path = root / name
    every = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(root)) for file in every if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the sources, and the sdist and the wheel that are built from it, the wheel from the sdist."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*TOP, "data/README.md"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy],
        check=True, capture_output=True, env=clean,
    )  # fmt: skip
    return copy, next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(built):
    copy, _, wheel = built
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == files_below(copy, "tfprep")


def test_the_sdist_holds_what_tests_and_docs_need(built):
    copy, sdist, _ = built
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    expected = {name for top in (*SOURCES, *TOP) for name in files_below(copy, top)} - NOT_IN_SDIST
    assert expected - names == set()
    assert {name for name in names - expected if "egg-info" not in name} <= {"PKG-INFO"}


def test_pypi_can_show_the_page(built):
    """`twine check` renders README.md as PyPI does."""
    _, sdist, wheel = built
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
