"""JPEG decoding at 1/2, 1/4 and 1/8 in the DCT domain, compared with full decoding and area averaging.

Run: python benchmarks/dct_downscale.py --data data/photos [--images 40] [--json FILE]

For each factor the output shows the CPU time of a full decode as a multiple of that of the scaled decode (interleaved, median
over the images), and the difference of its pixels to the area average of the full image: mean absolute difference in levels, and
PSNR in dB (mean and minimum).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, median

import cv2
import numpy as np
import simplejpeg

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with JPEG files in it or below it")
    parser.add_argument("--images", type=int, default=40, help="Number of images to decode")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    paths = sorted(path for path in options.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    files = [path.read_bytes() for path in paths[:: max(1, len(paths) // options.images)][: options.images]]
    result = {f"1/{factor}": measured(files, factor) for factor in (2, 4, 8)}
    for name, figures in result.items():
        print(
            f"{name}: {', '.join(f'{figure} {value:.3g}' for figure, value in figures.items())} ({len(files)} images)"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def measured(files: list[bytes], factor: int) -> dict[str, float]:
    gains, differences, psnrs = [], [], []
    for data in files:
        whole = simplejpeg.decode_jpeg(data)
        height, width = (side // factor * factor for side in whole.shape[:2])
        small = scaled(data, whole.shape[:2], factor)[: height // factor, : width // factor]
        average = cv2.resize(whole[:height, :width], (width // factor, height // factor), interpolation=cv2.INTER_AREA)
        error = small.astype(np.float64) - average
        differences.append(float(np.abs(error).mean()))
        psnrs.append(float(20 * np.log10(255 / np.sqrt(np.mean(error**2)))))
        gains.append(gain(data, whole.shape[:2], factor))
    return {
        "times_less_cpu": median(gains), "mean_difference": mean(differences), "psnr_db": mean(psnrs), "worst_db": min(psnrs)
    }  # fmt: skip


def scaled(data: bytes, size: tuple[int, int], factor: int) -> np.ndarray:
    least = [-(-side // factor) for side in size]
    return simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], min_factor=factor)


def gain(data: bytes, size: tuple[int, int], factor: int) -> float:
    ratios = []
    for _ in range(ROUNDS):
        times = [time.thread_time()]
        simplejpeg.decode_jpeg(data)
        times.append(time.thread_time())
        scaled(data, size, factor)
        times.append(time.thread_time())
        ratios.append((times[1] - times[0]) / (times[2] - times[1]))
    return median(ratios)


if __name__ == "__main__":
    main()
