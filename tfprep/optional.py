"""Optional packages: a feature that needs one says which, and how to install it; names that are imported when first used.

`from tfprep.optional import cv2` takes the place of `import cv2`: datasets are opened, loaded and checked without OpenCV.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfprep.errors import MissingDependencyError

__all__ = ["CV_CHANNELS", "HAS_OPENCV", "OPTIONAL", "cv2", "lazy_names", "missing_package", "require_package"]

OPTIONAL = {
    "cv2": ("OpenCV", "'tfprep[opencv]'"),
    "jax": ("JAX", "'tfprep[jax]'"),
    "keras": ("Keras", "'tfprep[tensorflow]', or keras with jax or torch"),
    "ml_dtypes": ("ml_dtypes", "ml_dtypes"),
    "pycocotools": ("pycocotools", "'tfprep[coco]'"),
    "tensorflow": ("TensorFlow", "'tfprep[tensorflow]'"),
    "tensorflow_datasets": ("TensorFlow Datasets", "tensorflow-datasets"),
    "torch": ("PyTorch", "'tfprep[torch]'"),
    "obstore": ("obstore", "'tfprep[s3]'"),
    "tifffile": ("tifffile", "'tfprep[tiff]'"),
    "rasterio": ("rasterio", "'tfprep[geotiff]'"),
    "pydicom": ("pydicom", "'tfprep[dicom]'"),
    "ray": ("Ray", "'tfprep[ray]'"),
    "av": ("PyAV", "'tfprep[video]'"),
    "yaml": ("PyYAML", "'tfprep[yolo]'"),
}
"""By the name to import: the package's title, and what pip installs."""


def require_package(name: str, feature: str, instead: str = "") -> None:
    """Raises unless an optional package is installed. Does not import it.

    Args:
        name: The name to import, one of `OPTIONAL`.
        feature: The name of the feature that needs the package.
        instead: What works without the package, for the end of the message.

    Raises:
        MissingDependencyError: With the line that installs the package.
    """
    if importlib.util.find_spec(name) is None:
        raise MissingDependencyError(_message(name, feature) + (instead and f"; {instead}"))


def missing_package(error: ModuleNotFoundError, feature: str) -> str | None:
    """Return what to install if an import failed because an optional package is missing; None if it failed otherwise."""
    name = (error.name or "").partition(".")[0]
    return _message(name, feature) if name in OPTIONAL else None


def _message(name: str, feature: str) -> str:
    title, requirement = OPTIONAL[name]
    return f"{feature} needs {title}: pip install {requirement}"


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are imported when they are first used (PEP 562).

    A package says `__getattr__, __dir__ = lazy_names(__name__, {"module": ["Name"]})`.

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
            before, sys.dont_write_bytecode = sys.dont_write_bytecode, bool(sys.flags.dont_write_bytecode)
            try:
                return getattr(importlib.import_module(homes[name]), name)
            except ModuleNotFoundError as error:
                missing = error
            finally:
                sys.dont_write_bytecode = before
            message = missing_package(missing, f"{package}.{name}")
            raise MissingDependencyError(message) if message else missing  # outside the handler: one error, not two
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted([*homes, *submodules])


HAS_OPENCV = importlib.util.find_spec("cv2") is not None
"""True if OpenCV is installed."""
CV_CHANNELS = 128
"""The most channels of an array in OpenCV 5; 512 in OpenCV 4."""

if TYPE_CHECKING:
    import cv2
else:

    class _OpenCv:
        """Stands for the module; each name is kept here when it is first used."""

        def __getattr__(self, name: str) -> Any:
            if not HAS_OPENCV:  # looking it up again would fail: OpenCV replaces its module while it is imported
                instead = "datasets are opened, loaded and checked without it"
                require_package("cv2", "what warps, draws or encodes pixels", instead)
            value = getattr(importlib.import_module("cv2"), name)
            setattr(self, name, value)
            return value

    cv2 = _OpenCv()
