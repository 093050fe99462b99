"""The difference between two descriptions of recipes, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfprep.recipe.describe import FUNCTION, STATE, json_text

_SHOWN = 60
"""Characters up to which an old and a new value are shown; longer ones are only said to have changed."""
_BY_NAME = "derive", "store", "variants", "fill", "row_fields", "flip_indices", "shards", "files", "code"
"""Options that are mappings from names of the user."""


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name what differs between two recipes.

    Args:
        old: `Recipe.describe()` of the earlier recipe, also as read back from JSON.
        new: The same of the later one.

    Returns:
        One text for each difference, such as "geometry[1].degrees: 10 -> 12", "module blurring changed".
    """
    differences = list(_differences("", old, new))
    orders = [list(described.get("derive", ())) for described in (old, new)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        differences.append(f"the order of derive: {', '.join(orders[0])} -> {', '.join(orders[1])}")
    return differences


def only_code_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two recipes, as for `what_changed`, have the same options and refer to other source."""
    options = [_without_functions({**described, "code": None}) for described in (old, new)]
    return json_text(options[0]) == json_text(options[1]) and json_text(old) != json_text(new)


def _without_functions(described: Any) -> Any:
    if isinstance(described, Mapping):
        return {name: _without_functions(part) for name, part in described.items() if name != FUNCTION}
    return [_without_functions(part) for part in described] if isinstance(described, list) else described


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the options that differ below `path`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("type") == new.get("type"):
        for name in dict.fromkeys((*old, *new)):
            below = name if path in ("", "code") else f"{path}['{name}']" if path in _BY_NAME else f"{path}.{name}"
            if name in old and name in new:
                yield from _differences(below, old[name], new[name])
            else:
                yield f"{below} {'removed' if name in old else 'added'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{number}]", before, after)
    elif json_text(old) != json_text(new):
        before, after = _short(old), _short(new)
        is_digest = path.startswith("module ") or path.endswith((FUNCTION, f".{STATE}"))
        shown = max(len(before), len(after)) <= _SHOWN and not is_digest
        yield f"{path}: {before} -> {after}" if shown else f"{path} changed"


def _short(value: Any) -> str:
    """A value as a person writes it; a part of a recipe by its class."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return str(value["type"]).rpartition(".")[2]
    return repr(value)
