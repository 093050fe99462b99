"""Output of the commands: text that is safe for terminals, tables and JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import click

from tfprep.optional import require_package
from tfprep.units import aligned, printable

_json_out: list[Any] = []
"""The standard output, last, where `json_alone` keeps it for JSON."""


def echo(text: str, *, err: bool = False) -> None:
    """Print text that may hold names from files: control characters are escaped."""
    click.echo(printable(text), err=err)


def table(rows: Sequence[Sequence[Any]], indent: str = "  ") -> str:
    """Rows as aligned columns: text to the left, numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    right = [any(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(indent + line for line in aligned(cells, right))


@contextmanager
def progress(unit: str, *, quiet: bool = False, **options: Any) -> Iterator[Callable[[int, int], None]]:
    """A bar that terminals show after two seconds. Its function takes what is done and the whole."""
    from tqdm import tqdm

    with tqdm(unit=unit, disable=True if quiet else None, leave=False, delay=2, **options) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


def print_result(as_json: bool, value: Any, lines: Iterable[str]) -> None:
    """Print a result as JSON, or as lines."""
    if as_json:
        print_json(value)
    else:
        echo("\n".join(lines))


def print_json(value: Any) -> None:
    """Print a value as JSON. Control characters are escaped as JSON demands; lone surrogates as `\\udcff`; NaN is null."""
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)
    text = escaped_json(json.dumps(plain, indent=1, ensure_ascii=False))
    click.echo(text, file=_json_out[-1] if _json_out else None)


def escaped_json(text: str) -> str:
    """Return JSON as a terminal may show it: also U+007F to U+009F, which `printable` writes in a form that is not JSON."""
    return printable(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))


@contextmanager
def json_alone() -> Iterator[None]:
    """Keep standard output for `print_json`; what a recipe, a model or a function of the user prints goes to standard error.

    So does what their child processes print, where standard output is the process's own and not that of a test or a notebook.
    """
    sys.stdout.flush()
    try:
        own = sys.stdout.fileno() == 1
    except (OSError, ValueError):
        own = False
    out = open(os.dup(1), "w", encoding="utf-8") if own else sys.stdout  # noqa: SIM115
    _json_out.append(out)
    try:
        if own:
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_out.pop()
        if own:
            os.dup2(out.fileno(), 1)
            with suppress(OSError):  # what cannot be written was an error already
                out.close()


def start_tensorflow(feature: str = "this script") -> None:
    """Import TensorFlow and list its devices without the lines that its C++ side prints: they are printed only on failure.

    Raises:
        MissingDependencyError: If TensorFlow is not installed. The message names `feature`.
    """
    import tempfile  # 5 ms, which other commands do without

    require_package("tensorflow", feature)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        kept = os.dup(2)
        os.dup2(aside.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_logical_devices()
        except BaseException:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
