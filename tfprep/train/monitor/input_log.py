"""Where an `InputMonitor` writes: JSON lines and TensorBoard."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfprep.train.charts import ScalarChart, SummaryWriter
from tfprep.train.monitor.alerts import InputWarning
from tfprep.train.monitor.samples import Sample, swap_rates

LINES = "input.jsonl"
_LAYOUT = (
    ScalarChart("share of the step spent waiting for input", ("input/wait_share",)),
    ScalarChart("wait for a batch (ms)", ("input/wait_ms/.*",)),
    ScalarChart("images a second", ("input/images_per_s",)),
    ScalarChart("elements in each buffer", ("buffers/elements/.*",)),
    ScalarChart("MB in each buffer", ("buffers/mb/.*",)),
    ScalarChart("host memory (MB)", ("machine/rss_mb", "machine/available_mb")),
    ScalarChart("swap in and out (MB/s)", ("machine/swap_.*",)),
)
_READER = ScalarChart("batches in the reader", ("reader/batches_.*",))
_GPU = ScalarChart("GPU memory (MB)", ("gpu/.*",))


class InputLog:
    """Appends to `<folder>/input.jsonl`, a line for each sample or warning; events for TensorBoard go to `<folder>/input/`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(folder / "input"))
        self._has_layout = False
        self._lines = (folder / LINES).open("a", encoding="utf-8")

    def sample(self, sample: Sample, before: Sample | None) -> None:
        """Write a sample; `before` is the sample before it, for rates."""
        self._write_line(sample.as_json())
        swapped_in, swapped_out = swap_rates(sample, before) if before else (0.0, 0.0)
        swap = {"machine/swap_in_mb_per_s": swapped_in, "machine/swap_out_mb_per_s": swapped_out}
        if not self._has_layout:
            self._has_layout = True
            charts = [*_LAYOUT, *[_READER] * bool(sample.readers), *[_GPU] * bool(sample.machine.gpus)]
            self._writer.layout("Input pipeline", charts)
        self._writer.scalars({**sample.as_scalars(), **swap}, sample.step)

    def warning(self, warned: InputWarning) -> None:
        """Write a warning."""
        self._write_line({"time": time.time(), "warning": asdict(warned)})

    def close(self) -> None:
        """Close both files."""
        self._writer.close()
        self._lines.close()

    def _write_line(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
