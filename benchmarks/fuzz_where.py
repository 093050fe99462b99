"""Thousands of random `where` strings: the loader's selection returns rows or raises a LoaderError for each of them.

    python benchmarks/fuzz_where.py [--strings 2000] [--seed 0] [--json FILE]

Four rules generate the strings in turn: expressions of the documented grammar with random columns and constants; such expressions
with characters removed, repeated or replaced; expressions from all of Python's grammar; and random characters, which include NUL,
lone surrogates, brackets and operators. One string in fifty is repeated to a length of up to a megabyte. Each string must return
rows or raise a LoaderError within `LIMIT_S` seconds. The rows of documented expressions are compared with Python's evaluation of
each row. The exit status is 1 if a string fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import harness
import numpy as np
import pyarrow as pa

from tfprep.errors import LoaderError
from tfprep.load.order.where import rows_where

SAMPLES = 200
LIMIT_S = 5.0
"""A hundred times the time of the slowest string, about 50 ms on one core."""
CLASSES = ("cat", "dog", "owl")
ATOMS = [
    "label", "key", "height", "nothing", "'cat'", "'a'", "3", "-1", "1e999", "2**9", "None", "True", "b'x'", "''", "...", "[]",
]  # fmt: skip
LETTERS = [*"()[]{}'\"\\ \n\t\0+-*/%=<>!&|^~.,:;@#_abc09\ud800é", " and ", " or ", " not ", " in ", "label", "key"]
PYTHON = [
    "({} if {} else {})", "(lambda: {})({})", "{}[{}]", "{}.{}", "{}({}, {})", "[{} for x in {}]", "{{{}: {}}}", "{} @ {}",
    "{} ** {}", "{} << {}", "~{}", "not {}", "{} and {}", "{} in {}", "{} is {}", "{} * {}", "{} + {}", "{} - {}", "{} == {}",
    "{} < {} < {}", "({}, {})", "f'{{{}}}'", "*{}", "{} := {}", "-{}", "{}.startswith({})",
    "{}.endswith({})", "{} not in ({}, {})",
]  # fmt: skip


def main() -> None:
    options = harness.arguments(__doc__, strings=(2000, "Number of strings"), seed=(0, "Seed of all strings"))
    rng = np.random.default_rng(options.seed)
    rows = table(rng)
    strings = (string(rng, number) for number in range(options.strings))
    cases = (
        (repr(text[:200]), partial(answer, text, rows, exact=rule == "documented"), LIMIT_S) for rule, text in strings
    )
    harness.run_cases(options, cases, allowed=lambda outcome: outcome in ("rows", "LoaderError"), needed="rows")


def table(rng: np.random.Generator) -> dict[str, list[object]]:
    """The columns of an index."""
    return {
        "key": [f"{'day' if rng.random() < 0.5 else 'night'}/{number:03d}" for number in range(SAMPLES)],
        "label": rng.integers(0, 3, SAMPLES).tolist(),
        "height": rng.integers(10, 400, SAMPLES).tolist(),
    }


def answer(text: str, rows: dict[str, list[object]], *, exact: bool) -> str:
    """Returns "rows", "LoaderError", or the name of the failure."""
    try:
        chosen = rows_where(text, column_of(rows), CLASSES, SAMPLES)
    except LoaderError:
        return "refused, though documented" if exact else "LoaderError"
    except BaseException as error:  # any other exception is a failure that this script looks for
        return type(error).__name__
    if not exact:
        return "rows"
    names = [{name: column[row] for name, column in rows.items()} for row in range(SAMPLES)]
    expected = [row for row in range(SAMPLES) if eval(text, {}, names[row])]  # `documented` generated the text
    return "rows" if chosen.tolist() == expected else "other rows than Python's"


def column_of(rows: dict[str, list[object]]) -> Callable[[str], pa.ChunkedArray]:
    def column(name: str) -> pa.ChunkedArray:
        if name not in rows:
            raise LoaderError(f"the index has no column {name!r}")
        return pa.chunked_array([rows[name]])

    return column


def string(rng: np.random.Generator, number: int) -> tuple[str, str]:
    """Returns the name of the rule and the string that it generated."""
    rule = ("documented", "damaged", "python", "characters")[number % 4]
    if rule == "documented":
        return rule, documented(rng, 3)
    if rule == "damaged":
        text = damaged(rng, documented(rng, 3))
    elif rule == "python":
        text = python(rng, 4)
    else:
        text = "".join(LETTERS[at] for at in rng.integers(0, len(LETTERS), rng.integers(0, 60)))
    if rng.random() < 0.02:
        text = (text + str(rng.choice(["", " and ", "+", "*", "("]))) * int(2 ** rng.uniform(5, 15))
    return rule, text[: 1 << 20]


def documented(rng: np.random.Generator, depth: int) -> str:
    """An expression of the documented grammar, which must select the rows for which Python evaluates it as true."""
    if depth and rng.random() < 0.6:
        one, other = documented(rng, depth - 1), documented(rng, depth - 1)
        return str(rng.choice([f"({one} and {other})", f"({one} or {other})", f"(not {one})"]))
    height, label, key = rng.integers(0, 400), rng.integers(0, 3), rng.choice(["day", "night", "0", "/", "19"])
    return str(
        rng.choice([
            f"height >= {height}", f"{height} < height <= {height + 90}", f"height * 2 - {height} > 3 + 4",
            f"-height < -{height}",
            f"label == {label}", f"label in ({label}, 2)", f"label not in [{label}]", f"'{key}' in key", f"'{key}' not in key",
            f"key.startswith('{key}')", f"key.endswith('{key}')", f"key > '{key}'", f"{label} != label",
        ])
    )  # fmt: skip


def damaged(rng: np.random.Generator, text: str) -> str:
    letters = list(text)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(0, len(letters)))
        change = rng.integers(3)
        if change == 0:
            letters[at] = ""
        elif change == 1:
            letters[at] *= int(rng.integers(2, 50))
        else:
            letters[at] = str(rng.choice(list("()'\"*=<>.,[]\\ 9x\0")))
    return "".join(letters)


def python(rng: np.random.Generator, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return str(rng.choice(ATOMS))
    form = PYTHON[int(rng.integers(len(PYTHON)))]
    return form.format(*(python(rng, depth - 1) for _ in range(3)))


if __name__ == "__main__":
    main()
