"""The exceptions of tfprep, all of them below `TfprepError`.

    TfprepError
    ├── RecipeError             a recipe has a mistake: its position, what was expected, what was found
    ├── SourceError             the raw data is not laid out as the source expects
    ├── SampleError             one sample cannot be used: it is rejected, and the build goes on
    ├── BuildError              the build as a whole cannot go on
    │   ├── BuildLockedError    another build writes into this folder
    │   └── TooManyRejectedError more inputs are bad than was allowed
    ├── DatasetError            a folder is not a dataset that this version opens
    │   ├── NothingToCompareError  no image has a digest or a hash, and none is stored
    │   ├── StorageError        a store of objects refuses, cannot be reached, or has no such object
    │   │   └── ObjectChangedError  another process wrote the object that was to be replaced
    │   └── RecordError         a record on disk is damaged, or is not the one that the index describes
    ├── LoaderError             the loader cannot do what its options ask for
    │   └── StalledPipelineError  no batch arrived within the time allowed
    ├── TrainError              a function of tfprep.train cannot do what it was asked for
    │   └── RetraceError        a train step was traced again after the warm-up
    └── MissingDependencyError  an optional package is not installed; the message gives the line that installs it

A message states the rule, the value received and what to do, and names the sample or the file.
"""

from __future__ import annotations

from functools import partial
from typing import Any

_LONGEST = 20_000
"""Characters of a message that are shown: enough for the stacks of all threads, too few for the bytes of an image."""


def summary_of(error: BaseException) -> str:
    """Return the type of an exception and its text, also of one whose own `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # such as SystemExit
        return f"{type(error).__name__} (its text cannot be shown: {type(fault).__name__} in __str__)"


class TfprepError(Exception):
    """The base of every error that tfprep raises on purpose."""

    def __str__(self) -> str:
        """The message; of a very long one, such as one that quotes a wrong value of megabytes, the beginning and the end."""
        text, half = super().__str__(), _LONGEST // 2
        if len(text) <= _LONGEST:
            return text
        return f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"


class RecipeError(TfprepError):
    """A recipe has a mistake."""


class SourceError(TfprepError):
    """The raw data is not laid out as the source expects."""


class SampleError(TfprepError):
    """One sample cannot be used.

    A function raises it with what it knows; its callers add the rest with `located`.

    Attributes:
        reason: What is wrong.
        stage: The stage that failed: `read`, `decode`, `geometry`, `derive`, `color` or `encode`; "" if not known.
        field: The field that was computed; "" if not known.
        path: The raw file; "" if not known, or if there is none.
    """

    def __init__(self, reason: str, *, stage: str = "", field: str = "", path: str = "") -> None:
        super().__init__(reason)
        self.reason = f"{reason}"  # a user's function may give something else
        self.stage = stage
        self.field = field
        self.path = path

    def located(self, *, stage: str = "", field: str = "", path: str = "") -> SampleError:
        """Return the same error with the attributes that were not known yet."""
        return SampleError(
            self.reason, stage=self.stage or stage, field=self.field or field, path=self.path or path
        ).with_traceback(self.__traceback__)

    @property
    def place(self) -> str:
        """The stage and the field, for messages; "" if the stage is not known."""
        return f"{self.stage} of '{self.field}'" if self.field else self.stage


class BuildError(TfprepError):
    """The build as a whole cannot go on."""


class BuildLockedError(BuildError):
    """Another build writes into this folder."""


class TooManyRejectedError(BuildError):
    """More inputs are bad than was allowed."""


class DatasetError(TfprepError):
    """A folder is not a dataset that this version opens."""


class NothingToCompareError(DatasetError):
    """No image of a dataset has a digest or a hash, and none is stored from which one could be computed."""


class StorageError(DatasetError):
    """A store of objects refuses, cannot be reached, or has no such object."""


class ObjectChangedError(StorageError):
    """Another process wrote the object that was to be replaced only if unchanged."""


class RecordError(DatasetError):
    """A record on disk is damaged, or is not the one that the index describes.

    Attributes:
        reason: What is wrong.
        path: The shard.
        record: The record's number in the shard, from 0; None if not known.
        offset: The byte at which the record's frame begins.
    """

    def __init__(self, reason: str, *, path: str, record: int | None, offset: int) -> None:
        number = "record" if record is None else f"record {record}"
        super().__init__(f"{path}: {number} at byte {offset}: {reason}")
        self.reason = reason
        self.path = path
        self.record = record
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        """Allow pickling: workers of other processes, such as PyTorch's, pass it on."""
        return partial(RecordError, self.reason, path=self.path, record=self.record, offset=self.offset), ()


class LoaderError(TfprepError):
    """The loader cannot do what its options ask for."""


class StalledPipelineError(LoaderError):
    """No batch arrived within the time allowed."""


class TrainError(TfprepError):
    """A function of tfprep.train cannot do what it was asked for."""


class RetraceError(TrainError):
    """A train step was traced again after the warm-up."""


class MissingDependencyError(TfprepError, ImportError):
    """An optional package is not installed; the message gives the line that installs it."""
