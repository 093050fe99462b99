"""The reference: docstrings of public functions, and of the loaders, have Args, Returns and Raises."""

import importlib
import inspect
import re

import pytest

import tfprep
from tests.docs import pages
from tfprep.load import Data, LoaderOptions

PACKAGES = re.findall(r"^- \[`([\w.]+)`\]", pages.text("reference/index.md"), re.M)
CALLS = ("loader", "keras_loader", "torch_loader", "jax_loader", "numpy_loader", "random_access", "batch_sampler")


def functions(package):
    module = importlib.import_module(package)
    public = (getattr(module, name) for name in getattr(module, "__all__", ()))
    return [function for function in public if inspect.isfunction(function)]


def missing_sections(function):
    """What the docstring lacks. A sentence that begins with "Return" stands for Returns, as in Google's style."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    if signature.parameters.keys() - {"self"} and "Args:" not in text:
        yield "Args"
    if signature.return_annotation not in ("None", "Iterator[None]") and not re.search(
        r"^(Return|Yield)|Returns:|Yields:", text
    ):
        yield "Returns"
    if re.search(r"\braise \w", inspect.getsource(function)) and "Raises:" not in text:
        yield "Raises"


@pytest.mark.parametrize("package", [*PACKAGES, "tfprep.load.Data"])
def test_public_functions_have_args_returns_and_raises(package):
    public = [getattr(Data, call) for call in CALLS] if package.endswith("Data") else functions(package)
    assert {f.__name__: missing for f in public if (missing := list(missing_sections(f)))} == {}


def test_the_help_of_the_loaders_options_describes_each_of_them():
    documented = re.findall(r"^    ([\w, ]+): ", inspect.getdoc(LoaderOptions) or "", re.M)
    assert [*LoaderOptions.__dataclass_fields__, "LoaderError"] == ", ".join(documented).split(", ")


def test_every_public_name_of_the_package_has_an_entry():
    """Packages have pages of their own, which list what they export."""
    listed = re.findall(r"(?:autoclass|autofunction):: tfprep\.(\w+)$", pages.text("reference/tfprep.md"), re.M)
    packages = [package.removeprefix("tfprep.") for package in PACKAGES]
    assert set(tfprep.__all__) == {*listed, *packages, "__version__"} - {"tfprep", "records"}


def test_every_name_to_which_docstrings_refer_is_on_a_page():
    modules = [importlib.import_module(name) for name in PACKAGES]
    public = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in getattr(module, "__all__", ())
    }
    sources = " ".join(
        inspect.getsource(one) for one in public.values() if inspect.isclass(one) or inspect.isfunction(one)
    )
    listed = re.findall(r"auto\w+:: (\S+)", " ".join(page.read_text() for page in (pages.DOCS / "reference").iterdir()))
    assert {name for name in re.findall(r"`(tfprep\.[a-z_.]+)`", sources) if name not in {*public, *listed}} == set()
