"""Forms: kind, dtype and rank of a stored field, which are one for a whole dataset.

Records may differ all the same: one mask of 16 bits among thousands of 8. No shard can know which is the odd one, so each counts
its records by form; when all are built the most common form stands, and the shards that hold another are built anew without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tfprep.errors import SampleError
from tfprep.fields import FieldSpec


@dataclass(frozen=True)
class Form:
    """How many samples have a form, and what those of them that were written are together; None where none was."""

    samples: int
    spec: FieldSpec | None


Forms: TypeAlias = Mapping[str, Mapping[str, Form]]
"""By field, then by the form's name."""


def form_of(spec: FieldSpec) -> str:
    """The form's name, as `uint8 [H, W, C]`."""
    axes = ("H", "W", "C", *(f"D{axis}" for axis in range(3, len(spec.shape))))[: len(spec.shape)]
    return f"{spec.kind} of {spec.dtype} [{', '.join(axes)}]"


def merge(before: FieldSpec | None, after: FieldSpec | None) -> FieldSpec | None:
    """The spec that holds for both, of one form: a size that differs becomes None."""
    if before is None or after is None or before == after:
        return before or after
    shape = tuple(a if a == b else None for a, b in zip(before.shape, after.shape, strict=True))
    return FieldSpec(before.kind, shape, before.dtype)


def of_variants(variants: Iterable[Mapping[str, FieldSpec]]) -> dict[str, FieldSpec]:
    """The specs of one sample's variants together. SampleError where they differ in form."""
    whole: dict[str, FieldSpec] = {}
    for specs in variants:
        for name, spec in specs.items():
            if form_of(whole.setdefault(name, spec)) != form_of(spec):
                reason = f"its variants differ: {form_of(whole[name])} and {form_of(spec)}"
                raise SampleError(reason, stage="encode", field=name)
            whole[name] = merge(whole[name], spec) or spec
    return whole


def check_expected(specs: Mapping[str, FieldSpec], expected: Mapping[str, str]) -> None:
    """SampleError where a field has not the form that most of the dataset's records have."""
    for name, form in expected.items():
        if name in specs and form_of(specs[name]) != form:
            reason = (
                f"it is {form_of(specs[name])}, most samples have {form}; a field has one dtype and rank in a dataset"
            )
            raise SampleError(reason, stage="encode", field=name)


def counted(forms: Forms, specs: Mapping[str, FieldSpec], *, written: bool) -> dict[str, dict[str, Form]]:
    """`forms` and one more sample."""
    after = {name: dict(of_field) for name, of_field in forms.items()}
    for name, spec in specs.items():
        of_field = after.setdefault(name, {})
        before = of_field.get(form_of(spec), Form(0, None))
        of_field[form_of(spec)] = Form(before.samples + 1, merge(before.spec, spec) if written else before.spec)
    return after


def most_common(shards: Iterable[Forms]) -> dict[str, str]:
    """The form that most samples have, by field; of equals, the first by name."""
    totals: dict[str, Counter[str]] = {}
    for forms in shards:
        for name, of_field in forms.items():
            totals.setdefault(name, Counter()).update({form: one.samples for form, one in of_field.items()})
    return {name: min(total, key=lambda form: (-total[form], form)) for name, total in totals.items()}


def expected_of(forms: Forms, common: Mapping[str, str]) -> dict[str, str]:
    """What a shard with these forms must be told to expect: the common form of each field in which it has another."""
    return {name: common[name] for name, of_field in forms.items() if set(of_field) != {common[name]}}
