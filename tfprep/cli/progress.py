"""A build's progress on standard error: a bar in a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from tfprep.cli import text

if TYPE_CHECKING:
    from tfprep.build import BuildProgress

_PLAIN_S = 30.0
_QUIET_S = 2.0


class BuildBar:
    """Shown only once a build has taken two seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._told_s = 0.0

    def __enter__(self) -> BuildBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def update(self, progress: BuildProgress) -> None:
        if self._quiet:
            return
        if self._terminal:
            self._draw(progress)
        elif progress.seconds - self._told_s >= _PLAIN_S:
            self._told_s = progress.seconds
            click.echo(_line(progress), err=True)

    def _draw(self, progress: BuildProgress) -> None:
        if self._bar is None:
            if progress.seconds < _QUIET_S:
                return
            from tqdm import tqdm

            self._bar = tqdm(total=progress.samples, unit=" images", dynamic_ncols=True, smoothing=0.1)
        self._bar.set_postfix_str(
            f"shard {progress.shards_done}/{progress.shards}, {progress.rejects} rejected", refresh=False
        )
        self._bar.update(progress.samples_done - self._bar.n)


def _line(progress: BuildProgress) -> str:
    rate = progress.samples_done / progress.seconds
    left = (progress.samples - progress.samples_done) / rate if rate else 0
    return (
        f"{progress.samples_done:,} of {progress.samples:,} images, {rate:,.0f} a second, {text.duration(left)} left, "
        f"shard {progress.shards_done} of {progress.shards}, {progress.rejects} rejected"
    )
