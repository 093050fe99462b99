"""Expressions over the index: `"label in ('cat', 'owl') and height >= 224 and 'night' not in key"`.

A string is parsed as Python and evaluated on the columns by functions of `pyarrow.compute`; nothing else is executed. It may hold
columns of the index (`key`, `label`, `shard`, `height`, `width`, ...), numbers, strings, comparisons, `in`, `and`, `or`, `not`,
and on text columns `.startswith("...")` and `.endswith("...")`. Class names may stand for a label's numbers.

Strings come from command lines and configuration files, so their length and depth are bounded, numbers have 64 bits, and whatever
is wrong with one is a LoaderError.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
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

_USUAL = ("key", "label", "shard", "height", "width")
"""The columns that an expression of `pyarrow.compute` may name."""
_FUNCTIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
    ast.And: pc.and_kleene,
    ast.Or: pc.or_kleene,
}
_OF_TEXT = {"startswith": pc.starts_with, "endswith": pc.ends_with}
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
    try:
        table, condition = pa.table({"#": np.arange(samples)}), where
        if isinstance(where, str):
            condition = _Evaluator(where, column, tuple(class_names)).condition(_tree(where))
        for name in () if isinstance(where, str) else _USUAL:  # as far as the index has them
            with contextlib.suppress(LoaderError):
                table = table.append_column(name, column(name))
        return np.asarray(table.filter(condition).column("#").to_numpy(), np.int64)
    except _ARROW_ERRORS as error:
        rule = "numbers are compared with numbers, text in quotes with text, several classes as in \"'cat' in label\""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LoaderError(f"where={_shown(where)}: {rule} ({reason})") from error


def class_number(name: str, class_names: Sequence[str]) -> int:
    """The number of a class; LoaderError where there is none of this name."""
    if name not in class_names:
        known = f"there are {', '.join(class_names)}"
        if not class_names:
            known = (
                "the dataset has no class names, so write the number (label == 3); tfprep index takes names by --features FILE "
                'with {"FEATURE": {"classes": [...]}}'
            )
        raise LoaderError(f"there is no class {name!r}; {known}")
    return class_names.index(name)


def column_names(where: Where) -> set[str]:
    """The columns that an expression names; of an expression of `pyarrow.compute` those that its text mentions."""
    if isinstance(where, str):
        return {node.id for node in ast.walk(_tree(where)) if isinstance(node, ast.Name)}
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


def _shown(where: Where) -> str:
    text = repr(where)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


@dataclass(frozen=True)
class _Evaluator:
    """Evaluates the nodes that are allowed: to a column, a condition by row, or constants. All others are refused."""

    text: str
    column: Callable[[str], pa.ChunkedArray]
    class_names: tuple[str, ...]

    def condition(self, node: ast.expr) -> pa.ChunkedArray:
        """The value of a node that says yes or no for each row."""
        match node:
            case ast.BoolOp():
                return reduce(_FUNCTIONS[type(node.op)], map(self.condition, node.values))
            case ast.UnaryOp(op=ast.Not()):
                return pc.invert(self.condition(node.operand))
            case ast.Compare():
                sides = [node.left, *node.comparators]
                return reduce(pc.and_kleene, map(self._compared, sides, node.ops, sides[1:]))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[argument], keywords=[]) if (
                method in _OF_TEXT and isinstance(pattern := self._value(argument), str)
            ):
                return _OF_TEXT[method](self.column(name), pattern)
        return self._refuse(node)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pa.ChunkedArray:
        """The value of one comparison, or of `column in [...]` or `"text" in column`."""
        of_label = "label" in (getattr(left, "id", ""), getattr(right, "id", ""))
        a, b = (self._class_numbers(value) if of_label else value for value in map(self._value, (left, right)))
        if not isinstance(a, pa.ChunkedArray) and not isinstance(b, pa.ChunkedArray):
            raise LoaderError(
                f"where={_shown(self.text)}: {_shown(ast.unparse(left))} and {_shown(ast.unparse(right))}: a comparison that "
                "names no column of the index; for example 'label == 3'"
            )
        if isinstance(op, ast.In | ast.NotIn):
            if isinstance(b, list):
                contained = pc.if_else(a.is_valid(), pc.is_in(a, value_set=pa.array(b)), None)
            elif isinstance(a, str) or (isinstance(a, int) and of_label):
                contained = _contains(b, a)
            else:
                self._refuse(left)
            return pc.invert(contained) if isinstance(op, ast.NotIn) else contained
        if isinstance(a, list) or isinstance(b, list) or type(op) not in _FUNCTIONS:
            self._refuse(left if isinstance(a, list) else right)
        if pa.types.is_float32(kind := (a if isinstance(a, pa.ChunkedArray) else b).type):  # which holds another 0.1
            a, b = (pa.scalar(value, kind) if isinstance(value, float) else value for value in (a, b))
        return _FUNCTIONS[type(op)](a, b)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name():
                return self.column(node.id)
            case ast.Constant(value=str(text)):
                text.encode()  # UnicodeEncodeError for half a surrogate pair, which no column holds
                return text
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if isinstance(number, int) and number > LARGEST_NUMBER:
                    raise LoaderError(
                        f"where={_shown(self.text)}: numbers have 64 bits, this one has {number.bit_length()}"
                    )
                return number
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as positive):
                return -self._value(positive)
            case ast.List() | ast.Tuple() | ast.Set():
                constants = [self._value(item) for item in node.elts]
                if any(isinstance(item, list | pa.ChunkedArray) for item in constants):
                    self._refuse(node)
                return constants
        return self._refuse(node)

    def _class_numbers(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._class_numbers(item) for item in value]
        return class_number(value, self.class_names) if isinstance(value, str) else value

    def _refuse(self, node: ast.AST) -> NoReturn:
        raise LoaderError(
            f"where={_shown(self.text)}: {_shown(ast.unparse(node))} cannot stand here; there are columns, numbers, text, "
            "comparisons, in, and, or, not, .startswith() and .endswith()"
        )


def _contains(column: pa.ChunkedArray, item: str | int) -> pa.ChunkedArray:
    """Which texts contain a text, or which lists of classes a class: those are looked for in text such as ",1,7,"."""
    if isinstance(item, str):
        return pc.match_substring(column, item)
    texts = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
    return pc.match_substring(pc.binary_join_element_wise("", texts, "", ","), f",{item},")
