"""The exceptions of tfprep, all of them below `TfprepError`.

    TfprepError
    ├── RecipeError             a mistake in a recipe: where it stands, what was expected, what came
    ├── SourceError             the raw data is not laid out as the source expects
    ├── SampleError             one sample cannot be used: it is rejected, and the build goes on
    ├── BuildError              the build as a whole cannot go on
    │   ├── BuildLockedError    another build writes into this folder
    │   └── TooManyRejectsError more inputs are bad than was allowed
    ├── DatasetError            a folder is not a dataset that this version opens
    │   └── RecordError         bytes on disk are not a whole, correct record
    ├── LoaderError             the loader was asked for what it cannot deliver
    │   └── StalledPipelineError  no batch came within the time allowed
    ├── TrainError              a helper of tfprep.train was asked for what it cannot do
    │   └── RetraceError        a train step was traced again after the warm-up
    └── MissingDependencyError  an optional library is needed; says the line that installs it

A message states the rule, the value that came and the way out, and names the sample or the file.
"""

from __future__ import annotations


class TfprepError(Exception):
    """The base of every error that tfprep raises on purpose."""


class RecipeError(TfprepError):
    """A mistake in a recipe. `where` names the option, as ("store", "image"), where that is known."""

    where: tuple[str, ...] = ()


class SourceError(TfprepError):
    """The raw data is not laid out as the source expects."""


class SampleError(TfprepError):
    """One sample cannot be used.

    `stage` is where it failed (`read`, `decode`, `geometry`, `derive`, `colour`, `encode`), `field` the field that was
    being made and `path` the raw file, where there is one. Raised deep down with what is known there; `located` adds
    the rest on the way up.
    """

    def __init__(self, reason: str, *, stage: str = "", field: str = "", path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.stage = stage
        self.field = field
        self.path = path

    def located(self, *, stage: str = "", field: str = "", path: str = "") -> SampleError:
        """The same error with whatever was not known yet filled in."""
        return SampleError(
            self.reason, stage=self.stage or stage, field=self.field or field, path=self.path or path
        ).with_traceback(self.__traceback__)


class BuildError(TfprepError):
    """The build as a whole cannot go on."""


class BuildLockedError(BuildError):
    """Another build writes into this folder."""


class TooManyRejectsError(BuildError):
    """More inputs are bad than was allowed."""


class DatasetError(TfprepError):
    """A folder is not a dataset that this version opens."""


class RecordError(DatasetError):
    """Bytes on disk are not a whole, correct record.

    Attributes: `path` of the file, `record` (its number in the file, from 0, where known) and byte `offset` of its frame.
    """

    def __init__(self, reason: str, *, path: str, record: int | None, offset: int) -> None:
        number = "record" if record is None else f"record {record}"
        super().__init__(f"{path}: {number} at byte {offset}: {reason}")
        self.reason = reason
        self.path = path
        self.record = record
        self.offset = offset


class LoaderError(TfprepError):
    """The loader was asked for what it cannot deliver."""


class StalledPipelineError(LoaderError):
    """No batch came within the time allowed."""


class TrainError(TfprepError):
    """A helper of tfprep.train was asked for what it cannot do."""


class RetraceError(TrainError):
    """A train step was traced again after the warm-up."""


class MissingDependencyError(TfprepError, ImportError):
    """An optional library is needed; the message says the line that installs it."""
