"""Derived inputs compared with SciPy's, scikit-image's or a direct NumPy implementation.

Run: python benchmarks/derive.py [--sizes 512 1024] [--seconds 2] [--threads 1] [--only NAME] [--json FILE]

The masks are generated: discs of several classes, each a few percent of the image, and 20 and 400 cells for U-Net's weights. Both
functions of a pair must give the same result before they are timed. They take turns in one process. The table shows medians, and
the ratio within a round with its quartiles. OpenCV may use `--threads` threads; the peers use one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from interleaved import Pair, print_timing, time_pair
from scipy import ndimage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra
from skimage.segmentation import find_boundaries

from tfprep import derive

RNG = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024], help="Sides of the images in pixels")
    parser.add_argument("--seconds", type=float, default=2.0, help="Measured seconds per pair")
    parser.add_argument("--threads", type=int, default=1, help="Threads of OpenCV")
    parser.add_argument("--only", default="", help="Measure only pairs whose name contains this text")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    cv2.setNumThreads(options.threads)
    results = []
    for size in options.sizes:
        print(f"{size} x {size}")
        for pair in pairs(size):
            if options.only.lower() in pair.name.lower():
                timing = time_pair(pair, options.seconds)
                print_timing(timing)
                results.append({"size": size, **vars(timing)})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def pairs(size: int) -> Iterator[Pair]:
    mask, image = discs(size, 12), noise(size)
    sample = {"mask": mask, "image": image}
    yield from _distances(sample)
    yield from _clicks(sample)
    yield from _cells(size)
    yield from _others(sample)


def _distances(sample: dict[str, Any]) -> Iterator[Pair]:
    mask = sample["mask"]
    edt = ndimage.distance_transform_edt

    def to_boundary() -> Any:
        return edt(~find_boundaries(mask == 1, connectivity=1, mode="inner"))

    def signed() -> Any:
        inside = mask == 1
        return edt(~inside) - (edt(inside) - 1) * inside

    yield _same("Distance to a class", derive.Distance(), sample, lambda: edt(mask != 1), "SciPy")
    yield _same("Distance to a boundary", derive.Distance(to="boundary"), sample, to_boundary, "SciPy, scikit-image")
    yield _same("SignedDistance", derive.SignedDistance(outline="inner"), sample, signed, "SciPy")


def _clicks(sample: dict[str, Any]) -> Iterator[Pair]:
    points = np.concatenate([np.random.default_rng(1).uniform(0, len(sample["mask"]), (8, 2)), np.eye(8)[:, :1]], 1)
    points[:5, 2] = 1
    with_clicks = {**sample, "clicks": points.astype(np.float32)}
    pixels = [np.floor(points[points[:, 2] == kind, 1::-1]).astype(int) for kind in (1, 0)]

    def by_scipy() -> Any:
        maps = []
        for clicks in pixels:
            free = np.ones(sample["mask"].shape, bool)
            free[tuple(clicks.T)] = False
            maps.append(np.minimum(ndimage.distance_transform_edt(free), 255))
        return np.rint(np.stack(maps, 2))

    yield _same("ClickMaps, 5 and 3 clicks", derive.ClickMaps(), with_clicks, by_scipy, "SciPy")
    for strategy in (1, 2, 3):
        op = derive.Clicks(strategies=(strategy,))
        yield Pair(f"Clicks, drawn by strategy {strategy}", _fresh(op, sample), None, "")


def _cells(size: int) -> Iterator[Pair]:
    for count in (20, 400):
        cells = discs(size, count, numbered=True)
        op = derive.UNetWeights(balance=False, inside=True)
        full = lambda cells=cells: unet_by_full_transforms(cells)  # noqa: E731
        yield _same(f"UNetWeights, {len(np.unique(cells)) - 1} cells", op, {"mask": cells}, full, "SciPy, cell by cell")


def _others(sample: dict[str, Any]) -> Iterator[Pair]:
    mask, image = sample["mask"], sample["image"]
    outline = lambda: find_boundaries(mask, connectivity=1)  # noqa: E731
    yield _same("Boundaries", derive.Boundaries(), sample, outline, "scikit-image")
    points = np.random.default_rng(2).uniform(0, len(mask), (17, 3)).astype(np.float32)
    points[:, 2] = 2
    with_points = {**sample, "points": points}
    yield _same(
        "Heatmaps, 17 points", derive.Heatmaps(), with_points, lambda: heatmaps(mask.shape, points), "NumPy, whole maps"
    )
    one_hot = lambda: (mask[:, :, None] == np.arange(6)).astype(np.uint8)  # noqa: E731
    yield _same("OneHot, 6 classes", derive.OneHot(6), sample, one_hot, "NumPy, comparison")
    gradient = lambda: np.hypot(*(ndimage.sobel(_gray(image), axis, mode="reflect") / 8 for axis in (1, 0)))  # noqa: E731
    yield _same("Sobel", derive.Sobel(), sample, gradient, "SciPy")
    for op in (derive.Canny(), derive.InstanceCenters(), derive.InstanceOffsets(), derive.ChannelStatistics()):
        yield Pair(type(op).__name__, _fresh(op, sample), None, "")
    if len(mask) <= 512:
        smooth = cv2.GaussianBlur(image, (0, 0), 8)
        seeded = {**sample, "image": smooth, "points": np.array([[100.5, 100.5, 1]], np.float32)}
        op = derive.GeodesicDistance(edge_weight_px=50)
        yield _same("GeodesicDistance", op, seeded, lambda: geodesic(smooth, (100, 100), 50), "SciPy, Dijkstra")


def _same(name: str, op: Any, sample: dict[str, Any], peer: Callable[[], Any], peer_name: str) -> Pair:
    """The pair, after a check that both results agree to 0.002."""
    np.testing.assert_allclose(op(sample, RNG).astype(np.float64), peer(), atol=2e-3, err_msg=name)
    return Pair(name, lambda: op(sample, RNG), peer, peer_name)


def _fresh(op: Any, sample: dict[str, Any]) -> Callable[[], Any]:
    return lambda: op(sample, np.random.default_rng(5))


# --- generated masks ------------------------------------------------------------------------------------------------


def discs(size: int, count: int, *, numbered: bool = False) -> Any:
    """Discs in rows that nearly touch, of classes 1 to 5, or numbered from 1."""
    side = int(np.ceil(np.sqrt(count)))
    pitch = size / side
    mask = np.zeros((size, size), np.uint16 if numbered else np.uint8)
    for number in range(count):
        centre = ((number % side + 0.5) * pitch, (number // side + 0.5) * pitch)
        value = number + 1 if numbered else number % 5 + 1
        cv2.circle(mask, (round(centre[0]), round(centre[1])), round(pitch * 0.4), value, -1)
    return mask


def noise(size: int) -> Any:
    return np.random.default_rng(3).integers(0, 256, (size, size, 3), dtype=np.uint8)


# --- references -------------------------------------------------------------------------------------------------


def unet_by_full_transforms(cells: Any) -> Any:
    two = np.full((3, *cells.shape), np.inf)
    for number in np.unique(cells[cells > 0]):
        two[2] = ndimage.distance_transform_edt(cells != number)
        two.sort(axis=0)
    return 1 + 10 * np.exp(-((two[0] + two[1]) ** 2) / 50)


def heatmaps(shape: tuple[int, int], points: Any) -> Any:
    rows, columns = np.indices(shape, np.float32) + np.float32(0.5)
    return np.stack([np.exp(((columns - x) ** 2 + (rows - y) ** 2) / np.float32(-8)) for x, y, _ in points], 2)


def geodesic(image: Any, seed: tuple[int, int], weight: float) -> Any:
    height, width = image.shape[:2]
    number = np.arange(height * width).reshape(height, width)
    colours = image.astype(np.float64) * (weight / 255)
    starts, ends, costs = [], [], []
    whole, head, tail = slice(None), slice(None, -1), slice(1, None)
    for one, other, length in (
        ((whole, head), (whole, tail), 1),
        ((head, whole), (tail, whole), 1),
        ((head, head), (tail, tail), 2),
        ((head, tail), (tail, head), 2),
    ):
        starts.append(number[one].ravel())
        ends.append(number[other].ravel())
        costs.append(np.sqrt(length + np.square(colours[one] - colours[other]).sum(2)).ravel())
    edges = (np.concatenate(starts), np.concatenate(ends))
    graph = coo_matrix((np.concatenate(costs), edges), (height * width,) * 2).tocsr()
    return dijkstra(graph, directed=False, indices=number[seed[1], seed[0]]).reshape(height, width)


def _gray(image: Any) -> Any:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float64)


if __name__ == "__main__":
    main()
