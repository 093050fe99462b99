"""Worker processes: the batches of threads, whatever dies."""

import errno
import gc
import io
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import tfprep
from tests.conftest import CODECS, smooth, write_dataset
from tests.waiting import wait_until
from tfprep import augment, codecs
from tfprep.errors import LoaderError, RecordError, StalledPipelineError
from tfprep.load import CutMix, MixUp, RandomCrop, RandomFlip
from tfprep.load.reader.buffers import MappedMemory, SharedMemory
from tfprep.load.reader.worker_pool import ENTRY
from tfprep.load.workers import PROCESS_BYTES

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

FIELDS = ("image", "lossless", "mask", "depth", "clicks", "field", "label", "weight", "pose", "caption")
PROCESSES = {"workers": "processes", "threads": 4}


def workers_of(parent=None):
    """The worker processes of a process, which have not ended."""
    children = psutil.Process(parent).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and ENTRY in child.cmdline()]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.collect()
    gc.freeze()  # what is there by now, which may be TensorFlow's half million objects, is not collected again and again
    before = descriptors()
    yield
    gc.collect()
    wait_until(lambda: not workers_of())
    wait_until(lambda: gc.collect() >= 0 and descriptors() <= before + 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "d"
    stored = {**CODECS, "depth": codecs.Zstd(), "clicks": codecs.Zstd()}
    return write_dataset(folder, samples={"train": 90, "val": 21}, variants=3, fields=FIELDS, codec=stored)


@pytest.fixture
def data(made):
    return tfprep.open(made.path)


def started(loader):
    """An iterator whose first batch came, and whose processes have started."""
    batches = iter(loader)
    first = next(batches)
    wait_until(lambda: loader.report()["workers"]["started"])
    return first, batches


def without_threads(loader):
    """An iterator from the first batch on, all of whose batches are those of processes."""
    _, batches = started(loader)
    batches.close()
    return iter(loader.at_epoch(0)) if loader.report()["training"] else iter(loader)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return write_uneven(tmp_path_factory.mktemp("uneven") / "d")


def write_uneven(path):
    """Images of different sizes with masks, boxes and texts, among them none at all."""

    def make(rng, number):
        height, width, boxes = 40 + number % 17, 50 - number % 13, number % 4
        return {
            "image": smooth(rng, height, width, 3),
            "mask": rng.integers(0, 9, (height, width)).astype(np.uint8),
            "boxes": rng.random((boxes, 4)).astype(np.float32),
            "caption": "é" * (number % 3 * 40),
        }

    codec = {"image": codecs.Jpeg(95), "mask": codecs.Png(), "boxes": codecs.Scalar(), "caption": codecs.Text()}
    kinds = {"image": "image", "mask": "mask", "boxes": "boxes", "caption": "text"}
    return write_dataset(path, samples={"train": 60}, fields=tuple(codec), make=make, codec=codec, kinds=kinds)


def leaves(batch):
    if isinstance(batch, dict):
        return batch
    return {str(number): part for number, part in enumerate(batch)} if isinstance(batch, tuple) else {"": batch}


def assert_same(batch, other):
    batch, other = leaves(batch), leaves(other)
    assert batch.keys() == other.keys()
    for name in batch:
        assert type(batch[name]) is type(other[name])
        assert len(batch[name]) == len(other[name])
        for ours, theirs in zip(batch[name], other[name], strict=True):
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype
            assert np.array_equal(ours, theirs), name


CASES = {
    "every field": {"fields": [*FIELDS, "key", "variant"]},
    "copied": {"fields": ["clicks"], "cache": False},
    "decoded in place": {"fields": ["image"], "cache": False},
    "stacked, cast and normalized": {
        "inputs": ["image", "clicks", "mask"], "targets": "label", "dtype": "float32", "normalize": True,
    },
    "warped": {"fields": ["image", "mask"], "geometry": [augment.Resize(20, 20)], "dtype": "bfloat16"},
    "checked each time": {"fields": ["image"], "verify": "always", "cache": False},
    "never checked": {"fields": ["image"], "verify": "never", "cache": "decoded"},
    "a part of the rows in the cache": {"fields": ["field", "image"], "cache": "decoded", "memory_budget": "1200k"},
    "one host of two": {"fields": ["image", "key"], "hosts": (1, 2)},
    "balanced blocks": {"fields": ["image", "key"], "balance": "label"},
    "large batches": {"fields": ["image", "key"], "batch_size": 100},
    "cut and mixed, on one host of two": {
        "fields": ["image", "clicks", "label", "key"], "cache": False, "hosts": (1, 2),
        "at_load": [RandomFlip(), RandomCrop(20, 20), MixUp(0.4), CutMix()],
    },
    "cut out of the cache, with text": {
        "fields": ["image", "caption"], "cache": "decoded", "at_load": [RandomFlip(), RandomCrop(20, 25)],
        "prefetch": 4,
    },
    "cut and cast out of the cache": {
        "inputs": ["image", "clicks"], "targets": "label", "dtype": "float32", "normalize": True, "cache": "decoded",
        "at_load": [RandomFlip(), RandomCrop(20, 25)],
    },
}  # fmt: skip


UNEVEN = {
    "boxes and text": {"fields": ["boxes", "caption"]},
    "only text": {"fields": ["caption"]},
    "padded, on one host of two": {"fields": ["boxes", "caption", "key"], "pad": {"boxes": 5}, "hosts": (1, 2)},
    "cut, mixed and cast": {"inputs": "image", "at_load": [RandomCrop(30, 30), MixUp(0.4)], "dtype": "float32"},
    "resized, with boxes": {
        "fields": ["image", "boxes", "caption"], "geometry": [augment.Resize(60, 50)], "dtype": "bfloat16",
    },
    "some images often": {
        "fields": ["image", "mask", "caption", "key"], "weights": np.arange(60) % 5 == 0, "batch_size": 50,
        "at_load": [RandomCrop(30, 30), RandomFlip()],
    },
    "small images are left out": {"fields": ["image", "key"], "at_load": [RandomCrop(45, 40)], "on_bad": "skip"},
}  # fmt: skip


@pytest.mark.parametrize("prefetch", [1, 4])
@pytest.mark.parametrize("case", UNEVEN)
def test_values_without_an_array(uneven, case, prefetch):
    compare_with_threads(tfprep.open(uneven.path), {"cache": False, "prefetch": prefetch, **UNEVEN[case]})


def test_a_fork_that_drops_its_copies_leaves_the_batches_alone(data):
    with closing(data.numpy_loader("train", 16, fields=["field"], cache=False, prefetch=1, **PROCESSES)) as loader:
        kept = list(without_threads(loader))
        expected = [batch["field"].copy() for batch in kept]
        child = os.fork()
        if child == 0:
            kept.clear()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for batch, values in zip(kept, expected, strict=True):
            assert np.array_equal(batch["field"], values)


@pytest.mark.parametrize("case", CASES)
def test_the_batches_of_threads(data, case, monkeypatch):
    monkeypatch.setattr("tfprep.load.workers.PROCESS_BYTES", 1)  # so that little memory holds a part of the rows
    compare_with_threads(data, CASES[case])


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_cache_of_text_alone(uneven, workers):
    data = tfprep.open(uneven.path)
    keys = data.index("train", 0, ["key"])["key"].to_pylist()
    expected = {key: sample["caption"] for key, sample in zip(keys, data.samples("train"), strict=True)}
    options = {"fields": ["caption", "key"], "cache": "decoded", "seed": 3, "threads": 2}
    with closing(data.numpy_loader("train", 16, workers=workers, **options)) as loader:
        for _ in range(4):
            for batch in started(loader)[1] if workers == "processes" else loader:
                assert batch["caption"].tolist() == [expected[key] for key in batch["key"].tolist()]
        assert loader.report()["workers"]["kind"] == workers


def compare_with_threads(data, options):
    options = {"batch_size": 16, "seed": 3, **options}
    with (
        closing(data.numpy_loader("train", workers="threads", **options).repeat()) as expected,
        closing(data.numpy_loader("train", **options, **PROCESSES).repeat()) as loader,
    ):
        threads = iter(expected)
        first, processes = started(loader)
        assert_same(first, next(threads))
        for _ in range(45):  # several epochs: the first, the cached ones
            assert_same(next(processes), next(threads))
        for _ in range(loader.stats["prefetch"] + 1):  # threads filled what was prefetched before processes had started
            assert_same(next(processes), next(threads))
        assert loader.report()["workers"]["kind"] == "processes"


def test_any_step_again(data):
    options = {"seed": 3, "fields": ["image", "label", "caption", "key"], "at_load": [RandomFlip(), MixUp(0.4)]}
    loader = data.numpy_loader("train", 16, **options, **PROCESSES).repeat()
    _, batches = started(loader)
    seen = [next(batches) for _ in range(20)]
    later = data.numpy_loader("train", 16, **options, start_step=11, **PROCESSES).repeat()
    for expected, batch in zip(seen[10:], later, strict=False):
        assert_same(batch, expected)
    loader.close()
    later.close()


@pytest.mark.parametrize(
    ("name", "split", "options"),
    [
        ("made", "val", {}),
        ("uneven", "train", {"at_load": [RandomCrop(45, 40)], "on_bad": "skip", "fields": ["image", "key"]}),
    ],
)
def test_reading_once(request, name, split, options):
    """Two iterations of one loader: the processes that the first one started serve the second."""
    data = tfprep.open(request.getfixturevalue(name).path)
    expected = list(data.numpy_loader(split, 8, training=False, workers="threads", **options))
    loader = data.numpy_loader(split, 8, training=False, **options, **PROCESSES)
    first, batches = started(loader)
    for batch, other in zip([first, *batches], expected, strict=True):
        assert_same(batch, other)
    pids = {worker.pid for worker in workers_of()}
    for batch, other in zip(loader, expected, strict=True):
        assert_same(batch, other)
    assert {worker.pid for worker in workers_of()} == pids
    loader.close()


@pytest.mark.parametrize(("name", "fields"), [("made", ["field", "label"]), ("uneven", ["boxes", "caption"])])
def test_batches_that_are_kept_keep_their_pixels(request, name, fields):
    data = tfprep.open(request.getfixturevalue(name).path)
    loader = data.numpy_loader("train", 16, seed=1, fields=fields, prefetch=2, **PROCESSES).repeat()
    first, batches = started(loader)
    kept = [first, *(next(batches) for _ in range(60))]
    again = data.numpy_loader("train", 16, seed=1, fields=fields, workers="threads").repeat()
    expected = [batch for batch, _ in zip(again, kept, strict=False)]
    for batch, other in zip(kept, expected, strict=True):
        assert_same(batch, other)
    loader.close()
    other = None
    for batch, other in zip(kept, expected, strict=True):  # still there when the loader is not
        assert_same(batch, other)
    assert other is not None


# --- bad records --------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path):
    return damage(write_dataset(tmp_path / "d", samples={"train": 60}, fields=("image", "clicks", "label")))


def damage(made):
    """Let the payloads of three records fail their checksums."""
    table = tfprep.open(made.path).index("train", 0, ["shard", "image_offset"]).to_pylist()
    files = tfprep.open(made.path).split("train").files[0]
    for row in (3, 20, 41):
        with (made.path / files[table[row]["shard"]].name).open("r+b") as file:
            file.seek(table[row]["image_offset"] + 30)
            file.write(b"\x00\xff\x00")
    return made


def test_bad_records_are_replaced_as_by_threads(damaged):
    data = tfprep.open(damaged.path)
    options = {"batch_size": 8, "seed": 5, "on_bad": "skip", "fields": ["image", "label", "key"], "cache": False}
    options["at_load"] = [RandomFlip(), RandomCrop(20, 20), MixUp(0.4)]
    threads = iter(data.numpy_loader("train", workers="threads", **options).repeat())
    loader = data.numpy_loader("train", **options, **PROCESSES, prefetch=1).repeat()
    first, batches = started(loader)
    assert_same(first, next(threads))
    for _ in range(20):
        assert_same(next(batches), next(threads))
    assert {bad["key"] for bad in loader.report()["bad_records"]} == {"train/0003", "train/0020", "train/0041"}
    loader.close()
    threads.close()


def test_a_bad_record_is_an_error_with_its_name(damaged):
    loader = tfprep.open(damaged.path).numpy_loader("train", 8, prefetch=1, **PROCESSES).repeat()
    with pytest.raises(RecordError, match=r"wrong checksum of the payload \(key 'train/00"):
        for _ in loader:
            pass
    loader.close()


@pytest.mark.parametrize("field", ["clicks", "image"])
def test_a_file_that_is_cut_short_under_its_memory_map(make_dataset, field):
    """The worker that touches what is gone dies, and the record is an error that says so."""
    made = make_dataset(samples={"train": 400}, shards=1, fields=("clicks", "image"))
    options = {"verify": "never", "fields": [field], "cache": False, "workers": "processes", "threads": 1}
    with closing(tfprep.open(made.path).numpy_loader("train", 8, **options)) as loader:
        batches = without_threads(loader)
        next(batches)
        (file,) = tfprep.open(made.path).split("train").files[0]
        os.truncate(made.path / file.name, 4096)
        with pytest.raises(RecordError, match="cut short"):
            for _ in batches:
                pass
        assert any("was killed by SIGBUS" in death for death in loader.report()["workers"]["deaths"])


# --- processes that die -------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced(data):
    options = {"batch_size": 16, "seed": 3, "fields": ["image", "lossless", "key", "caption"], "cache": False}
    threads = iter(data.numpy_loader("train", workers="threads", **options).repeat())
    loader = data.numpy_loader("train", **options, **PROCESSES).repeat()
    first, batches = started(loader)
    assert_same(first, next(threads))
    killed = set()
    others = lambda: [worker for worker in workers_of() if worker.pid not in killed]  # noqa: E731
    for number in range(60):
        if number % 12 == 0:
            wait_until(lambda: len(others()) == 2)
            for worker in others()[: 2 if number == 36 else 1]:
                worker.kill()
                killed.add(worker.pid)
        assert_same(next(batches), next(threads))
    assert len(killed) == 6
    deaths = lambda: loader.report()["workers"]["deaths"]  # noqa: E731
    wait_until(lambda: len(deaths()) == len(killed))
    for pid in killed:
        assert any(f"(pid {pid}) was killed by SIGKILL" in death for death in deaths())
    loader.close()
    threads.close()


def test_closing_ends_processes_that_read_nothing(data):
    loader = data.numpy_loader("train", 8, cache=False, fields=["image"], prefetch=1, **PROCESSES).repeat()
    started(loader)
    for worker in workers_of():
        worker.suspend()
    loader.close()
    assert not workers_of()


@dataclass(frozen=True)
class Dying(codecs.Raw):
    """A codec that ends a worker process by a signal, at one value or at all."""

    number: int = signal.SIGSEGV
    value: int | None = 13

    def decode(self, data, spec, shape=None):
        decoded = super().decode(data, spec, shape)
        if self.value in (None, decoded.ravel()[0]) and "child_process" in sys.argv[0]:
            signal.raise_signal(self.number)  # at once, in this thread
        return decoded


def test_a_record_that_ends_processes_is_a_bad_record(make_dataset, monkeypatch):
    data = tfprep.open(make_dataset(samples={"train": 40}, fields=("clicks",)).path)
    monkeypatch.setitem(data.codecs, "clicks", Dying())
    options = {"on_bad": "skip", "dtype": "float32", "cache": False}
    with closing(data.numpy_loader("train", 8, **options, **PROCESSES).repeat()) as loader:
        for _, batch in zip(range(6), without_threads(loader), strict=False):
            assert not (batch["clicks"][..., 0] == 13).any()
        (bad,) = loader.report()["bad_records"]
    assert bad["key"] == "train/0013"
    assert "was killed by SIGSEGV (a crash in native code)" in bad["reason"]


@dataclass(frozen=True)
class DyingTwice(codecs.Raw):
    """A codec that crashes at one value; the process that then reads it alone is killed from outside, once."""

    folder: str = ""

    def decode(self, data, spec, shape=None):
        decoded = super().decode(data, spec, shape)
        if decoded.ravel()[0] == 13 and "child_process" in sys.argv[0]:
            for number in (signal.SIGSEGV, signal.SIGKILL):
                with suppress(FileExistsError):
                    (Path(self.folder) / number.name).touch(exist_ok=False)
                    signal.raise_signal(number)
        return decoded


def test_a_lone_process_that_is_killed_from_outside_is_no_fault_of_its_record(make_dataset, monkeypatch, tmp_path):
    data = tfprep.open(make_dataset(samples={"train": 40}, fields=("clicks",)).path)
    options = {"on_bad": "skip", "dtype": "float32", "cache": False, "fields": ["clicks", "key"]}
    with closing(data.numpy_loader("train", 8, **options, workers="threads")) as threads:
        expected = list(islice(threads.repeat(), 20))
    monkeypatch.setitem(data.codecs, "clicks", DyingTwice(folder=str(tmp_path)))
    options |= {"workers": "processes", "threads": 1, "prefetch": 1}  # nobody else reads that record meanwhile
    with closing(data.numpy_loader("train", 8, **options).repeat()) as loader:
        for batch, one in zip(islice(without_threads(loader), 20), expected, strict=True):
            assert_same(batch, one)
        report = loader.report()
    assert report["bad_records"] == []
    assert [death.partition(" was ")[2][:17] for death in report["workers"]["deaths"]] == [
        "killed by SIGSEGV",
        "killed by SIGKILL",
    ]


@pytest.mark.parametrize("stream", ["closed", "full"])
def test_warnings_of_a_worker_that_cannot_be_shown(data, monkeypatch, stream):
    def write(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(data.numpy_loader("train", 8, cache=False, timeout_s=60, **PROCESSES).repeat()) as loader:
        _, batches = started(loader)
        unwritable = io.StringIO()
        unwritable.close()
        if stream == "full":
            unwritable = SimpleNamespace(write=write)
        monkeypatch.setattr(sys, "stderr", unwritable)
        for worker in workers_of():  # as native code does at a damaged photo
            with Path(f"/proc/{worker.pid}/fd/2").open("a") as its_stderr:
                its_stderr.write("Corrupt JPEG data\n")
        for _ in range(30):
            next(batches)
        assert loader.report()["workers"] | {"started": True, "deaths": []} == loader.report()["workers"]


DAEMON = """
import os, sys
path, answer, *closed = sys.argv[1:]
answer = open(answer, "w")
for descriptor in closed:
    os.close(int(descriptor))
import tfprep
loader = tfprep.open(path).numpy_loader("train", 8, cache=False, workers="processes", threads=2, timeout_s=60).repeat()
batches = iter(loader)
while not loader.report()["workers"]["started"] and not loader.report()["workers"]["deaths"]:
    next(batches)
print(loader.report()["workers"]["deaths"], len([next(batches) for _ in range(20)]), file=answer, flush=True)
loader.close()
"""


@pytest.mark.parametrize("closed", ["0", "01", "012", "12", "2"])
def test_a_trainer_without_standard_streams(made, tmp_path, closed):
    answer = tmp_path / "answer"
    subprocess.run([sys.executable, "-c", DAEMON, made.path, answer, *closed], timeout=120, check=False)
    assert answer.read_text() == "[] 20\n"


def test_close_gives_the_cache_back(data):
    shared = lambda: [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:tfprep" in line]  # noqa: E731
    loader = data.numpy_loader("train", 8, fields=["image"], cache="decoded", **PROCESSES).repeat()
    _, batches = started(loader)
    for _ in range(40):
        next(batches)
    memory, *_ = (f for f in Path("/proc/self/fd").iterdir() if f.is_symlink() and "memfd:tfprep" in os.readlink(f))
    assert loader.pipeline.cache.nbytes > 100_000
    batches.close()
    gc.collect()
    loader.close()
    assert memory.stat().st_blocks * 512 < 50_000
    gc.disable()
    try:
        del loader, batches
        assert not shared()
    finally:
        gc.enable()


def test_workers_that_always_die_are_an_error(make_dataset, monkeypatch):
    data = tfprep.open(make_dataset(samples={"train": 40}, fields=("clicks",)).path)
    monkeypatch.setitem(data.codecs, "clicks", Dying(number=signal.SIGKILL, value=None))
    monkeypatch.setattr("tfprep.load.reader.worker_pool.MOST_DEATHS", 1)
    with (
        closing(data.numpy_loader("train", 8, dtype="float32", cache=False, **PROCESSES).repeat()) as loader,
        pytest.raises(LoaderError, match=r"3 worker processes died one after another.*SIGKILL.*workers='threads'"),
    ):
        for _ in started(loader)[1]:
            pass


TRAINER = """
import signal, sys, tfprep
signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest in the background ignores it
loader = tfprep.open(sys.argv[1]).numpy_loader("train", 8, cache=False, workers="processes", threads=4).repeat()
batches = iter(loader)
for number, batch in enumerate(batches):
    if number > 20 and loader.report()["workers"]["started"]:
        print("reading", flush=True)
        break
for batch in batches:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_trainer_that_ends(made, number):
    command = [sys.executable, "-c", TRAINER, str(made.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "reading\n"
        workers = workers_of(trainer.pid)
        assert len(workers) == 2
        trainer.send_signal(number)
        _, errors = trainer.communicate(timeout=60)
    wait_until(lambda: not any(worker.is_running() for worker in workers))
    assert "worker" not in errors  # Ctrl-C is not for them
    assert "KeyboardInterrupt" in errors or number == signal.SIGKILL


class Unloadable(codecs.Raw):
    """A codec that worker processes cannot load."""

    def __reduce__(self):
        return unload, ()


def unload():
    if "child_process" in sys.argv[0]:
        raise ImportError("no such library")
    return Unloadable()


def test_threads_go_on_where_processes_cannot_start(make_dataset, monkeypatch):
    data = tfprep.open(make_dataset(samples={"train": 40}, fields=("clicks",)).path)
    monkeypatch.setitem(data.codecs, "clicks", Unloadable())
    with closing(data.numpy_loader("train", 8, cache=False, **PROCESSES).repeat()) as loader:
        batches = iter(loader)
        workers = lambda: loader.report()["workers"]  # noqa: E731
        wait_until(lambda: next(batches) and workers()["kind"] == "threads")
        assert workers()["because"].endswith("cannot go on (LoaderError: ImportError: no such library)")
        next(batches)


def test_a_stall_names_the_worker_and_the_file(data):
    options = {"cache": False, "fields": ["image"], "timeout_s": 2, "verify": "never"}
    with closing(data.numpy_loader("train", 8, **options, **PROCESSES).repeat()) as loader:
        _, batches = started(loader)
        for worker in workers_of():
            worker.suspend()
        with pytest.raises(StalledPipelineError, match=r"worker process 0 \(pid \d+\) .*made-train.* at byte \d+ for"):
            for _ in batches:
                pass


# --- what is taken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "options", "kind", "reason"),
    [
        (2, {"cache": False}, "threads", "2 CPUs are fewer than 8, and an epoch of 90 records does not repay"),
        (2, {"cache": False, "least": 90}, "processes", "every epoch reads 90 records"),
        (2, {"cache": False, "least": 90, "hosts": (0, 2)}, "threads", "an epoch of 45 records"),
        (2, {"cache": False, "least": 90, "threads": 1}, "threads", "one thread reads"),
        (1, {"cache": False, "least": 90}, "threads", "one thread reads"),
        (2, {"least": 90}, "threads", "the cache holds all records after the first epoch"),
        (2, {"least": 90, "training": False}, "processes", "every epoch reads 90 records"),  # there is no cache
    ],
)
def test_few_cpus_have_processes_where_much_is_read(data, monkeypatch, cpus, options, kind, reason):
    options = {"threads": 4, **options}
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: cpus)
    monkeypatch.setattr("tfprep.load.workers.MANY_RECORDS", options.pop("least", 10_000))
    report = data.numpy_loader("train", 8, fields=["image"], **options).report()["workers"]
    assert report["kind"] == kind
    assert reason in report["because"]


def test_many_cpus_have_processes(data, monkeypatch):
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: 64)
    report = data.numpy_loader("train", 8, threads=64, fields=["image"]).report()["workers"]
    assert (report["kind"], report["processes"], report["threads_each"]) == ("processes", 16, 4)


@pytest.mark.parametrize(("budget", "processes"), [("4GB", 16), ("640MB", 8), ("200MB", 2), ("150MB", 0)])
def test_the_memory_budget_covers_the_processes(data, monkeypatch, budget, processes):
    """40 MiB each, in at most half of the budget."""
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: 64)
    loader = data.numpy_loader("train", 8, threads=64, fields=["image"], memory_budget=budget)
    report = loader.report()
    assert report["workers"]["processes"] == processes
    assert processes == 0 or report["workers"]["threads_each"] == 64 // processes
    assert report["memory"]["workers_bytes"] == processes * 40 * 2**20
    assert report["memory"]["batches_bytes"] >= report["memory"]["workers_bytes"]
    assert processes or "memory_budget=157,286,400 bytes has no room" in report["workers"]["because"]


def test_processes_take_no_memory_that_the_batches_need(data, monkeypatch):
    """Five batches of 90 rows of 'field' leave no 80 MiB: threads read, as they did before processes were chosen here."""
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: 64)
    options = {"fields": ["field"], "cache": False, "threads": 4}
    batch = data.numpy_loader("train", 90, **options).report()["memory"]["batch_bytes"]
    monkeypatch.setattr("tfprep.load.workers.PROCESS_BYTES", batch)
    budget = 6 * batch  # room for two processes, or for five batches and one
    report = data.numpy_loader("train", 90, memory_budget=budget, **options).report()["workers"]
    assert report["kind"] == "threads"
    assert "has no room for 2 processes" in report["because"]


def test_a_closed_loader_reads_with_threads_and_keeps_no_readers(data):
    loader = data.numpy_loader("val", 7, fields=["image"], **PROCESSES)
    loader.close()
    assert [len(batch["image"]) for _ in range(2) for batch in loader] == [7] * 6
    assert loader.report()["workers"]["kind"] == "threads"
    assert "was closed" in loader.report()["workers"]["because"]


def test_the_time_without_work_of_a_process_counts(data):
    loader = data.numpy_loader("train", 16, fields=["image"], cache=False, prefetch=1, **PROCESSES).repeat()
    _, batches = started(loader)
    time.sleep(0.5)
    for _ in range(20):
        next(batches)
    assert loader.stats["idle_s"] > 0.5
    loader.close()


def test_processes_that_the_memory_budget_has_no_room_for(data):
    with pytest.raises(LoaderError, match="memory_budget=104,857,600 bytes has no room for 2 processes"):
        data.numpy_loader("train", 8, fields=["image"], memory_budget="100MB", **PROCESSES)


def test_the_memory_of_a_process_is_what_the_budget_counts(data):
    loader = data.numpy_loader("train", 16, fields=["image", "lossless"], cache=False, **PROCESSES).repeat()
    _, batches = started(loader)
    for _ in range(50):
        next(batches)
    for worker in workers_of():
        assert worker.memory_full_info().uss - shared_bytes(worker) < PROCESS_BYTES
    loader.close()


def shared_bytes(process):
    """What a process has touched of the memory of batches, which others have not: it is counted with the batches."""
    return sum(part.private_clean + part.private_dirty for part in process.memory_maps() if "memfd:tfprep" in part.path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fields": ["key"]}, "the index holds all"),
        ({"fields": ["image"], "geometry": [lambda size, generator: None]}, "cannot be sent to another process"),
    ],
)
def test_what_processes_cannot_do_is_done_by_threads(photos, monkeypatch, options, reason):
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: 64)
    data = tfprep.open(photos.path)
    if "geometry" not in options:
        report = data.numpy_loader("train", 8, **options).report()["workers"]
        assert report["kind"] == "threads"
        assert reason in report["because"]
        with pytest.raises(LoaderError, match=r"workers='processes' is not possible here: .* threads read it"):
            data.numpy_loader("train", 8, workers="processes", **options).repeat()


class Flip(RandomFlip):
    """An op of a class that another process cannot import."""


Flip.__module__ = "__main__"


@pytest.mark.parametrize("options", [{"at_load": [Flip()]}, {"at_load": [Flip(), MixUp(0.4)]}])
def test_ops_at_load_that_cannot_be_sent(data, monkeypatch, options):
    monkeypatch.setattr("tfprep.load.workers.usable_cpus", lambda: 64)
    options = {"fields": ["image"], **options}
    report = data.numpy_loader("train", 8, **options).report()["workers"]
    assert report["kind"] == "threads"
    assert "cannot be sent to another process (Flip is defined in the script that runs" in report["because"]
    with pytest.raises(LoaderError, match=r"workers='processes' is not possible here: .*Flip.* threads read it"):
        data.numpy_loader("train", 8, workers="processes", **options)


def test_memory_that_is_not_there_is_an_error():
    memory = SharedMemory()
    memory.allocate(4096)
    mapped = MappedMemory(memory.fd)
    size = os.fstat(memory.fd).st_size
    assert len(mapped.array(size - 64, (64,), "uint8")) == 64
    for shape in [(65,), (-1,), (1 << 40,)]:
        with pytest.raises(ValueError, match="does not lie in the shared memory"):
            mapped.array(size - 64, shape, "uint8")


def test_workers_import_neither_tensorflow_nor_pyarrow():
    code = "import sys, tfprep.load.reader.worker_process; print({'tensorflow', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def shared_file_bytes():
    """Bytes of the pages of this process's anonymous files."""
    files = [file for file in list(Path("/proc/self/fd").iterdir()) if file.is_symlink()]  # not that of the listing
    return sum(file.stat().st_blocks * 512 for file in files if "memfd:tfprep" in os.readlink(file))


def test_the_memory_of_dropped_batches_goes_back_to_the_system(data):
    with closing(
        data.numpy_loader("train", 16, fields=["field"], prefetch=2, cache=False, **PROCESSES).repeat()
    ) as loader:
        _, batches = started(loader)
        kept = [next(batches) for _ in range(200)]
        nbytes = sum(batch["field"].nbytes for batch in kept)
        assert shared_file_bytes() >= nbytes / 2  # threads made the first batches
        del kept
        wait_until(lambda: shared_file_bytes() < nbytes / 8)


def test_no_files_outside(tmp_path: Path, data):
    before = set(os.listdir("/dev/shm"))
    loader = data.numpy_loader("train", 16, fields=["field"], **PROCESSES).repeat()
    started(loader)
    assert set(os.listdir("/dev/shm")) <= before
    loader.close()


LIMITED = """
import resource, sys
import cv2, psutil, tfprep
from tfprep.errors import LoaderError
data = tfprep.open(sys.argv[1])
data.numpy_loader("train", workers="threads")  # what it imports counts too
limit = psutil.Process().memory_info().vms + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
options = {"threads": 2, "memory_budget": "1GB", "cache": False}
try:
    data.numpy_loader("train", workers="processes", **options)
except LoaderError as error:
    print(error)
loader = data.numpy_loader("train", workers="auto", **options)
print(sum(1 for batch in loader), loader.report()["workers"]["kind"])
"""


def test_a_limit_of_addresses(made):
    """As `ulimit -v` sets it: the memory that processes share has no room."""
    command = [sys.executable, "-c", LIMITED, str(made.path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "raise the limit of addresses (ulimit -v), or use workers='threads'" in output[0]
    assert output[1].endswith("threads")
