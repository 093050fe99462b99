"""Who may import whom, and what a fresh process has imported: the architecture, as tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tfprep"

LEVELS = [
    {"control_groups", "cpus", "errors", "seeding", "fields", "images", "memory", "orientation", "units", "_version"},
    {"sources", "derive", "augment", "codecs", "records"},
    {"dataset"},
    {"recipe", "recipe_file", "recipe_template", "sample", "engines", "read"},
    {"build", "load", "train"},
    {"bench", "demo"},
    {"cli", "__main__"},
]
"""From the ground up: a package imports from those below it, and from its own level only as APART allows."""
APART = [{"sources", "derive", "augment", "codecs", "records"}, {"build", "load"}, {"build", "train"}]
"""Packages of one level that never import each other."""


def imports() -> set[tuple[str, str, str]]:
    """(package, imported package, where) for every import inside tfprep, wherever in a file it stands."""
    found = set()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the public names
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "tfprep":
                names = [f"tfprep.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{path}: imports are absolute"
                names = [node.module]
            where = f"{path.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}"
            found |= {(parts[0], name.split(".")[1], where) for name in names if name.startswith("tfprep.")}
    return found


def level(package: str) -> int:
    return next(number for number, packages in enumerate(LEVELS) if package in packages)


def test_every_package_has_a_level():
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__"} == set().union(*LEVELS)


def test_imports_point_down():
    def allowed(importer: str, imported: str) -> bool:
        if importer == imported or imported.startswith("__version"):
            return True
        apart = any(importer in group and imported in group for group in APART)
        return level(imported) <= level(importer) and not apart

    wrong = sorted(where for importer, imported, where in imports() if not allowed(importer, imported))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "import tfprep",
        "import tfprep.build",
        "import tfprep.load, tfprep.read",
        "import tfprep.train",
        "import tfprep.bench",
        "import tfprep.build.shard, tfprep.engines.worker",
        "from tfprep.cli import main, COMMANDS; import importlib; [importlib.import_module('tfprep.cli.' + c) for c in COMMANDS]",
    ],
)
def test_a_fresh_process_has_no_tensorflow(statement):
    """TensorFlow takes seconds and hundreds of megabytes: only what trains imports it, when it trains."""
    heavy = ["tensorflow", "keras", "torch", "jax", "tensorflow_datasets", "matplotlib", "pandas", "scipy"]
    code = f"import sys; {statement}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_build_worker_has_no_arrow():
    """Tens of megabytes and a tenth of a second for each worker, which only plan and publication need."""
    code = "import sys, tfprep.engines.worker, tfprep.build.shard\nfrom tfprep import Recipe, augment, codecs, derive, sources\n"
    code += "print([name for name in ('pyarrow', 'tqdm', 'click', 'tensorflow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_imports_next_to_nothing():
    """`tfprep --help` answers at once: not even NumPy is needed."""
    code = (
        "import sys; sys.argv = ['tfprep', '--help']\nimport tfprep.cli as c\ntry: c.main()\nexcept SystemExit: pass\n"
    )
    code += "print('numpy' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False False")
