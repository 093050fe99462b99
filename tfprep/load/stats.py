"""Counters and reports of a pipeline, as plain numbers and text."""

from __future__ import annotations

from typing import Any

from tfprep.limits import usable_cpus
from tfprep.load.pipeline import NOTHING, Pipeline
from tfprep.load.reader.cache import DecodedCache, EncodedCache


def snapshot(pipeline: Pipeline) -> dict[str, Any]:
    """Counters since the loader was made, over all its iterators.

    `batches_ready` and `batches_in_flight` are current values. `wait_s` is how long the consumer waited for batches, in
    `waits` waits; `read_s`, `decode_s` and `idle_s` are summed over the reading threads.
    """
    readers, counts = pipeline.readers, pipeline.counts
    return {
        **{name: counts[name] for name in NOTHING if name != "records"},
        "batches_ready": sum(reader.ready for reader in readers),
        "batches_in_flight": sum(reader.in_flight for reader in readers),
        "prefetch": max((reader.prefetch for reader in readers), default=pipeline.memory.prefetch),
        "threads": sum(len(reader.workers) for reader in readers),
        "cache_bytes": 0 if pipeline.cache is None else pipeline.cache.nbytes,
        "requests": pipeline.fetched.requests,
        "bytes_fetched": pipeline.fetched.bytes,
        "bad_records": pipeline.bad.count,
        "rows_lost": pipeline.bad.rows_lost,
    }


def report(pipeline: Pipeline) -> dict[str, Any]:
    """What the loader chose (memory, cache, threads) and found (bad records), and its `stats`."""
    memory, options = pipeline.memory, pipeline.options
    return {
        "samples": pipeline.schedule.sampler.size,
        "training": pipeline.training,
        "steps_per_epoch": pipeline.steps_per_epoch,
        "left_out_per_epoch": pipeline.left_out,
        "order": pipeline.schedule.order.name,
        "variants": pipeline.variants.choice,
        "memory": {
            "budget_bytes": memory.budget,
            "batch_bytes": memory.batch_bytes,
            "prefetch": memory.prefetch,
            "batches_bytes": memory.batches_bytes,
            "workers_bytes": pipeline.workers.nbytes,
            "index_bytes": pipeline.table.nbytes,
        },
        "cache": _cache(pipeline),
        "fetching": {**pipeline.fetching, "memory_bytes": memory.fetch_bytes} if pipeline.is_remote else None,
        "local": None
        if pipeline.local is None
        else pipeline.local.report(pipeline.first_needed, pipeline.shard_records),
        "threads": pipeline.options.threads or usable_cpus(),
        "workers": pipeline.workers_report(),
        "verify": options.verify,
        "on_bad": options.on_bad,
        "bad_records": pipeline.bad.report(),
        "stats": snapshot(pipeline),
    }


def summary(pipeline: Pipeline, kind: str, epochs: int | None) -> str:
    """One line: what is read, for what, and how many steps a pass has."""
    names = ", ".join(dict.fromkeys(f"{source.dataset.name}/{source.split}" for source in pipeline.sources))
    size, steps = pipeline.options.batch_size, pipeline.passes.steps(epochs)
    if not pipeline.training:
        return (
            f"<{kind} of {names} for evaluation (training=False): {pipeline.schedule.size:,} samples as they are, in "
            f"{pipeline.schedule.order.name} order, {steps:,} steps of {size}>"
        )
    left = f"; {pipeline.left_out:,} samples are left out, other ones each time" if pipeline.left_out else ""
    passes = {None: "a pass has no end", 1: "a pass is an epoch"}.get(epochs, f"a pass is {epochs} epochs")
    return (
        f"<{kind} of {names} for training (training=True): {passes}; an epoch is {pipeline.schedule.size:,} samples in "
        f"{pipeline.schedule.order.name} order, {pipeline.steps_per_epoch:,} steps of {size}{left}>"
    )


def _cache(pipeline: Pipeline) -> dict[str, Any]:
    cache = pipeline.cache
    if isinstance(cache, DecodedCache):
        summary = {"kind": "decoded", "capacity": cache.capacity, "of": pipeline.table.records}
        return {**summary, "records": cache.records, "bytes": cache.nbytes}
    if isinstance(cache, EncodedCache):
        return {"kind": "encoded", "of": pipeline.table.records, "records": cache.records, "bytes": cache.nbytes}
    return {"kind": "none"}
