"""The stages of a sample as contexts: they add up the time spent, and name the stage and the field in whatever is raised inside.

They are classes because a sample passes some fifteen of them, and a context from a generator takes three times as long.
"""

from __future__ import annotations

import signal
from time import perf_counter
from types import TracebackType

from tfprep.errors import BuildError, SampleError, summary_of


class TimedStage:
    """A context that adds its duration to `seconds[stage]`."""

    def __init__(self, seconds: dict[str, float], stage: str) -> None:
        self._seconds, self.stage = seconds, stage
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + perf_counter() - self._started


class SampleStage(TimedStage):
    """`TimedStage`, and what is raised inside becomes a SampleError that names the stage and the field.

    That is any exception of a user's function, such as SystemExit and GeneratorExit; KeyboardInterrupt only where Ctrl-C is
    ignored, as in worker processes. A failed import ends the build as a BuildError: it is no fault of the sample, and another
    machine of the build may have what is missing here.
    """

    def __init__(self, seconds: dict[str, float], stage: str, field: str = "") -> None:
        super().__init__(seconds, stage)
        self._field = field

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, BuildError):  # a stage inside this one has named itself
            return
        if isinstance(error, SampleError):
            raise error.located(stage=self.stage, field=self._field) from error
        if isinstance(error, ImportError):
            where = f"{self.stage} of '{self._field}'" if self._field else self.stage
            raise BuildError(f"{where}: {summary_of(error)}") from error
        from_keyboard = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if error is not None and not from_keyboard:
            raise SampleError(summary_of(error), stage=self.stage, field=self._field) from error
