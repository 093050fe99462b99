"""User code in the fingerprint: every change of behavior is detected, and equal code gives equal fingerprints."""

import functools
import importlib
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
import threading
import zipfile
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
import pytest

from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.errors import RecipeError
from tfprep.recipe import Recipe as Same
from tfprep.recipe.describe import NO_SOURCE, only_code_changed, what_changed
from tfprep.recipe.file import load_recipe

RECIPE = '''
import functools

import blurring
from package import tools
from package.tools import clip as limited
from tfprep import Recipe, augment, codecs, sources

STRENGTH = 2.0
WORDS = {"sky": 1, "road": 2}
model = None


class Lift:
    LEAST = 4

    def __init__(self, number):
        self.number = number

    def __call__(self, sample, generator):
        """Lift the image."""
        # a comment
        return sample["image"][:, :, 0] + self.number


def loaded():
    global model
    if model is None:
        model = 3
    return model


def lazily():
    from package.tools import late

    return late()


def weights(sample, generator, power=1):
    return blurring.blur(sample["image"]) + limited(3) + tools.SCALE + loaded() + lazily()


def adder(number):
    return lambda sample, generator: sample["image"] + number


@functools.cache
def cached(number):
    return number + 10


class MyFlip(augment.Flip):
    pass


RECIPE = Recipe(
    name="r",
    source=sources.Folder(),
    geometry=[MyFlip(0.5)],
    derive={
        "lift": Lift(1),
        "weights": weights,
        "adder": adder(7),
        "partial": functools.partial(weights, power=2),
        "method": Lift(2).__call__,
        "counted": blurring.counted,
        "wrapped": blurring.wrapped,
    },
    store={"image": codecs.Jpeg()},
)
'''

BLURRING = """
import functools

import numpy as np

SIZE = 3

def blur(image):
    return np.mean(image) * SIZE

def other():
    return 1

class Counted:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, sample, generator):
        return self.function(sample)

@Counted
def counted(sample):
    "a text"

wrapped = functools.update_wrapper(functools.partial(np.vectorize(counted.function)), counted)
"""
TOOLS = """
from package.base import LEAST

SCALE = 2

def clip(n):
    return max(n, LEAST)

def late():
    return clip(9)
"""
FILES = {
    "recipe.py": RECIPE, "blurring.py": BLURRING, "package/__init__.py": "", "package/tools.py": TOOLS,
    "package/base.py": "LEAST = 1\n",
}  # fmt: skip


@pytest.fixture
def describe(tmp_path):
    """A function that writes these files into a new folder, imports its recipe as a new process would, and describes it."""
    numbers, path = itertools.count(), list(sys.path)

    def forget():
        places = {
            name: [*getattr(one, "__path__", [getattr(one, "__file__", "")])] for name, one in sys.modules.items()
        }
        for name, found in places.items():
            if any(str(place).startswith(str(tmp_path)) for place in found):
                del sys.modules[name]
        sys.path[:] = path  # after that: it tells where a package without a file is

    def describe(files, recipe="recipe.py"):
        forget()
        root = tmp_path / str(next(numbers))
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        return load_recipe(root / recipe).describe("train")

    yield describe
    forget()


OF_RECIPE, OF_TOOLS = "module of the recipe changed", "module package.tools changed"
CHANGES = [
    ("recipe.py", 'sample["image"][:, :, 0]', 'sample["image"][:, :, 1]', OF_RECIPE),
    ("recipe.py", "STRENGTH = 2.0", "STRENGTH = 2", OF_RECIPE),
    ("recipe.py", '{"sky": 1, "road": 2}', '{"road": 2, "sky": 1}', OF_RECIPE),
    ("recipe.py", "LEAST = 4", "LEAST = 5", OF_RECIPE),
    ("recipe.py", "power=1", "power=3", OF_RECIPE),
    ("recipe.py", "@functools.cache\n", "", OF_RECIPE),
    ("recipe.py", "from package.tools import late", "from package.tools import clip as late", OF_RECIPE),
    ("recipe.py", "Lift(1)", "Lift(3)", "derive['lift'].state changed"),
    ("recipe.py", "adder(7)", "adder(8)", "derive['adder'].state changed"),
    ("recipe.py", "weights, power=2", "weights, power=3", "derive['partial'].state changed"),
    ("recipe.py", "Lift(2).__call__", "Lift(4).__call__", "derive['method']"),
    ("recipe.py", "MyFlip(0.5)", "MyFlip(0.4)", "geometry[0].state changed"),
    ("recipe.py", 'name="r"', 'name="q"', "name: 'r' -> 'q'"),
    ("blurring.py", "np.mean", "np.max", "module blurring changed"),
    ("package/tools.py", "max(n", "min(n", OF_TOOLS),
    ("package/tools.py", "clip(9)", "clip(8)", OF_TOOLS),
    ("package/base.py", "LEAST = 1", "LEAST = 2", "module package.base changed"),
]

NO_CHANGES = [
    ("recipe.py", "# a comment", "# another comment\n\n        # of two lines"),
    ("recipe.py", "Lift the image.", "Lift all of the image."),
    ("recipe.py", '        """Lift the image."""\n', ""),
    ("recipe.py", "return number + 10", "return (\n        number\n        + 10\n    )"),
    ("recipe.py", "import functools\n", '"""A text."""\n\nimport functools\n'),
    ("recipe.py", "source=sources.Folder(),\n", 'source=sources.Folder(),\n    variants={"val": 2},\n'),
    ("blurring.py", "SIZE = 3", "SIZE = 3  # pixels"),
    ("blurring.py", "a text", "another text"),
]


def changed(name, old, new):
    """The files after a replacement of `old` by `new` in one of them."""
    assert old in FILES[name]
    return {**FILES, name: FILES[name].replace(old, new)}


_SMALL = """
import collections, enum, functools, math, re, threading, types, typing
import cv2
import numpy as np
from tfprep import Recipe, codecs, sources
{code}
RECIPE = Recipe(name="r", source=sources.Folder(), derive={{"x": {inside}}}, store={{"image": codecs.Jpeg(), "x": codecs.Raw()}})
"""


_FUNCTIONS = """
LAMBDAS = [lambda s, g: 1, lambda s, g: 2]
def f(s, g): return 1
def h(s, g): return 1
def make(n):
    def f(s, g): return n
    return f
"""
_LOCAL = "def make(n):\n    class E:\n        def __call__(self, s, g): return n\n    return E()"
REFUSED = {
    "a local class": (_LOCAL, "make(7)", "the class make.<locals>.E is not a variable of its module"),
    "a class made in the recipe": (
        "def f(p, s, g): return p.x", "functools.partial(f, collections.namedtuple('P', 'x y')(1, 2))",
        "the class P is not a variable of its module",
    ),
    "an object that holds itself": (_FUNCTIONS, "make((lambda one: one.append(one) or one)([]))", "an object in it holds itself"),
    "a function that captures itself": (
        "def make():\n    def own(s, g): return own if s else 0\n    return own", "make()", "an object in it holds itself",
    ),
    "a captured object of an extension": (_FUNCTIONS, "make(cv2.createCLAHE(2.0))", "cannot be described: .*CLAHE"),
    "a captured lock": (_FUNCTIONS, "make(threading.Lock())", r"cannot be described: cannot pickle '_thread\.lock'"),
    "a captured generator": (_FUNCTIONS, "make(np.random.default_rng(3))", "differs from process to process"),
}  # fmt: skip
"""Values whose changes no description shows."""
OWN = """
class D(dict): pass
class L(list): pass
class S(set): pass
class Z(set): __slots__ = ("n",)
class F(float): pass
class A(np.ndarray): pass
def with_n(one, n):
    one.n = n
    return one
class M(enum.Enum):
    A = 1
    B = 2
class P(typing.NamedTuple):
    low: float = 1
class R:
    def __init__(self, n): self.n = n
    def __reduce__(self): return R, (np.array([1, self.n]),)
class E:
    def __init__(self, n): self.n = n
    def __call__(self, s, g): return self.n
"""
INSIDE = {
    "function": ("lambda s, g: 1", ("1", "2")),
    "one of two functions": ("[lambda s, g: 1, lambda s, g: 2][0]", ("[0]", "[1]")),
    "one of two functions of a line": ("LAMBDAS[0]", ("[0]", "[1]")),
    "bound to an object that does not define it": ("types.MethodType(lambda e, s, g: 1, E(1))", ("g: 1", "g: 2")),
    "name of a function": ("f", ("f", "h")),
    "wrapped by an installed decorator": ("functools.cache(lambda s, g: 1)", ("1", "2")),
    "method of a value": ("{'a': 1}.get", ("1", "2")),
    "method of an object": ("E(1).__call__", ("1", "2")),
    "object that is called": ("E(1)", ("1", "2")),
    "built-in function": ("math.sin", ("sin", "cos")),
    "order of keywords": ("functools.partial(f, A=1, B=2)", ("A=1, B=2", "B=2, A=1")),
    **{
        f"captured {value}": (f"make({value})", change)
        for value, *change in (
            ("7", "7", "8"), ("np.float64(2.0)", "np.float64(2.0)", "2.0"), ("np.str_('a')", "np.str_('a')", "'a'"),
            ("[0, 1]", "[0, 1]", "(0, 1)"), ("{'a': 1, 'b': 2}", "'a': 1, 'b': 2", "'b': 2, 'a': 1"), ("{1, 2}", "1", "3"),
            ("np.ones(3)", "ones", "zeros"), ("np.ma.array([1, 2, 9], mask=[0, 0, 1])", "0, 1]", "0, 0]"),
            ("collections.defaultdict(lambda: 5)", "5", "6"), ("re.compile('a')", "'a'", "'b'"), ("D(a=1)", "1", "2"),
            ("collections.OrderedDict(a=1)", "1", "2"),
            ("L([1])", "1", "2"), ("S('ab')", "ab", "ac"), ("F(2)", "2", "3"), ("np.ones(3).view(A)", "ones", "zeros"),
            ("with_n(np.ones(3).view(A), 1)", "1", "2"), ("with_n(Z('a'), 1)", "1", "2"), ("with_n(Z('a'), 1)", "'a'", "'b'"),
            ("M.A", "M.A", "M.B"), ("P(3)", "3", "4"), ("R(1)", "1", "2"), ("f", "f", "h"), ("E", "E", "R"),
            ("math", "math", "re"), ("np.add", "add", "multiply"), ("np.sum", "sum", "max"), ("list[int]", "int", "str"),
            ("len", "len", "max"), ("'a'.upper", "'a'", "'b'"), ("functools.partial(len)", "len", "max"),
        )
    },
}  # fmt: skip
"""Values in the statement `RECIPE = ...`, and a change of each: the source of the modules does not show it."""


def small(inside, code=_FUNCTIONS + OWN, option=""):
    """The file of a recipe with this value, after this code, and with another option."""
    text = _SMALL.format(code=code, inside=inside)
    return {"recipe.py": text.replace("source=", f"{option}, source=") if option else text}


@pytest.mark.parametrize("what", INSIDE)
def test_a_change_of_a_value_is_detected(describe, what):
    before, (old, new) = INSIDE[what]
    after = new.join(before.rsplit(old, 1))
    assert before != after
    described = [describe(small(inside)) for inside in (before, before, after)]
    assert described[0] == described[1]
    assert described[0] != described[2]
    assert what_changed(described[0], described[2])


@pytest.mark.parametrize(
    ("inside", "code", "option"),
    [
        ("(N := {}) and FN", "def FN(s, g): return N", ""),
        ("FN", "@functools.wraps(np.sum)\ndef FN(s, g): return {}", ""),
        ("FN", "def FN(s, g): return RECIPE.variants", "variants=dict(val={})"),
    ],
    ids=["a variable in the statement", "a wrapper of another module", "the recipe itself"],
)
def test_what_only_the_source_shows_is_seen(describe, inside, code, option):
    first, same, other = (describe(small(inside.format(n), code.format(n), option.format(n))) for n in (1, 1, 2))
    assert first == same != other


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_described_is_refused(describe, what):
    code, inside, message = REFUSED[what]
    with pytest.raises(RecipeError, match=message):
        describe(small(inside, code))


IMPORTS = {
    "from of a package": ("from {}.inner import late", "{}/inner/late.py"),
    "import of a package": ("import {}.inner.late", "{}/inner/late.py"),
    "from of a module": ("from {}.inner.late import K", "{}/inner/late.py"),
    "star of a module": ("pass\nfrom {}.inner.late import *", "{}/inner/late.py"),
    "star of a package": ("pass\nfrom {}.inner import *", "{}/inner/late.py"),
    "the package's own file": ("import {}.inner.late", "{}/__init__.py"),
    "a module made by its __getattr__": ("from {} import late, later", "{}/__init__.py"),
    "after an import that fails": ("import nowhere_at_all, {}.inner.late", "{}/inner/late.py"),
    "a compiled extension": ("import {}.fast", "{}/fast.abi3.so"),
}


@pytest.mark.parametrize("package", ["regular", "without_init"])
@pytest.mark.parametrize("what", IMPORTS)
def test_every_module_is_followed_that_a_function_imports(describe, package, what):
    statement, module = (text.format(package) for text in IMPORTS[what])
    code = f"def FN(s, g):\n    {statement}\n    return 0\n"
    if "\n" in statement:  # a star is at the top
        code = f"{statement[5:]}\ndef FN(s, g): return 0\n"
    files = {**small("FN", code), f"{package}/inner/late.py": ""}
    if package == "regular":
        files |= {f"{package}/__init__.py": "", f"{package}/inner/__init__.py": '__all__ = ["late"]'}
    on_demand = "def __getattr__(name):\n    if name[:2] == '__': raise AttributeError(name)\n    return {}\n"
    first, same, other = (describe({**files, module: on_demand.format(number)}) for number in (1, 1, 2))
    assert first == same != other


@pytest.mark.parametrize(("name", "old", "new", "message"), CHANGES)
def test_every_change_of_user_code_is_detected_and_named(describe, name, old, new, message):
    before, after = describe(FILES), describe(changed(name, old, new))
    assert json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True)
    assert message in "; ".join(what_changed(before, after))
    if name != "recipe.py":
        assert only_code_changed(before, after)


@pytest.mark.parametrize(("name", "old", "new"), NO_CHANGES)
def test_a_change_without_effect_keeps_the_fingerprint(describe, name, old, new):
    assert describe(FILES) == describe(changed(name, old, new))


def test_another_file_name_and_running_the_code_keep_the_fingerprint(tmp_path, describe):
    assert describe(FILES) == describe({**FILES, "renamed.py": RECIPE}, "renamed.py")
    describe(FILES)
    recipe = load_recipe(tmp_path / "2/recipe.py")
    before = recipe.fingerprint()
    own = sys.modules[recipe.derive["weights"].__module__]
    own.loaded()
    own.cached(3)
    assert recipe.fingerprint() == before


def test_the_fingerprint_is_the_same_in_every_process(tmp_path, describe):
    here = describe(FILES)
    code = f"""
        import json, sys
        from pathlib import Path
        from tfprep.recipe.file import load_recipe
        recipe = load_recipe(Path({str(tmp_path / "0/recipe.py")!r}))
        print(json.dumps([recipe.describe("train"), recipe.fingerprint()]))
    """
    outputs = set()
    for seed in ("1", "2", "77"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert json.loads(outputs.pop())[0] == json.loads(json.dumps(here))


def test_a_pickled_recipe_has_the_same_fingerprint():
    """A recipe is pickled for workers; equal constants that were one object become two."""
    import pickle

    words = ["a", "b"]
    recipe = Recipe(
        "r", sources.Folder(), {"image": codecs.Jpeg()},
        derive={"d": functools.partial(shared, words, words, Held(words))},
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(recipe)).fingerprint() == recipe.fingerprint()


class Held:
    def __init__(self, words):
        self.words = words


def shared(words, same, held, sample, generator):
    return len(words) + len(same)


def test_classes_of_tfprep_are_described_by_package_not_by_module():
    recipe = Same(
        "r", sources.Folder(splits=sources.Fractions(train=0.8, val=0.2)), {"image": codecs.Jpeg()},
        geometry=[augment.OneOf([augment.Flip(), augment.Elastic(10, 3)]), augment.RandAugment()],
        color=[augment.Maybe(augment.Blur((1, 2)), 0.5)],
        derive={"offsets": derive.InstanceOffsets(mask="mask"), "own": derive.Canny()},
    )  # fmt: skip
    text = json.dumps(recipe.describe())
    for name in (
        "sources.Folder",
        "sources.Fractions",
        "augment.Flip",
        "augment.Elastic",
        "derive.InstanceOffsets",
        "codecs.Jpeg",
    ):
        assert f'"tfprep.{name}"' in text
    names = re.findall(r'"(tfprep[^"]*)"', text)
    assert len(names) > 10
    assert all(name.count(".") == 2 for name in names), names


def test_a_function_of_other_source_is_no_other_option(describe):
    values = "lambda s, g: 1", "lambda s, g: 2", "functools.partial(lambda s, g, n: 2, n=1)"
    described = [describe(small(inside, "")) for inside in values]
    assert what_changed(*described[:2]) == ["derive['x'].source of the function changed"]
    assert only_code_changed(*described[:2])
    assert not only_code_changed(*described[1:])


def test_equal_functions_of_two_modules_are_two_functions(describe):
    """Their modules differ in what the functions use, and both are imported by the recipe in any case."""
    modules = {
        "first_of_two": "K = 1\ndef blur(s, g): return K\n",
        "second_of_two": "K = 2\ndef blur(s, g): return K\n",
    }
    files = {f"{name}.py": text for name, text in modules.items()}
    code = "import first_of_two, second_of_two\ndef f(s, g): return 0"
    described = [describe({**files, **small(f"functools.partial(f, {name}.blur)", code)}) for name in modules]
    assert described[0]["code"] == described[1]["code"]
    assert described[0] != described[1]


@pytest.mark.parametrize("name", ["numpy", "this", "__main__", "nowhere"])
def test_a_file_that_is_run_under_another_name_is_without_source(tmp_path, name):
    """Profilers, too, run a script under the name of a module that is another one; nothing tells what its functions use."""
    (tmp_path / "loaded.py").write_text("K = 1\ndef blur(s, g): return K\n")
    blur = runpy.run_path(str(tmp_path / "loaded.py"), run_name=name)["blur"]
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive={"d": blur})
    assert recipe.describe()["code"][NO_SOURCE] == ["function blur"]


def test_an_object_that_is_pickled_by_its_name_counts_with_its_module(describe):
    text = "class G:\n    def __call__(self, s, g): return {}\n    def __reduce__(self): return 'ONE'\nONE = G()"
    recipe = small("FN", "import of_one_object\nFN = of_one_object.ONE")
    first, same, other = (describe({**recipe, "of_one_object.py": text.format(n)}) for n in (1, 1, 2))
    assert first == same != other


def test_what_an_object_has_computed_for_itself_does_not_count():
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive={"d": (derived := Own())})
    before = recipe.fingerprint()
    assert derived({}, None) == 3
    assert recipe.fingerprint() == before
    kept, path, own, frozen = np.arange(3).view(OwnArray), OwnPath("/a/b"), OwnPartial(len, key=1), OwnFrozen()
    before = fingerprint_of((kept, path, own, frozen))
    assert (kept.total, str(path), path.name, own.kernel, frozen.kernel) == (3, "/a/b", "b", 3, 3)
    assert fingerprint_of((kept, path, own, frozen)) == before
    assert (vars(kept), vars(own), vars(frozen)) == ({"total": 3}, {"kernel": 3}, {"kernel": 3})


def fingerprint_of(captured):
    return Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, depends=[lambda: captured]).fingerprint()


def test_what_a_class_leaves_out_of_its_pickle_does_not_count():
    one, without, other = (fingerprint_of(OwnReduce(*numbers)) for numbers in ((1, 2), (1, 4), (3, 2)))
    assert one == without != other


class Base:
    @functools.cached_property
    def kernel(self):
        return 3


class Own(Base):
    def __call__(self, sample, generator):
        return self.kernel


class OwnArray(np.ndarray):
    @functools.cached_property
    def total(self):
        return int(self.sum())


class OwnPath(PurePosixPath):
    """It keeps its text and its parts when they are asked for."""


class OwnPartial(Base, functools.partial):
    pass


@dataclass(frozen=True)
class OwnFrozen(Base):
    pass


class OwnReduce:
    def __init__(self, kept, left_out):
        self.kept, self.left_out = kept, (left_out, threading.Lock())

    def __reduce__(self):
        return OwnReduce, (self.kept, 0)


def test_the_hand_brake():
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Jpeg()})
    newer = replace(recipe, depends=[1])
    assert newer.fingerprint("train") != recipe.fingerprint("train")
    assert what_changed(recipe.describe(), newer.describe()) == ["depends: [] -> [1]"]
    circle = [1]
    circle.append(circle)
    with pytest.raises(RecipeError, match=r"depends.* holds itself"):
        replace(recipe, depends=circle).fingerprint()


def test_the_order_of_derived_inputs_counts():
    one, two = derive.Canny(), derive.Sobel()
    recipes = [
        Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive=dict(items))
        for items in ([("a", one), ("b", two)], [("b", two), ("a", one)])
    ]
    assert len({recipe.fingerprint("train") for recipe in recipes}) == 2
    assert what_changed(*(recipe.describe() for recipe in recipes)) == ["the order of derive: a, b -> b, a"]


def test_the_version_of_an_installed_package_counts(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    (site / "filters_of_others").mkdir(parents=True)
    (site / "filters_of_others/__init__.py").write_text("def blur(s, g): return 1")
    monkeypatch.syspath_prepend(str(site))
    descriptions = []
    for version in ("1.0", "1.0", "2.0"):
        info = site / "filters_of_others-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: filters-of-others\nVersion: {version}\n")
        (info / "top_level.txt").write_text("filters_of_others\n")
        (info / "RECORD").write_text("filters_of_others/__init__.py,,\n")
        code = f"""
            import json, sys
            sys.path.insert(0, {str(site)!r})
            from tfprep import Recipe, codecs, sources
            import filters_of_others
            recipe = Recipe("r", sources.Folder(), {{"image": codecs.Jpeg()}}, derive={{"d": filters_of_others.blur}})
            print(json.dumps(recipe.describe("train")))
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
        descriptions.append(json.loads(done.stdout))
    assert descriptions[0] == descriptions[1]
    change = "package filters_of_others: 'filters-of-others 1.0' -> 'filters-of-others 2.0'"
    assert what_changed(descriptions[0], descriptions[2]) == [change]


def test_a_module_whose_source_cannot_be_read_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("of_a_zip_file.py", "def f(s, g): return 1")
    monkeypatch.syspath_prepend(str(tmp_path / "code.zip"))
    made = importlib.import_module("of_a_zip_file")
    with pytest.raises(RecipeError, match=r"of_a_zip_file.py cannot be read, so that no change of it would be seen"):
        Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive={"d": made.f}).describe()


def test_a_module_that_was_edited_after_its_import_is_refused_until_it_is_loaded_again(tmp_path):
    (tmp_path / "recipe.py").write_text(_SMALL.format(code="import edited_helper\nFN = edited_helper.FN", inside="FN"))
    (tmp_path / "edited_helper.py").write_text("def FN(s, g): return 1\n")
    recipe = load_recipe(tmp_path / "recipe.py")
    before = recipe.fingerprint()
    (tmp_path / "edited_helper.py").write_text("def FN(s, g): return 200\n")
    with pytest.raises(RecipeError, match=r"edited_helper\.py was edited after this process imported it"):
        recipe.fingerprint()
    importlib.reload(sys.modules["edited_helper"])
    assert load_recipe(tmp_path / "recipe.py").fingerprint() != before
    sys.path.remove(str(tmp_path))


def test_a_module_that_depends_names_counts(describe):
    recipe = small("FN", "import by_name\ndef FN(s, g): return 0", "depends=[by_name]")
    first, same, other = (describe({**recipe, "by_name.py": f"K = {number}"}) for number in (1, 1, 2))
    assert first == same
    assert what_changed(first, other) == ["module by_name changed"]


def test_a_class_of_a_notebook_and_a_function_without_source_are_named():
    scope = {"__name__": "__main__of_a_notebook"}
    exec("class Own:\n    def __call__(self, s, g): return 1", scope)
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive={"d": scope["Own"]()})
    assert recipe.describe()["code"][NO_SOURCE] == ["class Own"]
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, derive={"d": eval("lambda s, g: 1")})
    assert recipe.describe()["code"][NO_SOURCE] == ["function <lambda>"]
