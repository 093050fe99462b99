"""tfprep's loader with each way to distribute a training: every sample of an epoch comes exactly once."""

import json
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.warm_python import WarmPython, run_python
from tfprep import train

WORKER = Path(__file__).parents[1] / "first_hour" / "two_hosts_tensorflow.py"

MIRRORED = """
import json, sys
import keras
import numpy as np
import tensorflow as tf
import tfprep
from tfprep.train import InputMonitor, RetraceGuard

folder, logs = sys.argv[1:]
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
train = tfprep.open(folder).loader("train", batch_size=10, seed=4, inputs="clicks", targets="label")
seen, shares = [], []
iterator = iter(strategy.experimental_distribute_dataset(train))
for _ in range(train.steps_per_epoch):
    clicks, _ = next(iterator)
    local = [np.asarray(share) for share in strategy.experimental_local_results(clicks)]
    shares.append([len(share) for share in local])
    seen += [int(image[0, 0, 0]) + 256 * int(image[0, 0, 1]) for share in local for image in share]
with strategy.scope():
    model = keras.Sequential([keras.Input([24, 32, 2]), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
monitor = InputMonitor(logs, every_s=60)
callbacks = [monitor, RetraceGuard()]
model.fit(train, steps_per_epoch=5, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
last = monitor.samples[-1]
with InputMonitor(logs, every_s=60) as loop:
    for _ in loop.watch(strategy.experimental_distribute_dataset(train)):
        pass
images = sum(sample.waits.images for sample in loop.samples)
train.close()
print(json.dumps({"seen": seen, "shares": shares, "step": last.step, "share": last.waits.share, "images": images}))
"""


def test_mirrored_strategy_on_two_devices(photos, tmp_path):
    """Runs in a new process, since devices are created before anything else, and collectives are counted from the start."""
    done = run_python(["-c", MIRRORED, str(photos.path), str(tmp_path)])
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(shares == [5, 5] for shares in result["shares"])
    assert sorted(number % 1000 for number in result["seen"]) == list(range(50))
    assert result["step"] == 10
    assert result["share"] is None  # it is not measured here
    assert result["images"] == 50  # of both devices


def test_multi_worker_mirrored_strategy_in_two_processes(photos, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        cluster = {"worker": [f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]}
    running = []
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        environment = {"TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_ENABLE_FORK_SUPPORT": "0"}
        running.append(WarmPython([str(WORKER), str(photos.path), str(tmp_path / f"{index}.json")], env=environment))
    try:
        for process in running:
            _, errors = process.communicate(timeout=150)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    first, second = (json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2))
    assert len(first["seen"]) == len(second["seen"]) == 25
    assert sorted(number % 1000 for number in [*first["seen"], *second["seen"]]) == list(range(50))
    assert first["weights"] == second["weights"]  # One model, trained by both.
    assert any(first["weights"])


@pytest.fixture
def service(tf):
    """The address of a dispatcher with two workers of the tf.data service, on loopback."""
    servers = tf.data.experimental.service
    dispatcher = servers.DispatchServer(servers.DispatcherConfig(port=0))
    address = dispatcher.target.split("://")[1]
    workers = [servers.WorkerServer(servers.WorkerConfig(dispatcher_address=address, port=0)) for _ in range(2)]
    yield dispatcher.target
    for worker in workers:
        worker._stop()
    dispatcher._stop()


def test_tf_data_service_with_two_workers(tf, photos, service):
    """Dynamic sharding gives each worker some of the shards: each sample comes once. Its clicks hold its number."""
    dataset = tfprep.open(photos.path).tf_dataset("val", batch_size=3, inputs="clicks")
    distribute = tf.data.experimental.service.distribute(
        processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC, service=service
    )
    clicks = np.concatenate(list(dataset.apply(distribute).as_numpy_iterator()))
    assert sorted(clicks[:, 0, 0, 0] + 256 * clicks[:, 0, 0, 1].astype(int)) == list(range(11))


def test_the_monitor_reports_the_loaders_counters(tf, photos, tmp_path):
    loader = tfprep.open(photos.path).loader("train", batch_size=10, inputs="clicks", targets="label")
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([24, 32, 2]), layers.Flatten(), layers.Dense(3)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monitor = train.InputMonitor(tmp_path, every_s=60)
    model.fit(loader, steps_per_epoch=5, verbose=0, shuffle=False, callbacks=[monitor])
    (sample,) = monitor.samples
    assert sample.readers["batches"] >= 5
    assert "batches_ready" in sample.readers
    assert sample.waits is not None
    assert sample.waits.images == 50
    assert "int64 (10,)" in train.check_batches(loader, 2, num_classes=3)
    assert train.memory_report(model, 10, data=loader).input_buffers == 2 * 10 * 24 * 32 * 2
    loader.close()
