"""The scales of an affine transform, compared with NumPy's singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.augment.transform import Transform
from tfprep.augment.warp import singular_values


@pytest.mark.parametrize("seed", range(20))
def test_scales_equal_the_singular_values(seed):
    rng = np.random.default_rng(seed)
    matrix = np.eye(3)
    matrix[:2] = rng.normal(0, 10.0 ** rng.integers(-3, 4), (2, 3))
    largest, smallest = singular_values(Transform(matrix, (10, 10)))
    expected = np.linalg.svd(matrix[:2, :2], compute_uv=False)
    np.testing.assert_allclose([largest[0], smallest[0]], expected, rtol=1e-9)
