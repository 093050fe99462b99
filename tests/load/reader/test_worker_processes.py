"""Worker processes: the batches of threads, whatever dies."""

import errno
import gc
import io
import os
import signal
import subprocess
import sys
import threading
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
from tests.conftest import CODECS, write_dataset
from tests.load.batches import batches, check_same, overwrite, stages
from tests.waiting import wait_until
from tfprep import augment, codecs
from tfprep.errors import LoaderError, RecordError, StalledPipelineError
from tfprep.load.budget import PROCESS_BYTES, TASK_ROWS
from tfprep.load.reader.workers import ENTRY
from tfprep.load.slots import SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PROCESSES = {"workers": "processes", "threads": 4}


def workers_of(parent=None):
    """The worker processes of a process, which have not ended."""
    found = []
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess):  # it ends meanwhile
            found += [child] if child.status() != psutil.STATUS_ZOMBIE and ENTRY in child.cmdline() else []
    return found


def shared_files():
    """The anonymous files that this process has open."""
    files = [file for file in list(Path("/proc/self/fd").iterdir()) if file.is_symlink()]  # not that of the listing
    return [file for file in files if "memfd:tfprep" in os.readlink(file)]


def shared_bytes():
    return sum(file.stat().st_blocks * 512 for file in shared_files())


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.collect()
    gc.freeze()  # what is there by now, which may be TensorFlow's half million objects, is not collected again and again
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    wait_until(lambda: not workers_of())
    wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before + 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "d"
    stored = {**CODECS, "depth": codecs.Zstd(), "clicks": codecs.Zstd()}
    return write_dataset(folder, samples={"train": 90, "val": 21}, variants=3, codec=stored)


@pytest.fixture(scope="module")
def data(made):
    return tfprep.open(made.path)


@pytest.fixture
def clicks(make_dataset):
    """A dataset of its own, whose codec a test may replace by one that ends worker processes."""
    return tfprep.open(make_dataset(samples={"train": 40}, fields=("clicks",)).path)


def stream(data, batch_size=8, **options):
    """An endless loader of processes, to be closed; nothing is cached."""
    return closing(data.numpy_loader("train", batch_size, **{"cache": False, **PROCESSES, **options}).repeat())


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
    if loader.report()["training"]:
        loader.set_epoch(0)
    return iter(loader)


def of_51_rows(size, generator):
    """Cuts the first 40 rows out of images that have 51: the loader also asks for the size that others would have."""
    if size[0] < 51:
        raise ValueError(f"{size[0]} rows are too few")
    return augment.Transform(np.eye(3), (40, 38))


CASES = {
    "every field": {"fields": [*CODECS, "key", "variant"], "cache": False},
    "stacked, never checked": {"inputs": ["image", "field", "mask"], "targets": "label", "verify": "never"},
    "a part of the rows in the cache": {"fields": ["field", "image"], "cache": "decoded", "memory_budget": "1200k"},
    "cut and mixed, on one host of two": {
        "fields": ["image", "clicks", "label", "key"], "cache": False, "hosts": (1, 2),
        **stages([augment.Flip(), augment.Crop(20, 20), augment.MixUp(0.4), augment.CutMix()]),
    },
}  # fmt: skip
UNEVEN = {
    "padded, on one host of two": {"fields": ["boxes", "caption", "key"], "pad": {"boxes": 5}, "hosts": (1, 2)},
    "resized, with boxes": {"fields": ["image", "boxes", "caption"], "geometry": [augment.Resize(60, 50)]},
    "some images often": {
        "fields": ["image", "mask", "caption", "key"], "weights": np.arange(60) % 5 == 0, "batch_size": 50,
        **stages([augment.Crop(30, 30), augment.Flip()]), "prefetch": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), [("made", case) for case in CASES] + [("uneven", case) for case in UNEVEN])
def test_the_batches_of_threads(request, name, case, monkeypatch):
    """Of threads without a cache."""
    monkeypatch.setattr("tfprep.load.budget.PROCESS_BYTES", 1)  # so that little memory holds a part of the rows
    options = {"cache": False, **UNEVEN[case]} if name == "uneven" else CASES[case]
    compare_with_threads(tfprep.open(request.getfixturevalue(name).path), 20, **options)


def compare_with_threads(data, count, **options):
    """Several epochs: the first, the cached ones. Threads fill what is prefetched before processes have started."""
    options = {"batch_size": 16, "seed": 3, **PROCESSES, **options}
    with closing(data.numpy_loader("train", **options).repeat()) as loader:
        first, processes = started(loader)
        given = [first, *islice(processes, count + loader.stats["prefetch"])]
        report = loader.report()
    threads = {**options, "workers": "threads", "cache": False, "memory_budget": None}
    check_same(batches(data, len(given), **threads), given)
    assert report["workers"]["kind"] == "processes"
    return report


@pytest.mark.parametrize("options", [{"mix": [augment.MixUp(0.4)]}, {"layout": "NCHW"}])
def test_a_batch_by_its_step_needs_no_threads(data, options):
    """Neither those that complete the batches of processes."""
    options = {"fields": ["image", "label"], "timeout_s": 20, **options}
    with stream(data, **options) as loader:
        found = []
        reader = threading.Thread(target=lambda: found.append(loader[1]), daemon=True)
        reader.start()
        reader.join(20)
        check_same(batches(data, 2, seed=0, workers="threads", **options)[1:], found)


def test_arrays_of_no_bytes(make_dataset):
    made = make_dataset(
        samples={"train": 9}, make=lambda rng, number: {"none": np.zeros((3, 0)), "number": number},
        codec={"none": codecs.Raw(), "number": codecs.Scalar()}, kinds={"none": "scalar", "number": "scalar"},
    )  # fmt: skip
    compare_with_threads(tfprep.open(made.path), 6, batch_size=4, timeout_s=60, cache=False)


def test_what_cannot_be_handed_out_is_an_error_and_not_a_wait(data, monkeypatch):
    with stream(data, timeout_s=60) as loader:
        _, batches = started(loader)
        monkeypatch.setattr(SharedMemory, "offset", lambda memory, array: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            list(batches)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("made", {"split": "val"}),
        ("uneven", {"geometry": [of_51_rows], "on_bad": "skip", "fields": ["image", "key"]}),
    ],
)
def test_reading_once(request, name, options):
    """Two iterations of one loader: the processes that the first one started serve the second."""
    data, options = tfprep.open(request.getfixturevalue(name).path), {"batch_size": 8, "training": False, **options}
    expected = batches(data, None, workers="threads", **options)
    with closing(data.numpy_loader(**{"split": "train", **options, **PROCESSES})) as loader:
        first, rest = started(loader)
        check_same(expected, [first, *rest])
        pids = {worker.pid for worker in workers_of()}
        check_same(expected, list(loader))
        assert {worker.pid for worker in workers_of()} == pids


@pytest.mark.parametrize(("name", "fields"), [("made", ["field", "label"]), ("uneven", ["boxes", "caption"])])
def test_batches_that_are_kept_keep_their_pixels(request, name, fields):
    """Also when the loader is closed."""
    data, options = tfprep.open(request.getfixturevalue(name).path), {"seed": 1, "fields": fields, "prefetch": 2}
    with stream(data, 16, **options) as loader:
        first, rest = started(loader)
        kept = [first, *islice(rest, 60)]
        expected = batches(data, 61, batch_size=16, workers="threads", **options)
        check_same(expected, kept)
    check_same(expected, kept)


# --- bad records --------------------------------------------------------------------------------------------------------


def test_bad_records_are_replaced_as_by_threads(make_dataset):
    made = make_dataset(samples={"train": 60}, fields=("image", "clicks", "label"))
    data = tfprep.open(made.path)
    table = data.index("train", 0, ["shard", "image_offset"]).to_pylist()
    for row in (3, 20, 41):
        file = made.path / data.file("train", 0, table[row]["shard"]).name
        overwrite(file, table[row]["image_offset"] + 30, b"\x00\xff\x00")
    options = {"batch_size": 8, "on_bad": "skip", "fields": ["image", "label", "key"], "cache": False, "prefetch": 1}
    report = compare_with_threads(
        data, 20, **options, **stages([augment.Flip(), augment.Crop(20, 20), augment.MixUp(0.4)])
    )
    assert {bad["key"] for bad in report["bad_records"]} == {"train/0003", "train/0020", "train/0041"}
    with (
        stream(data, prefetch=1) as loader,
        pytest.raises(RecordError, match=r"wrong checksum of the payload \(key 'train/00"),
    ):
        list(loader)


@pytest.mark.parametrize("field", ["clicks", "image"])
def test_a_file_that_is_cut_short(make_dataset, field):
    """The record is an error that says so. A process that reads it from its mapping ends, and none does after that."""
    made = make_dataset(samples={"train": 400}, shards=1, fields=(field,))
    with stream(tfprep.open(made.path), verify="never", threads=1) as loader:
        batches = without_threads(loader)
        next(batches)
        os.truncate(next(made.path.glob("*.tfrecord*")), 4096)
        with pytest.raises(RecordError, match="cut short"):
            list(batches)
        assert all("killed by SIGBUS (a file was cut short" in death for death in loader.report()["workers"]["deaths"])


@pytest.mark.parametrize("fields", [["image", "key"], ["clicks", "key"]])
def test_all_records_of_a_file_that_is_cut_short_are_bad(make_dataset, fields):
    """Each process ends once at most; the records of the other shards are delivered as before."""
    made = make_dataset(samples={"train": 200}, shards=2, fields=("image", "clicks"))
    options = {"on_bad": "skip", "cache": False, "fields": fields, "training": False, "verify": "never"}
    data = tfprep.open(made.path)
    with closing(data.numpy_loader("train", 20, **options, **PROCESSES)) as loader:
        first = list(without_threads(loader))
        os.truncate(sorted(made.path.glob("*.tfrecord*-of-*[0-9]"))[1], 4096)
        second = list(loader)
        report = loader.report()
    assert {bad["reason"].partition(":")[0] for bad in report["bad_records"]} == {"cut short"}
    kept = {key: value for batch in second for key, value in zip(batch["key"], batch[fields[0]], strict=True)}
    lost = {bad["key"] for bad in report["bad_records"]}
    before = {key: value for batch in first for key, value in zip(batch["key"], batch[fields[0]], strict=True)}
    assert kept.keys() == before.keys() - lost
    assert 50 < len(lost) < 150
    for key, value in kept.items():
        assert np.array_equal(value, before[key])
    assert len(report["workers"]["deaths"]) <= 2 * report["workers"]["processes"]


# --- processes that die -------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced(data):
    options = {"seed": 3, "fields": ["image", "lossless", "key", "caption"]}
    with stream(data, 16, **options) as loader:
        first, processes = started(loader)
        given, killed = [first], set()
        others = lambda: [worker for worker in workers_of() if worker.pid not in killed]  # noqa: E731
        for number in range(40):
            if number % 12 == 0:
                wait_until(lambda: len(others()) == 2)
                for worker in others()[: 2 if number == 24 else 1]:
                    worker.kill()
                    killed.add(worker.pid)
            given.append(next(processes))
        deaths = lambda: loader.report()["workers"]["deaths"]  # noqa: E731
        wait_until(lambda: len(deaths()) == len(killed) == 5)
        for pid in killed:
            assert any(f"(pid {pid}) was killed by SIGKILL" in death for death in deaths())
    check_same(batches(data, 41, batch_size=16, workers="threads", **options), given)


@dataclass(frozen=True)
class Dying(codecs.Raw):
    """A codec that ends a worker process by a signal, at one value or at all; with a folder once by each of the signals.

    For loaders with verify="always", which decode raw fields as well.
    """

    signals: tuple[int, ...] = (signal.SIGSEGV,)
    value: int | None = 13
    folder: str = ""

    def decode(self, data, spec, shape=None):
        decoded = super().decode(data, spec, shape)
        if self.value in (None, decoded.ravel()[0]) and sys.argv[0].endswith("pool.py"):
            for number in self.signals:
                with suppress(FileExistsError):
                    if self.folder:
                        (Path(self.folder) / str(number)).touch(exist_ok=False)
                    signal.raise_signal(number)  # at once, in this thread
        return decoded


@pytest.mark.parametrize("prefetch", [1, 16])
def test_a_record_that_ends_processes_is_a_bad_record(clicks, monkeypatch, prefetch):
    """Also where several batches are one task."""
    monkeypatch.setitem(clicks.codecs, "clicks", Dying())
    with stream(clicks, on_bad="skip", verify="always", threads=1, prefetch=prefetch) as loader:
        for batch in islice(without_threads(loader), 6):
            assert not (batch["clicks"][..., 0] == 13).any()
        (bad,) = loader.report()["bad_records"]
    assert bad["key"] == "train/0013"
    assert "was killed by SIGSEGV (a crash in native code)" in bad["reason"]


def test_a_lone_process_that_is_killed_from_outside_is_no_fault_of_its_record(clicks, monkeypatch, tmp_path):
    """It reads by itself what another process crashed at."""
    options = {"on_bad": "skip", "verify": "always", "cache": False, "fields": ["clicks", "key"]}
    expected = batches(clicks, 12, workers="threads", **options)
    monkeypatch.setitem(clicks.codecs, "clicks", Dying(signals=(signal.SIGSEGV, signal.SIGKILL), folder=str(tmp_path)))
    with stream(clicks, threads=1, prefetch=1, seed=3, **options) as loader:  # nobody else reads that record meanwhile
        check_same(expected, list(islice(without_threads(loader), 12)))
        report = loader.report()
    assert report["bad_records"] == []
    deaths = [death.partition(" was ")[2][:17] for death in report["workers"]["deaths"]]
    assert deaths == ["killed by SIGSEGV", "killed by SIGKILL"]


def test_workers_that_always_die_are_an_error(clicks, monkeypatch):
    monkeypatch.setitem(clicks.codecs, "clicks", Dying(signals=(signal.SIGKILL,), value=None))
    monkeypatch.setattr("tfprep.pool.MOST_DEATHS", 1)
    with (
        stream(clicks, verify="always") as loader,
        pytest.raises(LoaderError, match=r"3 worker processes died one after another.*SIGKILL.*workers='threads'"),
    ):
        list(started(loader)[1])


class Unloadable(codecs.Raw):
    """A codec that worker processes cannot load."""

    def __reduce__(self):
        return unload, ()


def unload():
    if sys.argv[0].endswith("pool.py"):
        raise ImportError("no such library")
    return Unloadable()


def test_threads_go_on_where_processes_cannot_start(clicks, monkeypatch):
    monkeypatch.setitem(clicks.codecs, "clicks", Unloadable())
    with stream(clicks) as loader:
        batches = iter(loader)
        wait_until(lambda: next(batches) and loader.report()["workers"]["kind"] == "threads")
        reason = loader.report()["workers"]["because"]
        assert reason.endswith("cannot go on (ImportError: no such library)")
        next(batches)


@pytest.mark.parametrize("stream_is", ["closed", "full"])
def test_warnings_of_a_worker_that_cannot_be_shown(data, monkeypatch, stream_is):
    def write(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with stream(data, timeout_s=60) as loader:
        _, batches = started(loader)
        unwritable = io.StringIO()
        unwritable.close()
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write) if stream_is == "full" else unwritable)
        for worker in workers_of():  # as native code does at a damaged photo
            with Path(f"/proc/{worker.pid}/fd/2").open("a") as its_stderr:
                its_stderr.write("Corrupt JPEG data\n")
        list(islice(batches, 30))
        assert loader.report()["workers"] | {"started": True, "deaths": []} == loader.report()["workers"]


def test_processes_that_do_not_answer(data):
    """A stall names the worker and the file, and closing ends them."""
    with stream(data, fields=["image"], timeout_s=1, verify="never") as loader:
        _, batches = started(loader)
        for worker in workers_of():
            worker.suspend()
        with pytest.raises(StalledPipelineError, match=r"worker process 0 \(pid \d+\) .*made-train.* at byte \d+ for"):
            list(batches)
    assert not workers_of()


# --- trainers -----------------------------------------------------------------------------------------------------------

DAEMON = """
import os, sys
path, answer = sys.argv[1], open(sys.argv[2], "w")
for descriptor in range(3):
    os.close(descriptor)
import tfprep
loader = tfprep.open(path).numpy_loader("train", 8, cache=False, workers="processes", threads=2, timeout_s=60).repeat()
batches = iter(loader)
while not loader.report()["workers"]["started"] and not loader.report()["workers"]["deaths"]:
    next(batches)
print(loader.report()["workers"]["deaths"], len([next(batches) for _ in range(20)]), file=answer, flush=True)
loader.close()
"""


def test_a_trainer_without_standard_streams(made, tmp_path):
    answer = tmp_path / "answer"
    subprocess.run([sys.executable, "-c", DAEMON, made.path, answer], timeout=600, check=False)
    assert answer.read_text() == "[] 20\n"


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
print(sum(1 for batch in data.numpy_loader("train", workers="threads", **options)))
"""


def test_a_limit_of_addresses(made):
    """As `ulimit -v` sets it: the memory that processes share has no room."""
    command = [sys.executable, "-c", LIMITED, str(made.path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "raise the limit of addresses (ulimit -v), or use workers='threads'" in output[0]
    assert int(output[1]) > 0


# --- what is taken ------------------------------------------------------------------------------------------------------

LITTLE = {"cache": False, "threads": 4}
MUCH = {**LITTLE, "least": 90}
MANY = {"threads": 64}


@pytest.mark.parametrize(
    ("cpus", "options", "processes", "reason"),
    [
        (2, LITTLE, 0, "2 CPUs are fewer than 8, and an epoch of 90 records does not repay"),
        (2, MUCH, 2, "every epoch reads 90 records"),
        (2, {**MUCH, "hosts": (0, 2)}, 0, "an epoch of 45 records"),
        (2, {**MUCH, "threads": 1}, 0, "one thread reads"),
        (1, MUCH, 0, "one thread reads"),
        (2, {**MUCH, "cache": "auto"}, 0, "the cache holds all records after the first epoch"),
        (2, {**MUCH, "cache": "auto", "training": False}, 2, "every epoch reads 90 records"),  # there is no cache
        (2, {**LITTLE, "augmented": 90, "geometry": [augment.Flip()]}, 2, "every epoch reads 90 records"),
        (2, {**LITTLE, "augmented": 91, "geometry": [augment.Flip()]}, 0, "an epoch of 90 records"),
        (2, {**LITTLE, "augmented": 180, "views": {"a": (2, {"geometry": [augment.Flip()]})}}, 2, "reads 90 records"),
        (64, MANY, 16, ""),
        # 40 MiB each, in at most half of the budget.
        (64, {**MANY, "memory_budget": "640MB"}, 8, ""),
        (64, {**MANY, "memory_budget": "200MB"}, 2, ""),
        (64, {**MANY, "memory_budget": "150MB"}, 0, "memory_budget=157,286,400 bytes has no room"),
        (64, {"fields": ["key"]}, 0, "the index holds all"),
    ],
)
def test_processes_where_they_repay_and_fit(data, monkeypatch, cpus, options, processes, reason):
    options = {"fields": ["image"], **options}
    monkeypatch.setattr("tfprep.load.plan.usable_cpus", lambda: cpus)
    monkeypatch.setattr("tfprep.load.budget.MANY_RECORDS", options.pop("least", 10_000))
    monkeypatch.setattr("tfprep.load.budget.MANY_AUGMENTED", options.pop("augmented", 1_000))
    report = data.numpy_loader("train", 8, **options).report()
    workers, memory = report["workers"], report["memory"]
    assert workers["kind"] == ("processes" if processes else "threads")
    assert reason in workers["because"]
    assert workers.get("processes", 0) == processes
    assert not processes or workers["threads_each"] == options["threads"] // processes
    assert memory["workers_bytes"] == processes * 40 * 2**20
    assert memory["batches_bytes"] >= memory["workers_bytes"]


def test_processes_take_no_memory_that_the_batches_need(data, monkeypatch):
    """Five batches of 90 rows of 'field' leave no room for two processes: threads read, as they did before."""
    monkeypatch.setattr("tfprep.load.plan.usable_cpus", lambda: 64)
    options = {"fields": ["field"], "cache": False, "threads": 4}
    batch = data.numpy_loader("train", 90, **options).report()["memory"]["batch_bytes"]
    monkeypatch.setattr("tfprep.load.budget.PROCESS_BYTES", batch)
    report = data.numpy_loader("train", 90, memory_budget=6 * batch, **options).report()["workers"]
    assert report["kind"] == "threads"
    assert "has no room for 2 processes" in report["because"]


class Flip(augment.Flip):
    """An op of a class that another process cannot import."""


Flip.__module__ = "__main__"


class Unsendable(augment.Flip):
    def __reduce__(self):
        raise RuntimeError("of this process only")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fields": ["key"]}, r"workers='processes' is not possible here: .* threads read it"),
        ({**stages([Flip()])}, r"workers='processes' is not possible here: .*Flip.* threads read it"),
        ({"geometry": (Unsendable(),)}, r"not possible here: .*of this process only.* threads read it"),
        ({"memory_budget": "100MB"}, "memory_budget=104,857,600 bytes has no room for 2 processes"),
    ],
)
def test_processes_that_are_not_possible(data, monkeypatch, options, reason):
    options = {"fields": ["image"], **options}
    with pytest.raises(LoaderError, match=reason):
        data.numpy_loader("train", 8, **options, **PROCESSES)
    if "geometry" in options:
        monkeypatch.setattr("tfprep.load.plan.usable_cpus", lambda: 64)
        report = data.numpy_loader("train", 8, **options).report()["workers"]
        assert report["kind"] == "threads"
        assert "cannot be sent to another process (" in report["because"]


def test_the_time_without_work_of_a_process_counts(data):
    with stream(data, 16, fields=["image"], prefetch=1) as loader:
        _, batches = started(loader)
        time.sleep(0.3)
        list(islice(batches, 20))
        assert loader.stats["idle_s"] > 0.3


# --- memory -------------------------------------------------------------------------------------------------------------


def test_the_memory_of_a_process_is_what_the_budget_counts(data):
    """Without what it has touched of the memory of batches and others have not: that is counted with the batches."""
    with stream(data, 16, fields=["image", "lossless"]) as loader:
        list(islice(started(loader)[1], 50))
        for worker in workers_of():
            maps = [part for part in worker.memory_maps() if "memfd:tfprep" in part.path]
            shared = sum(part.private_clean + part.private_dirty for part in maps)
            assert worker.memory_full_info().uss - shared < PROCESS_BYTES


def without_its_module(sample, draws):
    import a_module_that_no_worker_has

    return a_module_that_no_worker_has.moved(sample)


def tasks_of(loader, monkeypatch):
    """The tasks that go to the processes of this loader from now on: lists of jobs, one for each batch."""
    tasks, submit = [], loader.pipeline.pool.submit
    monkeypatch.setattr(loader.pipeline.pool, "submit", lambda jobs, note: tasks.append(jobs) or submit(jobs, note))
    return tasks


def test_small_batches_that_follow_each_other_are_one_task(data, monkeypatch):
    with stream(data, threads=2, fields=["image"]) as loader:
        _, batches = started(loader)
        list(islice(batches, 2 * loader.stats["prefetch"]))  # past those of threads
        tasks = tasks_of(loader, monkeypatch)
        list(islice(batches, 2 * loader.stats["prefetch"]))  # the first of them may be full already
        assert {len(jobs) * 8 for jobs in tasks} == {TASK_ROWS}
        list(islice(without_threads(loader), loader.stats["prefetch"]))
        assert {1, 2, 4, 8} <= set(map(len, tasks))  # nobody waits for 128 rows to get the second batch
    with closing(data.numpy_loader("val", 2, fields=["image"], cache=False, **PROCESSES)) as loader:
        batches = without_threads(loader)
        tasks = tasks_of(loader, monkeypatch)
        list(batches)
        assert len(tasks) >= PROCESSES["threads"]  # none is idle in a pass of 21 samples
    monkeypatch.setattr("tfprep.load.prefetch.TASK_BYTES", 16 * 24 * 32 * 3)
    with stream(data, threads=2, fields=["image"]) as loader:  # of larger images a task has fewer rows
        _, batches = started(loader)
        tasks = tasks_of(loader, monkeypatch)
        list(islice(batches, 2 * loader.stats["prefetch"]))
    assert max(map(len, tasks)) == 2


@dataclass(frozen=True)
class FailsAt:
    """A function of samples that cannot work on one, by its caption."""

    caption: str

    def __call__(self, sample, draws):
        return without_its_module(sample, draws) if sample["caption"] == self.caption else sample


def test_an_error_comes_at_its_step_where_several_batches_are_one_task(data):
    options = {"fields": ["image", "caption"], "training": False, "prefetch": 8}
    expected = batches(data, None, batch_size=8, workers="threads", **options)[:3]
    caption = batches(data, 4, batch_size=8, workers="threads", **options)[3]["caption"][5]
    fails = augment.Custom(FailsAt(caption), always=True)
    options |= {"geometry": [fails, augment.Resize(20, 20)], "threads": 1, "workers": "processes"}
    with closing(data.numpy_loader("train", 8, **options)) as loader:
        loader.pipeline.start_threads()
        wait_until(lambda: loader.report()["workers"]["started"])
        seen = []
        with pytest.raises(LoaderError, match="a_module_that_no_worker_has"):
            seen.extend(batch["caption"].tolist() for batch in loader)
        assert not loader.report()["workers"]["deaths"]
    assert seen == [batch["caption"].tolist() for batch in expected]


def test_the_memory_of_dropped_batches_goes_back_to_the_system(data):
    with stream(data, 16, fields=["field"], prefetch=2) as loader:
        stream_of = started(loader)[1]
        kept = list(islice(stream_of, 200))
        nbytes = sum(batch["field"].nbytes for batch in kept)
        assert shared_bytes() >= nbytes / 2  # threads made the first batches
        del kept
        next(stream_of)  # finds memory that nobody refers to
        wait_until(lambda: shared_bytes() < nbytes / 8)


def test_close_gives_the_memory_back(data):
    loader = data.numpy_loader("train", 16, fields=["field"], cache="decoded", **PROCESSES).repeat()
    _, batches = started(loader)
    list(islice(batches, 40))
    memory, *_ = shared_files()
    assert shared_bytes() > 50_000
    batches.close()
    gc.collect()
    loader.close()
    assert memory.stat().st_blocks * 512 < 50_000
    gc.disable()
    try:
        del loader, batches
        assert "memfd:tfprep" not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
