"""The command `tfprep clean`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfprep.cli import text

if TYPE_CHECKING:
    from tfprep.builder.at_store import Leftovers

_NAMED = 20


@click.command("clean")
@click.argument("place")
@click.option("--remove", is_flag=True, help="Remove what is listed; refused while a build runs there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(place: str, remove: bool, as_json: bool) -> None:
    """List what builds and tfprep add-fields left at PLACE, a URL or a folder: objects that the dataset does not refer to.

    Loaders that opened an earlier dataset there still read its objects: remove them when those have ended. Other files are left
    alone.
    """
    from tfprep.builder.at_store import clean

    leftovers = clean(place, remove=remove)
    if as_json:
        text.print_json(asdict(leftovers))
    else:
        text.echo("\n".join(_lines(leftovers)))


def _lines(leftovers: Leftovers) -> Iterator[str]:
    found = leftovers.unreferenced
    yield from (f"  {info.name}  {text.size(info.bytes)}" for info in found[:_NAMED])
    if len(found) > _NAMED:
        yield f"  ... and {len(found) - _NAMED:,} more"
    verb = "removed" if leftovers.removed else "found"
    yield (
        f"{leftovers.url}: {verb} {text.number(len(found), 'unreferenced object')} of {text.size(sum(i.bytes for i in found))}"
        + ("" if leftovers.removed or not found else "; --remove removes them")
    )
    if leftovers.unfinished:
        size = text.size(sum(info.bytes for info in leftovers.unfinished))
        yield f"Kept: {text.number(len(leftovers.unfinished), 'object')} of {size} of a run that has not published"
