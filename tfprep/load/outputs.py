"""The elements that a loader delivers: which fields, in which arrays, with which shape and type.

An element is a dict of fields, or with `inputs` (and `targets`) what Keras takes: `x`, or `(x, y)`, where each is

- the name of a field: its array;
- a list of names: those rasters stacked along the channels, [H, W, sum of C]; a field [H, W] is one channel;
- a dict from name to one of these: a dict, for models of several inputs.

With `sample_weight`, the name of a field, it is `(x, y, w)`.

Beside the stored fields there are "key" (the sample's key, text) and "variant" (int64).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, Array, FieldSpec

if TYPE_CHECKING:  # it imports pyarrow, which worker processes do without
    from tfprep.load.options import FieldChoice, LoaderOptions

Structure: TypeAlias = Any
"""The form in which outputs make an element: the names of outputs in a dict, in a tuple, or a single name."""

WEIGHT = "sample_weight"
PADDING = -1
"""Content of the rows that `pad` adds, as Keras marks boxes and classes that are none."""
EXTRA = {"key": FieldSpec("text", (), "string"), "variant": FieldSpec("scalar", (), "int64")}
"""Fields that every sample has in addition to those stored; a stored field of the same name takes precedence."""


@dataclass(frozen=True)
class Output:
    """One array of an element: the fields that it consists of, and its shape and dtype without the batch's axis.

    `shape` has None where samples differ; `dtype` is "string" for text. With `padded`, rows of `PADDING` follow those of the
    sample. Where batches differ in size, but the samples of a batch do not, `shapes` are those of all forms of a batch, and
    `shape` is the largest.
    """

    name: str
    fields: tuple[str, ...]
    shape: tuple[int | None, ...]
    dtype: str
    padded: bool = False
    shapes: tuple[tuple[int | None, ...], ...] = ()
    view: int = 0
    """The number of the view of a sample that it shows, where the loader makes several."""

    def of_form(self, form: int) -> Output:
        return replace(self, shape=self.shapes[form], shapes=()) if self.shapes else self

    @property
    def batch_shape(self) -> tuple[int | None, ...]:
        """The shape of a sample, with None where samples or batches differ."""
        sides = zip(*(self.shapes or (self.shape,)), strict=True)
        return tuple(side[0] if len(set(side)) == 1 else None for side in sides)

    @property
    def stacked(self) -> bool:
        return len(self.fields) > 1

    @cached_property
    def has_array(self) -> bool:
        """True if the samples of a batch are one array: they are not text, and do not differ in size."""
        return None not in self.shape and self.dtype != "string"

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one sample's array; 0 where that differs or is text."""
        return prod(self.fixed_shape) * np.dtype(self.dtype).itemsize if self.has_array else 0

    @cached_property
    def fixed_shape(self) -> tuple[int, ...]:
        """The sizes that all samples have."""
        return tuple([size for size in self.shape if size is not None])

    def empty(self, rows: int) -> Array | list[Any]:
        """An array of arbitrary content for a batch of `rows` rows, or a list of nothing where samples differ in size."""
        if None in self.shape:
            return [None] * rows
        return np.empty((rows, *self.fixed_shape), object if self.dtype == "string" else self.dtype)


@dataclass(frozen=True)
class Outputs:
    """All arrays of an element, and the structure that they form."""

    outputs: tuple[Output, ...]
    structure: Structure

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields that are read, each once."""
        return tuple(dict.fromkeys([name for output in self.outputs for name in output.fields]))

    @cached_property
    def ragged(self) -> bool:
        """True if samples differ in shape in some output, whose batches are then lists instead of arrays."""
        return any(None in output.shape for output in self.outputs)

    def pack(self, values: Mapping[str, Any]) -> Any:
        """The element with these values, given by output."""
        return mapped(self.structure, values.__getitem__)


def resolve(specs: Mapping[str, FieldSpec], options: LoaderOptions) -> Outputs:
    """The outputs that the options name; LoaderError where a name is unknown, or fields cannot be stacked or padded."""
    fields, inputs, targets, sample_weight = options.fields, options.inputs, options.targets, options.sample_weight
    outputs: dict[str, Output] = {}
    if sample_weight is not None and (inputs is None or targets is None):
        raise LoaderError("sample_weight is the third of (inputs, targets, sample_weight): name all three")
    if inputs is None:
        if targets is not None:
            raise LoaderError("targets without inputs: name both, or neither for a dict of all fields")
        names = tuple(specs) if fields is None else names_of(fields)
        structure: Structure = {name: _chosen(specs, name, name, outputs) for name in names}
    elif fields is not None:
        raise LoaderError("fields or inputs: with `inputs` and `targets` only the fields named there are read")
    else:
        structure = _chosen(specs, inputs, "inputs", outputs)
    if targets is not None:
        structure = (structure, _chosen(specs, targets, "targets", outputs))
    if sample_weight is not None:
        spec = _spec(specs, sample_weight) if isinstance(sample_weight, str) else None
        if spec is None or spec.dtype == "string" or spec.kind in ("boxes", "points"):
            raise LoaderError(f"sample_weight is the name of one stored number, or of a map, not {sample_weight!r}")
        structure = (*structure, _chosen(specs, sample_weight, WEIGHT, outputs))
    made = Outputs(tuple(outputs.values()), structure)
    return replace(made, outputs=_padded(made, specs, options.pad)) if options.pad else made


def _padded(outputs: Outputs, specs: Mapping[str, FieldSpec], pad: Mapping[str, int]) -> tuple[Output, ...]:
    """The outputs with `pad[name]` rows of the fields that `pad` names; LoaderError where that cannot be."""
    for name in pad:
        if name not in outputs.fields:
            raise LoaderError(f"pad={{{name!r}: ...}}: no such field is loaded; there are {', '.join(outputs.fields)}")
        spec = _spec(specs, name)
        has_rows = bool(spec.shape) and None not in spec.shape[1:] and spec.kind not in (*RASTER_KINDS, "text")
        if not has_rows or spec.dtype.startswith(("u", "bool")):  # which do not hold -1
            fits = "pad fills up fields of N rows of signed numbers, such as boxes"
            raise LoaderError(f"{fits}; '{name}' has the kind {spec.kind}, {spec.dtype} {list(spec.shape)}")
    return tuple(
        replace(output, shape=(pad[output.fields[0]], *output.shape[1:]), padded=True)
        if output.fields[0] in pad
        else output
        for output in outputs.outputs
    )


def _chosen(specs: Mapping[str, FieldSpec], choice: FieldChoice, path: str, outputs: dict[str, Output]) -> Structure:
    if isinstance(choice, Mapping) and choice:
        return {name: _chosen(specs, part, f"{path}/{name}", outputs) for name, part in choice.items()}
    names = names_of(choice)
    if path in outputs:
        raise LoaderError(f"two arrays are named {path!r}: leave '/' out of the names in inputs and targets")
    if len(names) == 1:
        spec = _spec(specs, names[0])
        outputs[path] = Output(path, names, spec.shape, spec.dtype)
        return path
    parts = {name: _spec(specs, name) for name in names}
    for name, spec in parts.items():
        if spec.kind not in RASTER_KINDS:
            raise LoaderError(
                f"only images, masks and maps can be stacked; '{name}' has the kind {spec.kind}: use a dict instead"
            )
    sizes = {spec.shape[:2] for spec in parts.values()}
    if len(sizes) > 1:
        shapes = ", ".join(f"'{name}' is {spec.shape}" for name, spec in parts.items())
        raise LoaderError(f"fields of one height and width can be stacked; {shapes}")
    channels = sum(channels_of(spec) for spec in parts.values())
    dtype = np.result_type(*(spec.dtype for spec in parts.values()))
    outputs[path] = Output(path, names, (*sizes.pop(), channels), dtype.name)
    return path


def names_of(choice: str | Collection[str]) -> tuple[str, ...]:
    """One name or several as a tuple; LoaderError where there is none, or where they have no order."""
    try:
        names = (choice,) if isinstance(choice, str) else tuple(choice)
    except TypeError:  # such as a number
        names = ()
    if not names or isinstance(choice, Set | Mapping) or not all(isinstance(name, str) for name in names):
        raise LoaderError(f"fields are a name, or a list of names in their order, not {choice!r}")
    if len(set(names)) < len(names):
        raise LoaderError(f"a field is named twice: {', '.join(names)}")
    return names


def _spec(specs: Mapping[str, FieldSpec], name: str) -> FieldSpec:
    known = {**EXTRA, **specs}
    if name not in known:
        raise LoaderError(f"the dataset has no field {name!r}; it has {', '.join(specs)} (and key, variant)")
    return known[name]


def channels_of(spec: FieldSpec) -> int:
    """The number of channels of a raster: 1 for [H, W]."""
    if len(spec.shape) == 2:
        return 1
    if spec.shape[2] is None:
        raise LoaderError("a raster whose samples differ in their channels cannot be stacked")
    return spec.shape[2]


def mapped(structure: Structure, value_of: Callable[[str], Any]) -> Any:
    """The structure with a value in place of each output's name."""
    if isinstance(structure, str):
        return value_of(structure)
    if isinstance(structure, tuple):
        return tuple([mapped(part, value_of) for part in structure])
    return {name: mapped(part, value_of) for name, part in structure.items()}
