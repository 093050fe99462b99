"""tfprep beside one NVIDIA GPU, in at most 8 minutes. Without a GPU, or with `--small`, small sizes run on the CPU.

    python benchmarks/gpu.py [--only fit,isolated] [--small] [--json FILE]

Each part runs in a process of its own. One that fails, or that needs a package that is not installed, has the reason as its row.
Memory of the device, in MB of 2^20 bytes, and its utilization are those of nvidia-smi: nothing else should use the GPU.

- fit: ResNet-50 in mixed precision from records, by `image_dataset_from_directory`, and by tf.data on the same files, in turns.
- limit: `configure_gpu` with a memory limit, a GPU that does not exist, and a call after the first tensor.
- isolated: memory before, during and after a function that takes some, with `configure_gpu(growth=True)`.
- memory_report: its measured step, beside a step on real images and the memory of the device.
- batch_size: `find_batch_size` where 6 GB of the device are free, and whether an eighth and a quarter more fit.
- prefetch_to_device, jax_loader, torch_loader: images/s of a short step with transfers ahead of their use, and without.
- bench, model_fields: `tfprep bench --model` with ResNet-50, and `add_fields` with it, without its head.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cv2
import gpu_models
import harness
import loader_data
from gpu_models import BATCH, SIZE, STEPS, device, resnet

import tfprep
from tfprep import ModelFields, Recipe, augment, codecs, sources, train
from tfprep.errors import MissingDependencyError, TrainError

HELD_MB, FREE_MB = 2000, 6000
"""Memory that `limit` allows and `isolated` takes, and that `batch_size` leaves for its trials."""
TOTAL_S, PART_S = 480, 200
SMI = "nvidia-smi -i 0 --query-gpu={} --format=csv,noheader,nounits"


def main() -> None:
    options = harness.arguments(
        __doc__ or "", only=("", "Parts to run, separated by commas"), small=(False, "Small sizes on the CPU"),
        part=([], "For the process of a part: its name, and the folder of the data"),
    )  # fmt: skip
    if options.part:
        name, folder = options.part
        try:
            result = PARTS[name](Path(folder))
        except (ModuleNotFoundError, MissingDependencyError) as error:
            result = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(result))
        return
    began, gpu = time.monotonic(), "" if options.small else smi("name,driver_version,memory.total")
    environment = {**os.environ, **({} if gpu else {gpu_models.SMALL: "1", "CUDA_VISIBLE_DEVICES": ""})}
    with tempfile.TemporaryDirectory() as folder:

        def run(name: str) -> dict[str, Any]:
            start = time.monotonic()
            left_s = min(PART_S, max(1, began + TOTAL_S - start))
            command = f"timeout -s KILL {left_s}".split()  # kills what the part has started, too
            command += [sys.executable, __file__, "--part", name, folder]
            process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
            status = process.returncode
            row = {"failed": f"status {status}"} if status else json.loads(process.stdout.splitlines()[-1])
            print(name, row, file=sys.stderr, flush=True)
            return {**row, "part_s": time.monotonic() - start}

        rows = {"data": run("data")}
        names = options.only.split(",") if options.only else [name for name in PARTS if name != "data"]
        names = [] if "failed" in rows["data"] else names
        with ThreadPoolExecutor(1 if gpu else 2) as pool:  # a GPU is for one part at a time
            rows.update(zip(names, pool.map(run, names), strict=True))
    results = {"gpu": gpu or None, "cpus": os.cpu_count(), "seconds": time.monotonic() - began, "parts": rows}
    print(json.dumps(results, indent=1))
    harness.finish(options, results, failed=any("failed" in row for row in rows.values()))


def data(folder: Path) -> dict[str, Any]:
    """Write JPEG files in class folders, and build them in the size of the training."""
    for number, image in enumerate(loader_data.images(gpu_models.IMAGES, SIZE * 2)):
        file = folder / "photos" / f"{number % gpu_models.CLASSES:02d}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(file), image)
    store = {"image": codecs.Jpeg(95), "label": codecs.Scalar()}
    recipe = Recipe("photos", sources.Folder(), store, geometry=[augment.Resize(SIZE, SIZE)])
    tfprep.build(recipe, folder / "built", folder / "photos")
    return {}


def batches_of(folder: Path, kind: str = "loader", **options: Any) -> Any:
    """Batches of a loader, without end."""
    made = getattr(tfprep.open(folder / "built"), kind)
    return made("train", BATCH, inputs="image", targets="label", seed=0, **options).repeat()


def smi(query: str) -> str:
    """What nvidia-smi says of the first GPU; "" without it."""
    try:
        return subprocess.run(SMI.format(query).split(), capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def rates(step: Callable[[Any], Any], **pipelines: Iterable[Any]) -> dict[str, float]:
    """Images/s of loops over batches of (images, labels); the first batches do not count."""
    result = {}
    for name, batches in pipelines.items():
        iterator = iter(batches)
        for images, _ in islice(iterator, 5):
            float(step(images))
        start = time.perf_counter()
        results = [step(images) for images, _ in islice(iterator, STEPS)]
        float(results[-1])  # waits for the device
        result[name] = STEPS * BATCH / (time.perf_counter() - start)
    return result


def limit(folder: Path) -> dict[str, Any]:
    if SIZE < 224:
        raise MissingDependencyError("no GPU")
    import tensorflow as tf

    before = smi("memory.used")
    with suppress(TrainError):
        train.configure_gpu(visible=[99])
        raise AssertionError("GPU 99 was found")
    gpus = train.configure_gpu(visible=[0], memory_limit_mb=HELD_MB)
    tensor, during = tf.ones([HELD_MB // 2, 1 << 18]), smi("memory.used")
    with suppress(tf.errors.ResourceExhaustedError):
        tf.ones([HELD_MB, 1 << 18])
        raise AssertionError("more memory was taken than the limit allows")
    with suppress(TrainError):
        train.configure_gpu(growth=True)
        raise AssertionError("a call after the first tensor was accepted")
    return {"gpus": gpus, "tensor": tensor.device, "before_mb": before, "during_mb": during}


def isolated(folder: Path) -> dict[str, Any]:
    before, during = smi("memory.used"), train.isolated(take, HELD_MB if SIZE == 224 else 1)
    time.sleep(1)  # the driver frees the memory of a process after its end
    return {"memory": [before, during, smi("memory.used")]}


def take(size: int) -> str:
    import tensorflow as tf

    device()
    held = tf.ones([size, 1 << 18])
    return smi("memory.used") if held.shape else ""


def fit(folder: Path) -> dict[str, Any]:
    def turn(batches: Any) -> list[float]:
        monitor = train.InputMonitor(folder / "logs")
        command = f"{SMI.format('utilization.gpu')} -lms 500" if SIZE == 224 else "sleep 60"
        with subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True) as sampling:
            model.fit(batches, steps_per_epoch=STEPS, verbose=0, shuffle=False, callbacks=[monitor])
            sampling.terminate()
            percent = [float(word) for word in sampling.communicate()[0].split()]
        waits = monitor.total().waits  # type: ignore[union-attr] # it has measured
        return [waits.images_per_s or 0, waits.share or 0, mean(percent or [0])]

    import keras

    policy = "float32" if device() == "/CPU:0" else "mixed_bfloat16"
    keras.config.set_dtype_policy(policy)
    model = resnet()
    candidates = {
        "tfprep": batches_of(folder),
        "image_dataset_from_directory": gpu_models.from_directory(folder / "photos"),
        "tf.data": gpu_models.tf_data(folder / "photos"),
    }
    turns = {name: partial(turn, batches) for name, batches in candidates.items()}
    runs = harness.in_turns(turns, 2 if SIZE == 224 else 1, warm_up=1)
    columns = {name: [median(column) for column in zip(*values, strict=True)] for name, values in runs.items()}
    return {"policy": policy, "images_per_s, wait_share, gpu_percent": columns}


def bench(folder: Path) -> dict[str, Any]:
    options = f"--batch-size {BATCH} --inputs image --targets label --rounds 1 --seconds {STEPS / 20} --json"
    command = f"{sys.executable} -m tfprep bench {folder / 'built'} --model {gpu_models.__file__}:resnet {options}"
    output = subprocess.run(command.split(), stdout=subprocess.PIPE, check=True).stdout
    return {name: json.loads(output)["model"][name] for name in ("images_per_s", "share", "limit")}


def memory_report(folder: Path) -> dict[str, Any]:
    import tensorflow as tf

    before, name, model = smi("memory.used"), device(), resnet()
    report = train.memory_report(model, BATCH)
    measured_mb = None if report.measured_peak is None else report.measured_peak / 1e6
    result = {"counted_mb": report.counted / 1e6, "measured_mb": measured_mb}
    if name == "/CPU:0":
        return result
    batch, info = next(iter(batches_of(folder))), tf.config.experimental.get_memory_info
    tf.config.experimental.reset_memory_stats("GPU:0")
    current = info("GPU:0")["current"]
    model.train_on_batch(*batch)
    return {**result, "step_mb": (info("GPU:0")["peak"] - current) / 1e6, "device_mb": [before, smi("memory.used")]}


def model_fields(folder: Path) -> dict[str, Any]:
    from tfprep.model_fields import add_fields

    copy = shutil.copytree(folder / "built", folder / "with_fields")
    fields = ModelFields(model=embed, inputs=["image"], store={"embedding": codecs.Raw("float16")}, batch_size=BATCH)
    summary = add_fields(copy, fields)
    shape = tfprep.open(copy).fields["embedding"].shape
    share = summary.model_s / summary.seconds
    return {"samples_per_s": summary.samples / summary.seconds, "model_share": share, "shape": shape}


def embed() -> Callable[[Any], dict[str, Any]]:
    import keras

    device()
    model = resnet()
    features = keras.Model(model.inputs, model.layers[-2].output)
    return lambda batch: {"embedding": features.predict_on_batch(batch["image"])}


def batch_size(folder: Path) -> dict[str, Any]:
    """On a GPU this process takes all memory but `FREE_MB`, so that the trials meet a limit that is known."""
    if free := smi("memory.free") if SIZE == 224 else "":
        train.configure_gpu(memory_limit_mb=int(free) - FREE_MB)
        resnet()
    began = time.monotonic()
    found = train.find_batch_size(gpu_models.wide, gpu_models.zeros, largest=4096 if free else 2)
    result = {"found": found.size, "trials": len(found.trials), "search_s": time.monotonic() - began}
    larger = [found.size * 9 // 8, found.size * 5 // 4 + 1] if free else []
    return {
        **result,
        "free_mb": smi("memory.free"),
        "fits": {size: train.isolated(gpu_models.fits, size) for size in larger},
    }


def prefetch_to_device(folder: Path) -> dict[str, Any]:
    import tensorflow as tf

    name, weights, loader = device(), tf.ones([3, 3, 3, 32]), batches_of(folder)
    step = tf.function(lambda images: tf.reduce_mean(tf.nn.conv2d(tf.cast(images, tf.float32), weights, 1, "SAME")))
    ahead = loader.apply(tf.data.experimental.prefetch_to_device(name))
    return {"tensor": next(iter(ahead))[0].device, **rates(step, ahead=ahead, not_ahead=loader)}


def jax_loader(folder: Path) -> dict[str, Any]:
    import jax

    weights = jax.numpy.ones([32, 3, 3, 3], jax.numpy.bfloat16)

    @jax.jit
    def step(images: Any) -> Any:
        return jax.lax.conv(images.astype("bfloat16").transpose(0, 3, 1, 2), weights, (1, 1), "SAME").mean()

    ahead, not_ahead = (batches_of(folder, "jax_loader", ahead=number) for number in (2, 0))
    return {"device": str(jax.devices()[0]), **rates(step, ahead=ahead, not_ahead=not_ahead)}


def torch_loader(folder: Path) -> dict[str, Any]:
    import torch

    name = "cuda" if torch.cuda.is_available() else "cpu"
    weights = torch.ones([32, 3, 3, 3], device=name)

    def ahead() -> Iterator[Any]:
        coming = None
        for images, labels in batches_of(folder, "torch_loader"):
            current, coming = coming, (images.pin_memory() if name == "cuda" else images).to(name, non_blocking=True)
            if current is not None:
                yield current, labels

    def step(images: Any) -> Any:
        return torch.nn.functional.conv2d(images.permute(0, 3, 1, 2).float(), weights).mean()

    not_ahead = ((images.to(name), labels) for images, labels in batches_of(folder, "torch_loader"))
    return {"device": name, **rates(step, ahead=ahead(), not_ahead=not_ahead)}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "data": data, "fit": fit, "limit": limit, "isolated": isolated, "bench": bench, "memory_report": memory_report,
    "prefetch_to_device": prefetch_to_device, "model_fields": model_fields, "batch_size": batch_size,
    "jax_loader": jax_loader, "torch_loader": torch_loader,
}  # fmt: skip

if __name__ == "__main__":
    main()
