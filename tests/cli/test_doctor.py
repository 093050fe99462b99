"""`tfprep doctor`: each finding where it is true, on this machine and on others that are made up."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfprep.bench import machine
from tfprep.limits import usable_cpus


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """What is found, by name, with other values in place of those of this machine."""

    def findings(**replaced):
        replaced.setdefault("LIST_GPUS", "print('[[], null]')")
        for name, value in replaced.items():
            monkeypatch.setattr(machine, name, value)
        return {finding.name: finding for finding in machine.examine(tmp_path)}

    return findings


def installed_with(*names):
    return {"_version": dict.fromkeys(names, "5.0").get}


def test_this_machine(findings, tmp_path):
    pytest.importorskip("tensorflow")
    seen = findings()
    assert seen["Processor"].value.startswith(f"{usable_cpus()} of ")
    assert f"tensorflow {version('tensorflow')}, numpy {version('numpy')}" in seen["Packages"].value
    assert " free, " in seen["Disk"].value


def test_command_prints_json_and_its_status_says_whether_there_is_a_problem(run, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "LIST_GPUS", "print('[[], null]')")
    monkeypatch.setattr(machine, "available_memory", lambda: 8 << 30)
    status, out, _ = run("doctor", tmp_path, "--json")
    report = json.loads(out)
    assert (status, report["problems"]) == (0, 0), report
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 30)
    status, out, _ = run("doctor", tmp_path)
    assert status == 1
    assert "FAIL Memory      1.07 GB free" in out
    assert "end other programs" in out
    status, _, err = run("doctor", tmp_path / "none")
    assert status == 1
    assert "is not a folder; name the one where datasets are to be" in err


CASES = {
    "no OpenCV": (installed_with("tensorflow"), "OpenCV", "note", "pip install 'tfprep[opencv]'"),
    "two flavors of OpenCV": (
        installed_with("tensorflow", "opencv-python", "opencv-python-headless"), "OpenCV", "problem",
        "pip uninstall opencv-python opencv-python-headless; pip install opencv-python-headless",
    ),
    "no TensorFlow": (installed_with("opencv-python"), "TensorFlow", "note", "pip install 'tfprep[tensorflow]'"),
    "few cores": ({"usable_cpus": lambda: 1}, "Processor", "note", "control group"),
    "little memory": ({"available_memory": lambda: 1 << 30}, "Memory", "problem", "2 GiB"),
    "network disk": (
        {"this_machine": lambda _: SimpleNamespace(processor="", file_system="nfs4")}, "Disk", "note", "order='sequential'",
    ),
    "TensorFlow that fails": ({"LIST_GPUS": "raise ImportError('libz')"}, "GPU", "problem", "import tensorflow"),
    "TensorFlow that dies": ({"LIST_GPUS": "import os; os.kill(os.getpid(), 9)"}, "GPU", "problem", "import tensorflow"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_finding_has_an_advice(findings, monkeypatch, case):
    pytest.importorskip("tensorflow")
    replaced, name, status, advice = CASES[case]
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    finding = findings(**replaced)[name]
    assert finding.status == status
    assert advice in finding.advice


@pytest.mark.parametrize(("hard", "advice"), [(4096, "ulimit -n 4096"), (256, "hard limit")])
def test_a_low_limit_of_open_files_is_never_advised_again(findings, monkeypatch, hard, advice):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    finding = findings()["Open files"]
    assert finding.status == "problem"
    assert advice in finding.advice
    assert "ulimit -n 256" not in finding.advice


@pytest.mark.parametrize(
    ("devices", "driver", "status", "words"),
    [
        ('[["H200"], "12.5"]', True, "ok", "H200 (CUDA 12.5)"),
        ("[[], null]", False, "ok", "none"),
        ("[[], null]", True, "problem", "tensorflow[and-cuda]"),
    ],
)
def test_gpus(findings, monkeypatch, devices, driver, status, words):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(shutil, "which", lambda _: "nvidia-smi" if driver else None)
    finding = findings(LIST_GPUS=f"print({devices!r})")["GPU"]
    assert finding.status == status
    assert words in finding.value + finding.advice


def test_version_lists_what_matters(succeed):
    pytest.importorskip("tensorflow")
    out = succeed("--version")
    assert f"tensorflow {version('tensorflow')}" in out
    assert f"numpy {version('numpy')}" in out


def test_click_completes_commands():
    """With the variables that the line of the documentation sets."""
    code = "from tfprep.cli import main; main()"
    env = {**os.environ, "_TFPREP_COMPLETE": "bash_complete", "COMP_WORDS": "tfprep bu", "COMP_CWORD": "1"}
    env["PYTHONPATH"] = str(Path(machine.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.split() == ["plain,build"]
