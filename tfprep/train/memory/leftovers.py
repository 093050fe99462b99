"""What of TensorFlow and Keras is still alive and what refers to it: how `fresh_session` finds what a training left behind."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfprep.train.backend import is_tensor_iterator, tensorflow_in_use

_FRAMEWORKS = ("tensorflow", "keras", "jax", "jaxlib", "torch", "optree", "wrapt")
_CONTAINERS = (dict, list, tuple, set, types.CellType, types.FunctionType, types.MethodType)
_PLAIN_MODULES = ("builtins", "types", "collections", "weakref")
_DEPTH = 8
"""References to follow from an object to a name. Attribute dictionaries count, so this is model.optimizer in a list in a dict."""


@dataclass(frozen=True)
class Leftover:
    """One object that outlived its session.

    Attributes:
        what: The object, such as `model 'sequential' (27 parameters)`.
        held_by: The variables and objects of the user that refer to it, directly or through others; empty where only native
            code does.
    """

    what: str
    held_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}, held by {', '.join(self.held_by) or 'TensorFlow itself'}"


def tracked() -> list[Any]:
    """Return the models, optimizers, iterators and datasets that are alive: they hold the memory of a training."""
    tf = tensorflow_in_use()
    of_tf_data = () if tf is None else (tf.data.Iterator, tf.data.Dataset)
    kinds = (keras.Model, keras.optimizers.Optimizer, *of_tf_data)
    # `type` and not `isinstance`: the latter asks lazy objects for their __class__, which may import modules. Each type is
    # checked once, because `issubclass` of an abstract class takes half a microsecond and there are 400,000 objects.
    objects = gc.get_objects()
    types_tracked = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)}
    return [one for one in objects if type(one) in types_tracked]


def leftover(thing: Any) -> Leftover:
    """Describe an object that is alive, and find what refers to it."""
    return Leftover(_description(thing), tuple(sorted(set(_holders(thing)))))


def _description(thing: Any) -> str:
    if isinstance(thing, keras.Model):
        size = f"{thing.count_params():,} parameters" if thing.built else "not built"
        return f"model {thing.name!r} ({size})"
    if isinstance(thing, keras.optimizers.Optimizer):
        return f"optimizer {thing.name!r}"
    return f"tf.data {'iterator' if is_tensor_iterator(thing) else 'dataset'} {type(thing).__name__}"


def _holders(thing: Any) -> list[str]:
    """Names outside of the frameworks that lead to `thing`; of the nearest ones all."""
    layer, seen = [thing], {id(thing)}
    for _ in range(_DEPTH):
        names = list(_local_names(layer))
        # One call for the whole layer: each looks at every object there is.
        referrers = [one for one in gc.get_referrers(*layer) if id(one) not in seen and not _is_own(one, layer)]
        names += [name for one in referrers if (name := _name_of(one, layer))]
        if names or not referrers:
            return names
        seen |= set(map(id, referrers))
        layer = [one for one in referrers if _leads_on(one)]
        if not layer:
            return []
    return []


def _is_own(one: Any, layer: Sequence[Any]) -> bool:
    """Whether this is of the search itself: its frames, its list, or the copy of its arguments (from Python 3.13 on)."""
    if isinstance(one, types.FrameType) or one is layer:
        return True
    return isinstance(one, tuple) and len(one) == len(layer) and all(a is b for a, b in zip(one, layer, strict=True))


def _name_of(holder: Any, targets: Sequence[Any]) -> str:
    """The name by which a user knows `holder`; empty for containers, and for objects of the frameworks."""
    if isinstance(holder, dict) and holder.get("__name__") in sys.modules and not _framework(str(holder["__name__"])):
        ids = set(map(id, targets))
        names = [key for key, value in holder.items() if id(value) in ids]
        return f"variable {names[0]!r} of module {holder['__name__']}" if names else ""
    if isinstance(holder, types.GeneratorType):
        frame = holder.gi_frame
        return _where("a generator, ", frame) if frame is not None and not _framework_frame(frame) else ""
    module = type(holder).__module__
    if isinstance(holder, types.ModuleType) or _framework(module) or module in _PLAIN_MODULES:
        return ""
    return f"an object of class {module}.{type(holder).__qualname__}"


def _leads_on(holder: Any) -> bool:
    return isinstance(holder, _CONTAINERS) or _framework(type(holder).__module__)


def _local_names(targets: Sequence[Any]) -> Iterator[str]:
    """Local variables of the functions that run now, in all threads. `gc` does not see them."""
    ids = set(map(id, targets))
    for frame in sys._current_frames().values():
        caller: types.FrameType | None = frame
        while caller is not None:
            if not _framework_frame(caller) and caller.f_locals is not caller.f_globals:
                names = [name for name, value in caller.f_locals.items() if id(value) in ids]
                yield from (_where(f"local variable {name!r} of ", caller) for name in names)
            caller = caller.f_back


def _where(prefix: str, frame: types.FrameType) -> str:
    return f"{prefix}{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _framework_frame(frame: types.FrameType) -> bool:
    return _framework(str(frame.f_globals.get("__name__", "")))


def _framework(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _FRAMEWORKS or module.startswith("tfprep.train")
