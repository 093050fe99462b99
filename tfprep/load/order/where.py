"""Expressions over the index: `"label in ('cat', 'owl') and height >= 224 and 'night' not in key"`.

A string is parsed as Python and translated into a `pyarrow.compute` expression; nothing is executed. It may hold columns of the
index (`key`, `label`, `shard`, `height`, `width`, ...), numbers, strings, comparisons, `in`, `and`, `or`, `not`, and on text
columns `.startswith("...")` and `.endswith("...")`. Class names may stand for a label's numbers.

Strings come from command lines and configuration files, so their length and depth are bounded, numbers have 64 bits, and whatever
is wrong with one is a LoaderError.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfprep.errors import LoaderError

Where: TypeAlias = "str | pc.Expression"

MOST_CHARACTERS = 100_000
"""Enough for a list of some thousand keys."""
MOST_DEPTH = 100
"""Far below Python's limit of recursion, 1,000 by default; a chain of `and` counts as one level."""
LARGEST_NUMBER = 2**63 - 1
"""Arrow's integers have 64 bits."""
SHOWN_CHARACTERS = 200
NO_CLASS_NAMES = (
    "the dataset has no class names, so write the number (label == 3); tfprep index takes names by --features FILE with "
    '{"FEATURE": {"classes": [...]}}'
)

_USUAL = ("key", "label", "shard", "height", "width")
"""The columns that an expression of `pyarrow.compute` may name."""
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LOGIC: dict[type[ast.boolop], Callable[[Any, Any], Any]] = {ast.And: operator.and_, ast.Or: operator.or_}
_TEXT = {"startswith": pc.starts_with, "endswith": pc.ends_with}
_ARROW_ERRORS = (pa.ArrowException, ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError)
"""Errors of pyarrow for operands of wrong types, for numbers beyond 64 bits and for text that is not UTF-8."""


def rows_where(
    where: Where, column: Callable[[str], pa.ChunkedArray], class_names: Sequence[str], samples: int
) -> npt.NDArray[np.int64]:
    """The rows for which an expression holds.

    Args:
        where: Text, or an expression of `pyarrow.compute`.
        column: Returns a column of the index by name; LoaderError where there is none.
        class_names: The names that may stand for a label's numbers.
        samples: The number of rows.

    Returns:
        The numbers of the rows, ascending: int64 [N]. A row whose value is missing (null) is left out.

    Raises:
        LoaderError: The text is not such an expression, or does not fit the columns.
    """
    if not isinstance(where, str | pc.Expression):
        raise LoaderError(f'where is text such as "label == 3", or a pyarrow.compute expression, not {where!r}')
    if isinstance(where, str):
        tree = _tree(where)
        expression = _Translator(where, tuple(class_names)).translate(tree)
        columns = {name: _searchable(column(name)) for name in _names(tree)}
    else:
        expression, columns = where, {}
        for name in _USUAL:  # as far as the index has them
            with contextlib.suppress(LoaderError):
                columns[name] = column(name)
    try:
        table = pa.table({"#": np.arange(samples), **columns})
        return np.asarray(table.filter(expression).column("#").to_numpy(), np.int64)
    except _ARROW_ERRORS as error:
        raise _mismatch(where, error) from error


def _searchable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of lists of numbers as text, ",1,7,", in which `1 in label` is looked for."""
    if not pa.types.is_list(column.type):
        return column
    texts = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
    return pc.binary_join_element_wise("", texts, "", ",")


def column_names(where: Where) -> set[str]:
    """The columns that an expression names; of an expression of `pyarrow.compute` those that its text mentions."""
    if isinstance(where, str):
        return set(_names(_tree(where)))
    return {name for name in _USUAL if name in str(where)}


def _tree(text: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:
        raise LoaderError(
            f"where={_shown(text)} has {len(text):,} characters, {MOST_CHARACTERS:,} are allowed; use a pyarrow.compute "
            'expression instead, such as pc.field("key").isin(keys)'
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an unknown escape in a string
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
        example = "\"label in ('cat', 'owl') and height >= 224\""
        raise LoaderError(f"where={_shown(text)} is not an expression ({reason}); write it as in {example}") from None
    level: list[ast.AST] = [tree]
    for _ in range(MOST_DEPTH):  # level by level: without recursion
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise LoaderError(f"where={_shown(text)} is nested more than {MOST_DEPTH} levels deep; use `in` for a list")
    return tree


def _names(tree: ast.expr) -> list[str]:
    return sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})


def _shown(where: Where) -> str:
    text = repr(where)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _mismatch(where: Where, error: Exception) -> LoaderError:
    rule = "numbers are compared with numbers, text in quotes with text"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return LoaderError(f"where={_shown(where)}: {rule} ({reason})")


def _joined(expressions: list[pc.Expression], join: Callable[[Any, Any], Any]) -> pc.Expression:
    """All of them joined as a balanced tree: Arrow evaluates expressions by recursion, which a long chain would overflow."""
    while len(expressions) > 1:
        pairs = zip(expressions[::2], expressions[1::2], strict=False)
        odd = expressions[len(expressions) // 2 * 2 :]
        expressions = [join(one, other) for one, other in pairs] + odd
    return expressions[0]


@dataclass(frozen=True)
class _Translator:
    """Translates the nodes that are allowed; all others are refused."""

    text: str
    class_names: tuple[str, ...]

    def translate(self, tree: ast.expr) -> pc.Expression:
        try:
            expression = self._any(tree)
        except _ARROW_ERRORS as error:
            raise _mismatch(self.text, error) from error
        if not isinstance(expression, pc.Expression):
            raise LoaderError(f"where={_shown(self.text)} names no column of the index; for example 'label == 3'")
        return expression

    def _any(self, node: ast.expr) -> Any:  # noqa: PLR0911 - one case for each kind of node
        match node:
            case ast.Name():
                return pc.field(node.id)
            case ast.Constant(value=str(text)):
                text.encode()  # UnicodeEncodeError for half a surrogate pair, which no column holds
                return text
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if isinstance(number, int) and number > LARGEST_NUMBER:
                    raise LoaderError(
                        f"where={_shown(self.text)}: numbers have 64 bits, this one has {number.bit_length()}"
                    )
                return number
            case ast.List() | ast.Tuple() | ast.Set():
                return [self._any(item) for item in node.elts]
            case ast.BoolOp():
                return _joined([self._expression(value) for value in node.values], _LOGIC[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                return ~self._expression(node.operand)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as positive):
                value = self._any(positive)
                if isinstance(value, int | float):
                    return -value
            case ast.Compare():
                sides = [node.left, *node.comparators]
                pairs = zip(sides, node.ops, sides[1:], strict=False)
                return _joined([self._pair(left, op, right) for left, op, right in pairs], operator.and_)
            case ast.Call(func=ast.Attribute(value=column, attr=method), args=[argument], keywords=[]) if (
                method in _TEXT
            ):
                pattern = self._any(argument)
                if isinstance(pattern, str):
                    return _TEXT[method](self._expression(column), pattern)
        return self._refuse(node)

    def _expression(self, node: ast.expr) -> pc.Expression:
        """A part that must depend on a column."""
        value = self._any(node)
        return value if isinstance(value, pc.Expression) else self._refuse(node)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        a, b = self._any(left), self._any(right)
        if isinstance(left, ast.Name) and left.id == "label":
            b = self._class_numbers(b)
        if isinstance(right, ast.Name) and right.id == "label":
            a = self._class_numbers(a)
        if isinstance(op, ast.In | ast.NotIn):  # `column in [...]`, or `"text" in column`
            if isinstance(a, pc.Expression) and isinstance(b, list):
                if any(isinstance(item, list | pc.Expression) for item in b):
                    self._refuse(right)
                contained = a.isin(b)
            elif isinstance(a, str) and isinstance(b, pc.Expression):
                contained = pc.match_substring(b, a)
            elif isinstance(a, int) and isinstance(right, ast.Name) and right.id == "label":  # of several classes
                contained = pc.match_substring(b, f",{a},")
            else:
                self._refuse(left)
            return ~contained if isinstance(op, ast.NotIn) else contained
        for side, value in ((left, a), (right, b)):
            if isinstance(value, list) or type(op) not in _COMPARE:
                self._refuse(side)
        if not isinstance(a, pc.Expression) and not isinstance(b, pc.Expression):
            raise LoaderError(
                f"where={_shown(self.text)}: {_shown(ast.unparse(left))} and {_shown(ast.unparse(right))}: a comparison that "
                "names no column of the index; for example 'label == 3'"
            )
        result: pc.Expression = _COMPARE[type(op)](a, b)
        return result

    def _class_numbers(self, value: Any) -> Any:
        """Class names as class numbers."""
        if isinstance(value, list):
            return [self._class_numbers(item) for item in value]
        if not isinstance(value, str):
            return value
        if value not in self.class_names:
            known = f"there are {', '.join(self.class_names)}" if self.class_names else NO_CLASS_NAMES
            raise LoaderError(f"where={_shown(self.text)}: there is no class {value!r}; {known}")
        return self.class_names.index(value)

    def _refuse(self, node: ast.AST) -> NoReturn:
        raise LoaderError(
            f"where={_shown(self.text)}: {_shown(ast.unparse(node))} cannot stand here; there are columns, numbers, text, "
            "comparisons, in, and, or, not, .startswith() and .endswith()"
        )
