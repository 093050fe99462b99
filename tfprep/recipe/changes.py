"""The difference between two descriptions of recipes, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHOWN = 60
"""Characters up to which an old and a new value are shown; longer ones are only said to have changed."""
_BY_NAME = "derive", "store", "variants", "fill", "row_fields", "flip_indices", "shards", "files"
"""Options that are mappings from names of the user."""


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name what differs between two recipes.

    Args:
        old: `Recipe.describe()` of the earlier recipe, also as read back from JSON.
        new: The same of the later one.

    Returns:
        One text for each difference, such as "geometry[1].degrees: 10 -> 12", "function blur changed", "constant SIGMA: 1 -> 2".
    """
    options = [{name: value for name, value in described.items() if name != "code"} for described in (old, new)]
    orders = [list(described.get("derive", ())) for described in (old, new)]
    differences = [*_options("", *options), *_code(old.get("code", {}), new.get("code", {}))]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        differences.append(f"the order of derive: {', '.join(orders[0])} -> {', '.join(orders[1])}")
    return differences


def _options(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the options that differ below `path`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("type") == new.get("type"):
        for name in dict.fromkeys((*old, *new)):
            below = f"{path}['{name}']" if path in _BY_NAME else f"{path}.{name}" if path else name
            if name in old and name in new:
                yield from _options(below, old[name], new[name])
            else:
                yield f"{below} {'removed' if name in old else 'added'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _options(f"{path}[{number}]", before, after)
    elif _differ(old, new):
        yield _change(path, old, new)


def _code(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            yield f"{name} {'removed' if name in old else 'added'}"
        elif _differ(old[name], new[name]) and name.startswith("constant "):
            yield _change(name, old[name], new[name])
        elif _differ(old[name], new[name]):
            before, after = (
                _parts(entry) if name.startswith("function ") else entry for entry in (old[name], new[name])
            )
            differing = [part for part in sorted({*before, *after}) if _differ(before.get(part), after.get(part))]
            part = differing[0] if len(differing) == 1 else "code"
            has_values = part not in ("code", "uses", "bases") and part in before and part in after
            yield _change(f"{name}: {part}", before[part], after[part]) if has_values else f"{name} changed"


def _parts(function: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a function's description, with the names of what it captured, and of its attributes, among them."""
    plain = {part: value for part, value in function.items() if part not in ("captured", "attributes")}
    return {**plain, **function.get("captured", {}), **function.get("attributes", {})}


def _change(path: str, old: Any, new: Any) -> str:
    before, after = _short(old), _short(new)
    return f"{path}: {before} -> {after}" if max(len(before), len(after)) <= _SHOWN else f"{path} changed"


def _short(value: Any) -> str:
    """A value as a person writes it; a part of a recipe by its class."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return str(value["type"]).rpartition(".")[2]
    if isinstance(value, Mapping) and value.keys() == {"tuple"}:
        return repr(tuple(value["tuple"]))
    return repr(value)


def _differ(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return len(old) != len(new) or any(map(_differ, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() != new.keys() or any(_differ(old[name], new[name]) for name in old)
    return repr(old) != repr(new)  # Python holds 1, 1.0 and True for equal; a description does not
