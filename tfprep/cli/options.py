"""Options of the commands: types, numbers with a unit, and the user's functions by their names on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfprep.errors import BuildError, LoaderError

if TYPE_CHECKING:
    from tfprep.builder import Part


class _Path(click.Path):
    """A path; an empty one, of a variable of a shell that is not set, does not name the current folder.

    A URL is refused where only a local path will do: as a path it would name a folder "s3:" here.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it is empty", param, ctx)
        if self.type is Path and "://" in str(value):
            self.fail(f"a local path is needed here, not the URL {value!r}", param, ctx)
        return super().convert(value, param, ctx)


PLACE = _Path()
"""A path or a URL."""
FILE = _Path(path_type=Path, dir_okay=False)
OLD_FOLDER = _Path(path_type=Path, exists=True, file_okay=False)
PATH = _Path(path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
EXIT_CHECK_FAILED = 4
"""The status of a command that has found what its user asked it to look for."""


def option(*names: str, **given: Any) -> Callable[[Any], Any]:
    """Return `click.option`, whose help shows the default if there is one."""
    return click.option(*names, **{"show_default": "default" in given} | given)


def in_folder(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Return the path of a file to write; BadParameter, before the work, where its folder does not exist."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"the folder {path.parent} does not exist")
    return path


html_option = option(
    "--html", type=FILE, metavar="FILE", callback=in_folder, help="Write a page with charts or pictures to FILE."
)
json_option = option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = option("--quiet", is_flag=True, help="Print only errors.")


def share(value: str) -> float:
    """Return a share of a whole, such as `1%` or `0.01`, as a number from 0 to 1."""
    try:
        number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise click.BadParameter(f"expected a share such as 1% or 0.01, not {value!r}")
    return number


def part(value: str) -> Part:
    """Return a part of a build, such as `3/16`."""
    from tfprep.builder.options import parse_part

    try:
        return parse_part(value)
    except BuildError as error:
        raise click.BadParameter(str(error)) from error


def named(text: str) -> Any:
    """Return the function or model that `text` names, as `file.py:name`.

    Raises:
        LoaderError: There is no such file, or it does not define the name.
    """
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise LoaderError(f"expected file.py:name, not {text!r}; a file may import the function from a package")
    if not Path(file).is_file():
        raise LoaderError(f"{file}: no such file")
    from tfprep.recipe.file import import_file

    module = import_file(Path(file), f"tfprep_named_{Path(file).stem}")
    if not hasattr(module, name):
        raise LoaderError(f"{file} has no {name!r}")
    return getattr(module, name)
