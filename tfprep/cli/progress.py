"""Progress of a build on standard error: a bar in a terminal, otherwise a line every 30 seconds."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfprep.cli import text

if TYPE_CHECKING:
    from tfprep.builder import BuildProgress, NodeProgress, WorkerProgress

_PLAIN_S = 30.0
_QUIET_S = 2.0


class BuildBar:
    """A progress bar that appears two seconds after the start of a build."""

    def __init__(self, quiet: bool, show_workers: bool = False) -> None:
        self._quiet = quiet
        self._show_workers = show_workers
        self._lines: list[Any] = []
        self._terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._printed_s = 0.0

    def __enter__(self) -> BuildBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for bar in (*self._lines, *([self._bar] if self._bar is not None else [])):
            bar.close()
        self._bar, self._lines = None, []

    def update(self, progress: BuildProgress) -> None:
        if self._quiet:
            return
        if self._terminal:
            self._draw(progress)
        elif progress.seconds - self._printed_s >= _PLAIN_S:
            self._printed_s = progress.seconds
            text.echo(_line(progress), err=True)
            for detail in self._details(progress):
                text.echo(detail, err=True)

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
        self._draw_details(self._details(progress))

    def _draw_details(self, details: list[str]) -> None:
        from tqdm import tqdm

        while len(self._lines) < len(details):
            self._lines.append(tqdm(position=len(self._lines) + 1, bar_format="{desc}", leave=False))
        for line, detail in zip(self._lines, details, strict=False):
            line.set_description_str(detail)

    def _details(self, progress: BuildProgress) -> list[str]:
        """Return the lines below the bar: one for each node of a cluster, and for each worker if that is asked for."""
        nodes = [_node(node, progress) for node in progress.nodes]
        return nodes + (list(map(_worker, progress.workers)) if self._show_workers else [])


def _node(node: NodeProgress, progress: BuildProgress) -> str:
    busy = sum(worker.node == node.node and worker.shard is not None for worker in progress.workers)
    rate = node.samples / progress.seconds if progress.seconds else 0.0
    state = f"{busy} workers busy" if node.state == "joined" else node.state
    return f"  {node.node}: {state}, {node.shards} shards, {node.samples:,} images, {rate:,.0f} images/s"


def _worker(worker: WorkerProgress) -> str:
    process = f"{worker.node} process {worker.process}" if worker.node else f"process {worker.process}"
    if worker.shard is None:
        return f"  {process}: idle"
    item = f"{worker.key}, for {text.duration(worker.seconds)}" if worker.key is not None else "finishing"
    return f"  {process}: {worker.split} {worker.shard}: {item}"


def _line(progress: BuildProgress) -> str:
    rate = progress.samples_done / progress.seconds
    left = text.duration((progress.samples - progress.samples_done) / rate) if rate else "unknown time"
    return (
        f"{progress.samples_done:,} of {progress.samples:,} images, {rate:,.0f} images/s, {left} left, "
        f"shard {progress.shards_done} of {progress.shards}, {progress.rejects} rejected"
    )
