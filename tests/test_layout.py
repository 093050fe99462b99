"""Conventions as tests: which package imports which, what a fresh process has imported, public names, collected tests."""

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import tfprep
from tfprep import errors

ROOT = Path(__file__).parents[1] / "tfprep"

LEVELS = [
    {
        "checks",
        "pool",
        "errors",
        "fields",
        "images",
        "limits",
        "optional",
        "seeding",
        "units",
    },
    {"sources", "derive", "augment", "codecs", "records", "storage"},
    {"dataset", "recipe", "inspect", "export"},
    {"builder", "load", "train"},
    {"bench", "demo", "model_fields"},
    {"cli", "__main__"},
]
"""From the ground up. A package imports from the levels below it, and from its own level only where APART does not forbid it."""
APART = [{"sources", "derive", "augment", "codecs", "records"}, {"builder", "load"}, {"builder", "train"}]
"""Packages of one level that never import each other."""


@cache
def modules():
    """Every module of the package by its dotted name."""
    named = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imported(node):
    """The modules of tfprep that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules())
    if isinstance(node, ast.ImportFrom) and node.module:
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in modules():
                yield full
            elif node.module in modules():
                yield node.module


@cache
def imports():
    """By module the modules that it imports, wherever in the file, and in which line. `tfprep/__init__.py` is left out."""
    found = defaultdict(dict)
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            for name in imported(node):
                if "tfprep" not in (module, name) and name != module:
                    found[module][name] = getattr(node, "lineno", 0)
    return found


def package(module):
    return module.split(".")[1]


def level(name):
    return next(number for number, packages in enumerate(LEVELS) if name in packages)


def test_every_package_has_a_level():
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__"} == set().union(*LEVELS)


def test_the_diagram_of_contributing_has_these_levels():
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    (diagram,) = [block for block in re.findall(r"^```\n(.*?)^```", text, re.M | re.S) if block.startswith("cli")]
    levels = [set(line.partition("(")[0].split()) for line in reversed(diagram.splitlines())]
    assert levels == [names - {"__main__"} for names in LEVELS], "change the diagram in CONTRIBUTING.md with LEVELS"


def test_imports_point_down():
    def allowed(importer, name):
        apart = any(importer in group and name in group for group in APART)
        return importer == name or (level(name) <= level(importer) and not apart)

    wrong = [
        f"{module}:{line} imports {name}"
        for module, names in imports().items()
        for name, line in names.items()
        if not allowed(package(module), package(name))
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_circles():
    """Imports of type checkers count too: a reader follows them. A package's face is not one of the modules it lists."""
    edges = {
        module: {name for name in names if not module.startswith(f"{name}.")} for module, names in imports().items()
    }
    reaches = {}

    def reach(module):
        if module not in reaches:
            reaches[module] = seen = set()
            waiting = list(edges.get(module, ()))
            while waiting:
                name = waiting.pop()
                if name not in seen:
                    seen.add(name)
                    waiting.extend(edges.get(name, ()))
        return reaches[module]

    faces = {name for name, path in modules().items() if path.name == "__init__.py"}
    circles = {
        tuple(sorted({module, name}))
        for module, names in edges.items()
        for name in names
        if module in reach(name) and not {module, name} & faces
    }
    assert not circles, "\n".join(" <-> ".join(circle) for circle in sorted(circles))


@cache
def names_of(module):
    """The names that a module defines or imports at its top level, and its submodules; none where there is no such module."""
    if module not in modules():
        return set()
    found = {name.rpartition(".")[2] for name in modules() if name.rpartition(".")[0] == module}
    waiting = [ast.parse(modules()[module].read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found


def test_what_benchmarks_recipes_and_tests_import_is_there():
    """Also in their functions: nothing runs all of the benchmarks after a change."""
    files = [path for top in ("benchmarks", "pipelines", "tests") for path in (ROOT.parent / top).rglob("*.py")]
    taken = [
        (path, node.lineno, node.module, alias.name)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfprep"
        for alias in node.names
    ]
    assert len(taken) > 1000
    assert not [f"{path}:{line}: {module}.{name}" for path, line, module, name in taken if name not in names_of(module)]


def test_names_in_pages_and_docstrings_are_there():
    pages = [ROOT.parent / "README.md", *(ROOT.parent / "docs").rglob("*.md"), *ROOT.rglob("*.py")]
    named = [(path, name) for path in pages for name in re.findall(r"`(tfprep(?:\.\w+)+)\b", path.read_text())]
    assert len(named) > 100
    for path, name in named:
        module = max((one for one in modules() if f"{name}.".startswith(f"{one}.")), key=len)
        attribute = name.removeprefix(module).lstrip(".").partition(".")[0]
        assert attribute in ("", *names_of(module)) or name == "tfprep.json", f"{path}: {name}"


EVERYTHING = """
import importlib, pkgutil, sys
import click
import tfprep, tfprep.bench, tfprep.builder.shard, tfprep.load.order, tfprep.load.reader, tfprep.pool, tfprep.train
from tfprep.cli import COMMANDS, tfprep as commands

tfprep.build, tfprep.open
for package in (tfprep.load.order, tfprep.load.reader):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
for name in COMMANDS:
    assert commands.get_command(click.Context(commands), name)
print([name for name in sys.argv[1:] if name in sys.modules])
"""


def test_a_fresh_process_has_no_tensorflow():
    """TensorFlow takes seconds and hundreds of megabytes to import: only code that trains imports it, when it trains."""
    heavy = ["tensorflow", "keras", "torch", "jax", "tensorflow_datasets", "matplotlib", "pandas", "scipy", "numcodecs"]
    done = subprocess.run([sys.executable, "-c", EVERYTHING, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_has_no_arrow():
    """Nor a worker of a loader: Arrow costs each tens of megabytes; only planning and publication need it."""
    code = "import sys, tfprep.pool, tfprep.builder.shard, tfprep.load.reader.workers\n"
    code += "from tfprep import Recipe, augment, codecs, derive, sources\n"
    code += "print([name for name in ('pyarrow', 'tqdm', 'click', 'email', 'tensorflow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [[], ["build"], ["info"], ["stats"], ["verify"]])
def test_help_imports_next_to_nothing(command):
    """Help comes at once, and a build starts its workers before it imports NumPy itself."""
    code = f"import sys; sys.argv = {['tfprep', *command, '--help']}\nimport tfprep.cli as c\n"
    code += "try: c.main()\nexcept SystemExit: pass\n"
    code += "print('numpy' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False False")


PACKAGES = [
    "augment", "builder", "codecs", "dataset", "derive", "load", "recipe", "records", "sources", "train",
]  # fmt: skip


def test_public_names_exist():
    for name in tfprep.__all__:
        assert getattr(tfprep, name) is not None
    assert dir(tfprep) == sorted(tfprep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tfprep.nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_lists_what_it_exports(package):
    if package == "train":
        pytest.importorskip("keras")
    module = importlib.import_module(f"tfprep.{package}")
    assert module.__doc__
    for name in module.__all__:
        assert hasattr(module, name), name
    assert list(module.__all__) == sorted(module.__all__)


def test_every_error_is_a_tfprep_error():
    raised = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert all(issubclass(value, errors.TfprepError) for value in raised)
    for value in raised:
        assert value.__name__ in (errors.__doc__ or ""), f"{value.__name__} is missing from the tree in errors.py"


@pytest.mark.parametrize("value", [b"x" * 260_000, "a//" + "y" * 3_000_000])
def test_an_error_does_not_print_a_long_value(value):
    with pytest.raises(errors.RecipeError) as raised:
        tfprep.sources.Folder(value)
    assert len(str(raised.value)) < 20_100
    assert str(raised.value).startswith("Folder: image: expected a path")
    assert "characters left out" in str(raised.value)


def test_no_check_is_an_assert_that_python_leaves_out():
    """`python -O` has no asserts: they state what is known, and call nothing that checks data."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.Attribute | ast.Call):
                assert getattr(getattr(node.test, "func", None), "id", "") == "isinstance", (name, node.lineno)


def test_every_test_file_is_collected(request):
    """A plain `pytest` would not report a folder that it skips."""
    skipped, names = (request.config.getini(option) for option in ("norecursedirs", "python_files"))
    tests = Path(__file__).parent
    files = list(tests.rglob("test_*.py"))
    assert len(files) > 80
    for path in files:
        *folders, name = path.relative_to(tests).parts
        assert not any(fnmatch(folder, pattern) for folder in folders for pattern in skipped), path
        assert any(fnmatch(name, pattern) for pattern in names), path
    assert not [path for path in tests.rglob("conftest.py") if "_ignore" in path.read_text()]
