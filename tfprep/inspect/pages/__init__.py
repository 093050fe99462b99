"""HTML pages from Jinja2 templates, with every value escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[2]


def render(template: str, **values: Any) -> str:
    """Return the page of a template, such as `bench/page.html.j2`, which is given by its path in the package.

    `values` are the names that it uses; any other name in it is an error.
    """
    return str(environment().get_template(template).render(values))


@cache
def environment() -> Any:
    """Return Jinja2's environment, which compiles each template once."""
    import jinja2  # imported here, as only the commands that write pages need it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PACKAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
