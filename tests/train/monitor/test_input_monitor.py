"""What the monitor reports about a slow input, a fast one, and a buffer that fills, and that it writes it to its files."""

import json
import logging

import numpy as np
import pytest

from tfprep import errors, train


def _lines(folder):
    return [json.loads(line) for line in (folder / "input.jsonl").read_text().splitlines()]


def _steady(monitor):
    """The windows between the one with the trace and the last, which is shorter."""
    with_batches = [sample.waits for sample in monitor.samples if sample.waits and sample.waits.batches]
    assert len(with_batches) > 3
    return with_batches[1:-1]


def test_a_slow_input_is_reported_once_with_its_stage(dense, pairs, tmp_path, caplog):
    dataset = pairs(160, lambda number: 0.005).shuffle(2).batch(4).prefetch(2)
    monitor = train.InputMonitor(tmp_path, every_s=0.2)
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(dataset, verbose=0, shuffle=False, callbacks=[monitor])
    # Another warning may name the other programs of a busy machine, or what is slow while a window has no batch of the map.
    reported = [warned for warned in monitor.warnings if warned.cause == "python map"]
    assert len(reported) == 1
    text = reported[0].text
    assert "Map (" in text
    assert "tfprep build" in text
    assert sum(text in record.getMessage() for record in caplog.records) == 1
    steady = _steady(monitor)
    # The step takes longer on a busy machine; the wait is 20 ms and more on every machine.
    assert sorted(waits.share for waits in steady)[len(steady) // 2] > 0.4
    assert all(waits.quantile_ms(50) > 12 for waits in steady)
    warned = [line["warning"] for line in _lines(tmp_path) if "warning" in line]
    assert [line["cause"] for line in warned if line["text"] == text] == ["python map"]


def test_a_fast_input_gives_no_warning(tf, dense, slow_step, tmp_path):
    # On a busy machine threads wait for each other, but for far less than a slow input does.
    monitor = train.InputMonitor(tmp_path, every_s=0.1, wait_share=0.5)
    batch = tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.ones([4, 4]))).repeat(12).map(lambda x, y: (x + 1, y))
    dense.fit(batch.prefetch(4), verbose=0, shuffle=False, callbacks=[monitor, slow_step(0.2)])
    assert monitor.warnings == []
    assert monitor.samples[-1].step == 12
    assert sorted(waits.share for waits in _steady(monitor))[len(_steady(monitor)) // 2] < 0.3
    in_the_middle = [sample.stages[0] for sample in monitor.samples if 0 < sample.step < 12]
    assert {stage.kind for stage in in_the_middle} == {"Prefetch"}
    assert max(stage.elements for stage in in_the_middle) >= 3


def test_a_shuffle_buffer_that_fills_is_reported(pairs, tmp_path):
    dataset = pairs(80, lambda number: 0.02).shuffle(60).batch(4)
    with train.InputMonitor(tmp_path, every_s=0.2) as monitor:
        next(monitor.watch(dataset))
    (warned,) = (warned for warned in monitor.warnings if warned.cause == "shuffle")
    assert "/Shuffle) fills, " in warned.text
    pending = [sample.waits.pending_s for sample in monitor.samples if sample.waits]
    assert max(pending) > 0.5


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, at the end of each epoch of unknown length.
def test_epochs_of_unknown_length(tf, dense, tmp_path):
    """Such an epoch ends with an error inside the step, which must not end anything else."""
    scalar = tf.TensorSpec([], tf.int64)
    numbers = tf.data.Dataset.from_generator(lambda: iter(range(10)), output_signature=scalar)
    dataset = numbers.map(lambda number: (tf.ones([8]), tf.ones([4]))).batch(4)
    monitor = train.InputMonitor(tmp_path, every_s=60)
    dense.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=[monitor, train.RetraceGuard()])
    assert monitor.samples[-1].step == 9
    assert monitor.samples[-1].waits is not None
    assert monitor.samples[-1].waits.images == 30


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras, when it saves weights.
@pytest.mark.parametrize("eagerly", [False, True])
def test_numpy_arrays_and_a_custom_train_step(tf, tmp_path, eagerly):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Model()
    model.compile("sgd", run_eagerly=eagerly)
    monitor = train.InputMonitor(tmp_path, every_s=60)
    x, y = np.ones([40, 8], "f"), np.zeros([40, 2], "f")
    before = float(tf.reduce_mean(model(x) ** 2))
    model.fit(x, y, epochs=3, verbose=0, callbacks=[monitor, train.RetraceGuard()])
    assert float(tf.reduce_mean(model(x) ** 2)) < before
    assert monitor.samples[-1].step == 6
    model.save_weights(tmp_path / "model.weights.h5")


def test_the_model_is_restored_after_training(dense, pairs, tmp_path):
    import keras

    from tfprep.train.steps import TrainSteps

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("in the middle")

    monitor = train.InputMonitor(tmp_path, every_s=0.2)
    dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[monitor])
    assert not isinstance(dense.train_function, TrainSteps)
    with pytest.raises(RuntimeError, match="in the middle"):
        dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[monitor, Fails()])
    dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[monitor])
    assert monitor.samples[-1].step == 2 + 1 + 2
    assert not isinstance(dense.train_function, TrainSteps)


def test_training_is_the_same_with_and_without_a_monitor(tf, tmp_path):
    def losses(callbacks):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        x = tf.random.stateless_normal([60, 8], [1, 2])
        dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :4])).shuffle(60, seed=5).batch(8)
        history = model.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        return [float(loss) for loss in history.history["loss"]]

    watched = losses([train.InputMonitor(tmp_path, every_s=0.2), train.RetraceGuard()])
    assert watched == losses([])


def test_a_long_run_is_summed_up_whole(tf, tmp_path, monkeypatch):
    """Of the samples only the last two are kept."""
    from tfprep.train.monitor import input_monitor

    monkeypatch.setattr(input_monitor, "_KEPT", 2)
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        batches = monitor.watch(tf.data.Dataset.range(48).batch(4))
        for _ in range(4):
            for _ in range(3):
                next(batches)
            monitor.sample()
        total = monitor.total()
    assert len(monitor.samples) == 2
    assert total is not None
    assert (total.waits.batches, total.waits.images) == (12, 48)


def test_another_object_with_a_report_is_not_taken_for_a_loader(tmp_path):
    class Batches:
        report = print

        def __iter__(self):
            return iter([np.ones([4])] * 3)

    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        assert len(list(monitor.watch(Batches()))) == 3
    assert (monitor.samples[-1].readers, monitor.summary[:23]) == ({}, "InputMonitor: 3 batches")


def test_each_sample_is_passed_on_as_it_is_written(pairs, dense, tmp_path):
    seen = []
    monitor = train.InputMonitor(tmp_path, every_s=60, on_sample=seen.append)
    dense.fit(pairs(12).batch(4), verbose=0, shuffle=False, callbacks=[monitor])
    assert seen[-1]["step"] == 3
    assert [line for line in _lines(tmp_path) if "waits" in line] == json.loads(json.dumps(seen))


def test_tensorboard_reads_the_numbers_of_the_lines(pairs, dense, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):  # a file for each run
        monitor = train.InputMonitor(tmp_path, every_s=60)
        dense.fit(pairs(12).batch(4).prefetch(2), verbose=0, shuffle=False, callbacks=[monitor])
    events = accumulator.EventAccumulator(str(tmp_path / "input"))
    events.Reload()
    lines = [line for line in _lines(tmp_path) if "waits" in line]

    def charted(tag):
        return [(event.step, event.value) for event in events.Scalars(tag)]

    assert [step for step, _ in charted("input/wait_share")] == [3, 6]
    for tag, name in (
        ("input/wait_share", "share"),
        ("input/wait_ms/p99", "p99_ms"),
        ("input/images_per_s", "images_per_s"),
    ):
        assert charted(tag) == [(line["step"], pytest.approx(line["waits"][name])) for line in lines]
    assert charted("machine/rss_mb") == [(line["step"], pytest.approx(line["rss"] / 1e6)) for line in lines]


def test_a_function_that_fails_hides_no_warning(pairs, tmp_path):
    with train.InputMonitor(tmp_path, every_s=60, on_sample=lambda sample: sample["gone"]) as monitor:
        batches = monitor.watch(pairs(12, lambda number: 0.02).batch(4))
        for _ in range(2):
            next(batches)
            with pytest.raises(KeyError, match="gone"):
                monitor.sample()
    assert monitor.warnings


@pytest.mark.parametrize(
    ("failing", "message", "summary"),
    [
        ("tfprep.train.steps.timed_tensors", "cannot be measured", ""),
        ("tfprep.train.monitor.input_monitor.counters", "no summary", ""),
        ("on_sample", "KeyError: 'gone'", "InputMonitor: 4 batches"),
        ("input.jsonl", "No space left on device", "InputMonitor: 4 batches"),
    ],
)
def test_what_fails_in_the_monitor_does_not_end_the_training(
    dense, pairs, tmp_path, monkeypatch, caplog, failing, message, summary
):
    options = {"on_sample": lambda sample: sample["gone"]} if failing == "on_sample" else {}
    if failing == "input.jsonl":
        (tmp_path / failing).symlink_to("/dev/full")
    elif not options:
        monkeypatch.setattr(failing, lambda *arguments: {}["gone"])
    monitor = train.InputMonitor(tmp_path, every_s=60, **options)
    history = dense.fit(pairs(20).batch(4), verbose=0, shuffle=False, callbacks=[monitor])
    assert len(history.history["loss"]) == 1
    assert monitor.summary[: len("InputMonitor: 4 batches")] == summary
    assert caplog.text.count(message) == 1


def test_the_time_after_a_loop_that_breaks_does_not_count(tmp_path):
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        for _ in monitor.watch(iter([1, 2, 3])):
            break
        assert monitor.sample().waits.batches == 1
        assert monitor.sample().waits.window_s == 0
        batches = monitor.watch(iter([1, 2, 3]))
        batches = monitor.watch(iter([1, 2, 3]))  # the one before is dropped after this one began
        next(batches)
        assert monitor.sample().waits.window_s > 0
        assert monitor.sample().waits.window_s > 0


def test_a_full_disk_is_said_once(tmp_path, caplog):
    (tmp_path / "input.jsonl").symlink_to("/dev/full")
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        for _ in monitor.watch(iter([np.zeros([4, 2])] * 9)):
            monitor.sample()
    assert len(monitor.samples) == 10
    assert len(caplog.messages) == 1
    assert "input.jsonl cannot be written ([Errno 28] No space left on device), and is not continued" in caplog.text


def test_a_function_that_would_keep_one_batch_is_refused(tf, tmp_path):
    with train.InputMonitor(tmp_path) as monitor:
        batches = monitor.watch(tf.data.Dataset.range(8))
        with pytest.raises(errors.TrainError, match="pass it the batch"):
            tf.function(lambda: next(batches))()
        assert tf.function(lambda batch: batch + 0)(next(batches)) == 0
