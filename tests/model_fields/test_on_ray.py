"""The lines of docs/fields.md for a Ray cluster, on two nodes with a GPU each, as far as Ray knows."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfprep
from tests.model_fields.conftest import check_all

pytest.importorskip("ray")
PAGE = (Path(__file__).parents[2] / "docs/fields.md").read_text()
CLUSTER = """
import logging
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1, num_gpus=1)
import ray
options = {"log_to_driver": False, "logging_level": logging.ERROR}
"""


def test_parts_run_as_tasks_with_a_gpu(plain):
    (block,) = re.findall(r"```python\n(import ray\n.*?)```", PAGE, re.S)
    lines = block.replace("8", "3").replace("ray.init()", "ray.init(cluster.address, **options)")
    lines = lines.replace("/shared/photos", str(plain.out)).replace("/shared/teacher.py", str(plain.fields))
    script = plain.root / "on_ray.py"
    script.write_text(CLUSTER + lines)
    folders = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": folders, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    check_all(plain)
    processes = {line.split()[0] for line in (plain.root / "calls.txt").read_text().splitlines()}
    assert len(processes) >= 2
    files = [file for info in tfprep.open(plain.out).splits.values() for of in info.files for file in of]
    assert len(plain.calls) == sum(math.ceil(file.records / 4) for file in files)
