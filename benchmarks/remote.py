"""Images per second from an object store, by its latency, in the three orders and with the local cache, beside other pipelines.

Run: python benchmarks/remote.py [--images 3000] [--latency 1 10 30 100] [--seconds 4] [--data FOLDER] [--json FILE]

A server in a process of its own speaks as much of S3 as reading takes (GET of ranges and HEAD) on loopback, and waits for the
latency before each answer. It sends a dataset of photo-like JPEG images of 224 x 224 pixels, about 37 kB each, in 8 shards, which
every candidate decodes to batches of 64. In each round every candidate runs for some seconds, after as many to fill its buffers;
figures are medians over the rounds.

- "limit": 16 threads fetch ranges of 8 MB and decode nothing: what this server sends.
- "sequential", "block" (of 256 records), "global": numpy_loader without a cache and with memory_budget="512MB".
- "one by one": a request a record in 16 threads, each made when the record is needed, as tfprep did before it fetched ahead.
- "cache": global order, all shards in the local cache; "folder": the same from a local folder.
- "tf.data": TensorFlow does not read s3://. Record offsets are shuffled, and `map` fetches with obstore in 64 parallel calls.
- "fsspec": what one client takes for the same 16 requests of 8 MB at a time, with s3fs; "obstore" likewise.
- "streaming": MosaicML Streaming from MDS shards on the same server, where mosaicml-streaming is installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BATCH = 64
RANGE_BYTES = 8 << 20
BUCKET = "bench"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


# --- the server --------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder, delay_s = Path(), 0.0

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, *, send: bool) -> None:
        time.sleep(self.delay_s)
        path = self.folder / self.path.partition("?")[0].lstrip("/").removeprefix(f"{BUCKET}/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, stop = (int(match[1]), min(int(match[2]) + 1, size)) if match else (0, size)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{size}"')
        self.send_header("Last-Modified", "Sun, 01 Jan 2023 00:00:00 GMT")
        self.end_headers()
        if send:
            self.wfile.flush()
            with path.open("rb") as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)


def serve(folder: Path, latency_ms: float) -> None:
    Handler.folder, Handler.delay_s = folder, latency_ms / 1e3
    ThreadingHTTPServer.request_queue_size = 256
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    with suppress(BrokenPipeError, ConnectionResetError):
        server.serve_forever()


@contextmanager
def server(folder: Path, latency_ms: float) -> Iterator[None]:
    """Run the server in a process of its own, with the environment variables that lead to it."""
    command = [sys.executable, __file__, "--serve", str(folder), str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout
        port = int(process.stdout.readline())
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_REGION="us-east-1",
        )
        yield
    finally:
        process.kill()
        process.wait()


# --- the candidates ----------------------------------------------------------------------------------------------------


def loader(place: str, **options: Any) -> Iterator[int]:
    """Batches of tfprep: the number of images of each."""
    import tfprep

    options = {"cache": False, "memory_budget": "512MB", "seed": 1, "workers": "threads", **options}
    batches = tfprep.open(place).numpy_loader("train", BATCH, **options).repeat()
    try:
        for batch in batches:
            yield len(batch["label"])
    finally:
        batches.close()


def cached(place: str, folder: Path) -> Iterator[int]:
    """The loader with all shards in the cache."""
    import tfprep

    with_cache = tfprep.open(place).numpy_loader("train", BATCH, cache=False, workers="threads", local=folder)
    next(iter(with_cache))
    while with_cache.report()["local"]["hits"] < 1.0:
        time.sleep(0.05)
    with_cache.close()
    yield from loader(place, local=folder)


def one_by_one(place: str) -> Iterator[int]:
    """A request a record, made by the thread that needs it: the loader with nothing fetched ahead."""
    from tfprep.load.reader import ahead

    start, ahead.ReadAhead.start = ahead.ReadAhead.start, lambda self: None
    try:
        yield from loader(place, threads=16)
    finally:
        ahead.ReadAhead.start = start


def ranges(place: str, read: Callable[[str, int, int], Any], image_bytes: float) -> Iterator[int]:
    """Ranges of `RANGE_BYTES` by 16 threads, as the number of images that have so many bytes."""
    import tfprep

    files = [file for files in tfprep.open(place).splits["train"].files for file in files]
    parts = [
        (f.name, start, min(start + RANGE_BYTES, f.bytes)) for f in files for start in range(0, f.bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(16) as pool:
        while True:
            for size in pool.map(lambda part: len(read(*part)), parts):
                yield round(size / image_bytes)


def with_obstore(place: str) -> Callable[[str, int, int], Any]:
    from tfprep.storage.store import open_store

    return open_store(place).read


def with_fsspec(place: str) -> Callable[[str, int, int], Any]:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True)
    return lambda name, start, stop: files.cat_file(f"{place.removeprefix('s3://')}/{name}", start=start, end=stop)


def tf_data(place: str) -> Iterator[int]:
    """A tf.data pipeline that fetches records by offset."""
    import tensorflow as tf

    import tfprep
    from tfprep.storage.store import open_store

    data, store = tfprep.open(place), open_store(place)
    index = data.index("train", 0, ["shard", "image_offset", "image_size", "label"])
    shard, offset, size, label = (index.column(name).to_numpy() for name in index.column_names)
    names = [file.name for file in data.splits["train"].files[0]]

    def fetch(number: Any) -> bytes:
        first = int(offset[number])
        return bytes(store.read(names[shard[number]], first, first + int(size[number])))

    def load(number: Any) -> Any:
        content = tf.numpy_function(fetch, [number], tf.string)
        image = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, (224, 224, 3)), tf.gather(label, number)

    numbers = tf.data.Dataset.range(len(label)).shuffle(len(label)).repeat()
    batches = numbers.map(load, num_parallel_calls=64, deterministic=False).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    for images, _ in batches:
        yield len(images)


def streaming(place: str, local: Path) -> Iterator[int]:
    """MosaicML Streaming from the MDS shards beside the dataset, decoded by PIL, with two workers."""
    import streaming as mosaic
    import torch

    mosaic.base.util.clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    for epoch in itertools.count():  # each epoch fetches: the local folder is a new one
        data = mosaic.StreamingDataset(
            remote=f"{place}/mds", local=str(local / f"{epoch}"), shuffle=True, batch_size=BATCH
        )
        batches = torch.utils.data.DataLoader(data, BATCH, num_workers=2, collate_fn=_decoded)
        yield from batches


def _decoded(samples: Any) -> int:
    import simplejpeg

    for sample in samples:
        simplejpeg.decode_jpeg(sample["image"])
    return len(samples)


# --- the measurement -----------------------------------------------------------------------------------------------------


def rate(batches: Iterator[int], seconds: float) -> float:
    """Images per second over `seconds`, after as many that are not counted."""
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            next(batches)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            count += next(batches)
        return count / (time.perf_counter() - begin)
    finally:
        close = getattr(batches, "close", None)
        if close:
            close()


def candidates(folder: Path, image_bytes: float, scratch: Path) -> dict[str, Callable[[], Iterator[int]]]:
    place = f"s3://{BUCKET}/data"
    made = itertools.count()
    chosen: dict[str, Callable[[], Iterator[int]]] = {
        "limit": lambda: ranges(place, with_obstore(place), image_bytes),
        "sequential": lambda: loader(place, order="sequential"),
        "block": lambda: loader(place, order="block", block=256, window=4),
        "global": lambda: loader(place),
        "one by one": lambda: one_by_one(place),
        "cache": lambda: cached(place, scratch / "cache"),
        "folder": lambda: loader(str(folder / "data")),
        "tf.data": lambda: tf_data(place),
        "obstore": lambda: ranges(place, with_obstore(place), image_bytes),
    }
    with suppress(ImportError):
        import s3fs  # noqa: F401

        chosen["fsspec"] = lambda: ranges(place, with_fsspec(place), image_bytes)
    with suppress(ImportError):
        import streaming as mosaic  # noqa: F401

        chosen["streaming"] = lambda: streaming(place, scratch / f"mds{next(made)}")
    return chosen


def prepare(folder: Path, count: int) -> float:
    """Write the dataset, and MDS shards of the same images where Streaming is installed; return the bytes of an image."""
    import loader_data

    import tfprep
    from tfprep import codecs
    from tfprep.dataset.digests import sha256_of
    from tfprep.dataset.manifest import seal

    path = loader_data.write(folder / "data", codecs.Jpeg(95), count, shards=8)
    document = json.loads((path / "tfprep.json").read_bytes())
    for file in document["splits"]["train"]["files"][0]:
        file["sha256"] = sha256_of(path / file["name"])  # the cache compares it
    document.pop("sha256")
    (path / "tfprep.json").write_text(seal(document))
    files = tfprep.open(path).splits["train"].files[0]
    with suppress(ImportError):
        from streaming import MDSWriter

        with MDSWriter(out=str(path / "mds"), columns={"image": "bytes", "label": "int"}, size_limit=1 << 24) as writer:
            for image in loader_data.images(count):
                content = codecs.Jpeg(95).encode(image)[""]
                writer.write({"image": content[0] if isinstance(content, list) else content, "label": 0})
    return sum(file.bytes for file in files) / count


def _image_bytes(folder: Path, count: int) -> float:
    """The bytes of an image of a dataset that an earlier run wrote; 0 if there is none of this size."""
    import tfprep

    if not (folder / "data" / "tfprep.json").exists():
        return 0.0
    split = tfprep.open(folder / "data").splits["train"]
    return split.bytes / count if split.samples == count else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3000, help="Images of the dataset")
    parser.add_argument("--latency", type=float, nargs="+", default=[1, 10, 30, 100], help="Latencies in milliseconds")
    parser.add_argument("--seconds", type=float, default=4.0, help="Measured seconds per candidate and round")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds")
    parser.add_argument("--only", nargs="+", help="Names of the candidates to measure")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="Write the dataset there, or take the one that is there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="File for the results")
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "MS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve[0]), float(options.serve[1]))
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, scratch = options.data or Path(name), Path(name) / "scratch"
        image_bytes = _image_bytes(folder, options.images) or prepare(folder, options.images)
        for latency in options.latency:
            with server(folder, latency):
                rates: dict[str, list[float]] = {}
                for _ in range(options.rounds):
                    for candidate, begin in candidates(folder, image_bytes, scratch).items():
                        if not options.only or candidate in options.only:
                            rates.setdefault(candidate, []).append(rate(begin(), options.seconds))
            result[f"{latency:g} ms"] = {name: statistics.median(values) for name, values in rates.items()}
            shown = "  ".join(f"{name} {value:,.0f}" for name, value in result[f"{latency:g} ms"].items())
            print(f"{latency:g} ms: {shown} images/s", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"image_bytes": image_bytes, "rates": result}, indent=1))
    assert threading.active_count() < 50, "threads of a candidate are still at work"


if __name__ == "__main__":
    main()
