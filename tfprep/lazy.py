"""Names of a package that are imported when they are first used (PEP 562), so that importing the package is fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tfprep.errors import MissingDependencyError
from tfprep.optional import missing_package


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package: `__getattr__, __dir__ = lazy_names(__name__, {"module": ["Name"]})`.

    Args:
        package: The package's `__name__`.
        names: The public names by the submodule that defines them.
        submodules: Submodules that are public names themselves.

    Returns:
        The two functions. `__getattr__` raises MissingDependencyError if a name needs an optional package that is not installed.
    """
    homes = {name: f"{package}.{module}" for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name in homes:
            return getattr(_imported(homes[name], f"{package}.{name}"), name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted([*homes, *submodules])


def _imported(module: str, feature: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error
    message = missing_package(missing, feature)
    raise (
        MissingDependencyError(message) if message else missing
    )  # outside the handler: the user sees one error, not two
