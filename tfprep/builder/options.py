"""Options of a build, what it returns, and what it reports while it runs: numbers for a progress bar, and events."""

from __future__ import annotations

import json
import operator
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from tfprep.checks import is_number
from tfprep.errors import BuildError, summary_of
from tfprep.limits import usable_cpus


@dataclass(frozen=True)
class BuildProgress:
    """The progress of a build.

    Attributes:
      samples_done, samples: Number of samples made, of those in shards that have to be built; on a cluster those of finished
        parts.
      shards_done, shards: The same in shards.
      rejected: Number of rejected samples in the shards that are done.
      seconds: Time since the build began.
    """

    samples_done: int
    samples: int
    shards_done: int
    shards: int
    rejected: int
    seconds: float


@dataclass(frozen=True)
class BuildEvent:
    """One step of a build, or one problem.

    Attributes:
      name: `planned`, `shard`, `crash`, `lost` (a sample that crashes is left out), `differing` (shards hold records of
        different forms), `warning`, `code` (the user's code changed, and nothing else), `empty` (a split, class or field
        without values), `part` (a part is complete), `published`, `report` (it could not be written) or `failed`.
      text: One line for people.
      seconds: Time since the build began.
      facts: The same as plain JSON; on a cluster also the `node` of a shard.
    """

    name: str
    text: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps({"event": self.name, "seconds": round(self.seconds, 3), **self.facts, "text": self.text})


OnProgress: TypeAlias = Callable[[BuildProgress], None]
OnEvent: TypeAlias = Callable[[BuildEvent], None]
LogEvent: TypeAlias = Callable[..., None]
"""A function that reports an event: `log_event(name, text, **facts)`."""


@contextmanager
def logged_events(log_path: Path, on_event: OnEvent | None) -> Iterator[LogEvent]:
    """Yield a function that sends events to `on_event` and to a log. A build that fails ends with `failed`.

    A warning that no `on_event` receives becomes a Python warning.
    """
    started = time.monotonic()
    log: TextIO | None = None
    with suppress(OSError):
        log_path.parent.mkdir(exist_ok=True)
        log = log_path.open("a", encoding="utf-8", errors="backslashreplace")

    def log_event(name: str, text: str, **facts: Any) -> None:
        event = BuildEvent(name, text, time.monotonic() - started, facts)
        with suppress(OSError):  # A log that cannot be written stops no build.
            if log is not None:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.name}: {event.text}\n")
                log.flush()
        if on_event is not None:
            on_event(event)
        elif name == "warning":
            warnings.warn(text, stacklevel=2)

    try:
        yield log_event
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        text = "stopped; the same command continues" if stopped else summary_of(error)
        log_event("failed", text, error=type(error).__name__)
        raise
    finally:
        if log is not None:
            with suppress(OSError):
                log.close()


# --- options and results -----------------------------------------------------------------------------------------------


ITEM_TIMEOUT_S = 300.0
"""Default of `item_timeout_s`: the slowest samples seen (16-bit PNGs of 13,000 x 13,000 pixels) took 90 s."""


@dataclass(frozen=True)
class BuildSummary:
    """The result of a build: its work, and the content of the dataset now.

    Attributes:
      out: The folder of the dataset.
      path: The folder of its current version.
      samples: Number of samples in the dataset.
      records: Number of records: a sample has one for each variant of its split.
      shards: Number of shards; each shard has one file for each variant.
      bytes: Size of all shard files.
      rejected: Number of samples that were left out; `rejects.jsonl` lists them.
      first_rejected: The file or key of the first of them, and why; "" where there is none.
      passed_over: Number of files that the source did not read, by reason, such as "outside the pattern".
      splits: By split, its `samples`, `variants`, `shards` and `bytes`.
      built_samples: Number of samples in the shards that this build made; the others were up to date.
      built_shards: Number of shards that this build made.
      seconds: Duration of the build.
    """

    out: Path
    path: Path
    samples: int
    records: int
    shards: int
    bytes: int
    rejected: int
    first_rejected: str
    passed_over: Mapping[str, int]
    splits: Mapping[str, Mapping[str, int]]
    built_samples: int
    built_shards: int
    seconds: float


@dataclass(frozen=True)
class PartSummary:
    """The result of one part of a build.

    Attributes:
      out: The folder of the dataset.
      part, parts: Which part of how many.
      shards: Number of shards of this part.
      samples: Number of samples in them, with those that were rejected.
      rejected: Number of samples that were left out.
      built_samples, built_shards: What this run built; the rest was up to date.
      seconds: Duration of the run.
    """

    out: Path
    part: int
    parts: int
    shards: int
    samples: int
    rejected: int
    built_samples: int
    built_shards: int
    seconds: float


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build. Except for `limit`, `hash`, `reshard` and `on_warning`, no option changes what is built.

    Attributes:
      workers: Number of worker processes; 0 builds in this process, None takes one for each usable core. On a cluster it is
        the most parts that are built at a time; None takes one for each CPU.
      limit: Build only this many samples, the same ones every time, for a first look.
      on_bad: "skip" leaves bad samples out and lists them in `rejects.jsonl`; "fail" ends the build at the first one.
      on_warning: "keep" samples with warnings, such as a damaged JPEG that can be decoded, or an annotation that was dropped; the
        report lists them. "reject" treats them as bad. A change builds all shards again.
      max_bad: Publish nothing if a larger share of the samples (0 to 1) is bad.
      item_timeout_s: Seconds that one sample may take. Its process is then killed and the shard is built again; the sample is
        rejected if it takes too long again.
      replace: Allow the build to replace a finished dataset in `out` that is another one: of another name, of other samples,
        or of more samples than `limit`.
      hash: Compute the perceptual hash of each image for the index, from which `tfprep check` finds near duplicates. Shards
        that are up to date are not built again for it; `tfprep check` computes what is missing.
      reshard: Give each split the number of shards that a new dataset of its size would have, instead of that of its first
        build. A split whose number changes is built again; later builds keep the new number.
      accept_code: Keep the shards for which nothing but your own code has changed, as if the present code had built them. The
        report says how many there are.
      keep: The number of older versions that stay besides the current one. One that somebody reads stays too. At an object store
        all stay until `tfprep clean` removes them.
      verify: Read all shards, and build again those whose bytes are not those that were built.

    Raises:
      BuildError: An option is out of range.
    """

    workers: int | None = None
    limit: int | None = None
    on_bad: Literal["skip", "fail"] = "skip"
    max_bad: float = 1.0
    item_timeout_s: float = ITEM_TIMEOUT_S
    replace: bool = False
    hash: bool = True
    reshard: bool = False
    accept_code: bool = False
    on_warning: Literal["keep", "reject"] = "keep"
    keep: int = 1
    verify: bool = False

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("limit", 1), ("keep", 0)):
            value = getattr(self, name)
            if value is None:
                continue
            if not hasattr(value, "__index__"):
                raise BuildError(f"{name} is a whole number, not {value!r}")
            if value < least:
                raise BuildError(f"{name} is at least {least}, not {value}")
            object.__setattr__(self, name, operator.index(value))  # JSON takes no number of NumPy's
        if not is_number(self.item_timeout_s) or not self.item_timeout_s > 0:
            raise BuildError(f"item_timeout_s is more than 0 seconds, not {self.item_timeout_s!r}")
        for name, choices in (("on_bad", ("skip", "fail")), ("on_warning", ("keep", "reject"))):
            if (chosen := getattr(self, name)) not in choices:
                raise BuildError(f"{name} is {choices[0]!r} or {choices[1]!r}, not {chosen!r}")
        if not is_number(self.max_bad) or not 0 <= self.max_bad <= 1:
            raise BuildError(f"max_bad is a share from 0 to 1, such as 0.01, not {self.max_bad!r}")


def worker_count(options: BuildOptions) -> int:
    """Return the number of worker processes; 0 means that this process builds."""
    return usable_cpus() if options.workers is None else options.workers


@dataclass(frozen=True)
class Part:
    """Part `number` (from 0) of `parts`.

    Raises:
      BuildError: The number is not one of them.
    """

    number: int
    parts: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.parts:
            last = f"0 to {self.parts - 1}" if self.parts > 0 else "none"
            raise BuildError(f"of {self.parts} parts, the numbers are {last}; there is no part {self.number}")

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def shards(self, of_plan: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return those of all shards of a plan, as split and number, that are of this part."""
        return list(islice(of_plan, self.number, None, self.parts))


def parse_part(text: str) -> Part:
    """Parse "3/16". Raises BuildError."""
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if not match:
        raise BuildError(f"a part is written as NUMBER/PARTS, for example 3/16; got {text!r}")
    return Part(*map(int, match.groups()))
