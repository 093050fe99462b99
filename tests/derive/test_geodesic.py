"""Geodesic distance compared with Dijkstra's algorithm on the graph of its definition."""

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from tfprep.derive import GeodesicDistance
from tfprep.derive.geodesic import geodesic_distance


def by_dijkstra(image, seeds, gamma):
    height, width = seeds.shape
    colours = image.astype(float) / 255
    starts, ends, costs = [], [], []
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                r, c = row + down, column + right
                if r < height and 0 <= c < width:
                    jump = gamma * np.linalg.norm(colours[row, column] - colours[r, c])
                    starts.append(row * width + column)
                    ends.append(r * width + c)
                    costs.append(np.sqrt(down * down + right * right + jump * jump))
    graph = coo_matrix((costs, (starts, ends)), (height * width,) * 2)
    return dijkstra(graph, directed=False, indices=np.flatnonzero(seeds), min_only=True).reshape(height, width)


def maze(size=31):
    """A spiral, in which the path to the centre is much longer than the straight line."""
    image = np.zeros((size, size, 3), np.uint8)
    for ring in range(0, size // 2, 4):
        image[ring : size - ring, ring : size - ring] = 255
        image[ring + 2 : size - ring - 2, ring + 2 : size - ring - 2] = 0
        image[ring + 5, ring : ring + 2] = 0
    return image


NOISE = np.random.default_rng(0).integers(0, 256, (23, 31, 3), dtype=np.uint8)
SMOOTH = np.linspace(0, 255, 23 * 31).reshape(23, 31, 1).repeat(3, 2).astype(np.uint8)


@pytest.mark.parametrize("image", [NOISE, SMOOTH, maze(), NOISE[:1], NOISE[:, :1]])
@pytest.mark.parametrize("gamma", [0, 5, 200])
def test_raster_scans_reach_dijkstras_distances(image, gamma):
    seeds = np.zeros(image.shape[:2], bool)
    seeds[0, 0] = seeds[-1, -1] = True
    np.testing.assert_allclose(geodesic_distance(image, seeds, gamma), by_dijkstra(image, seeds, gamma), atol=1e-6)


def test_fewer_scans_give_an_upper_bound():
    seeds = np.zeros((31, 31), bool)
    seeds[15, 15] = True
    one, exact = (geodesic_distance(maze(), seeds, 50, scans) for scans in (1, None))
    assert (one >= exact - 1e-9).all()
    assert (one > exact + 1).any()


def sample(points, image=NOISE):
    return {"image": image, "points": np.array(points, np.float32)}


@pytest.mark.parametrize("gamma", [0, 100])
def test_without_truncation_no_path_is_cut_and_no_point_is_farther_than_all(gamma):
    board = (np.indices((9, 40)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None].repeat(3, 2)
    seeds = np.zeros((9, 40), bool)
    seeds[0, 0] = True
    op = GeodesicDistance(edge_weight_px=gamma)
    out = op(sample([[0.5, 0.5, 1]], board), np.random.default_rng(0))
    np.testing.assert_allclose(out, by_dijkstra(board, seeds, gamma), rtol=1e-6)
    absent = op(sample(np.zeros((0, 3)), board), np.random.default_rng(0))
    assert absent.min() == absent.max() >= out.max() - 1e-3
    if gamma == 0:
        assert absent[0, 0] == pytest.approx(out.max())
