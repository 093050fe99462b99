"""Every baseline delivers batches of the requested size with the pixels of the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfprep.bench.compare.baselines import Work, baseline
from tfprep.load import Data


def first_images(name: str, data: Data, scratch: Path) -> Any:
    batch = next(baseline(name, Work(data, "train", 8, scratch)).open())
    return np.asarray(batch["image"] if isinstance(batch, dict) else batch[0])


@pytest.mark.parametrize("name", ["tf-guide", "tfds", "keras-directory", "image-data-generator"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_baselines_deliver_the_same_pixels(name: str, raw_data: Data, tmp_path: Path) -> None:
    if name == "tfds":
        pytest.importorskip("tensorflow_datasets")
    stored = {sample["image"].tobytes() for sample in raw_data.samples("train")}
    images = first_images(name, raw_data, tmp_path)
    assert images.shape == (8, 16, 16, 3)
    assert {image.astype(np.uint8).tobytes() for image in images} <= stored


def test_exported_jpeg_files_contain_the_bytes_of_the_dataset(jpeg_data: Data, tmp_path: Path) -> None:
    from tfprep.bench.compare.baselines import export_images

    folder, size = export_images(Work(jpeg_data, "train", 8, tmp_path))
    assert size == (48, 48)
    files = sorted(folder.rglob("*.jpg"))
    assert len(files) == jpeg_data.split("train").samples
    index = jpeg_data.index("train", 0, ["image_size"]).column("image_size").to_pylist()
    by_number = {int(path.stem): path.stat().st_size for path in files}
    assert [by_number[number] for number in range(len(index))] == index
