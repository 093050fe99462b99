"""`tfprep doctor`: each finding where it is true, on this machine and on others that are made up."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tfprep.bench import doctor
from tfprep.limits import usable_cpus

SMALL = 4 << 20


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """What is found, by name, with other values in place of those of this machine."""

    def findings(**replaced):
        replaced.setdefault("_devices", lambda: {"gpus": [], "cuda": None})
        for name, value in replaced.items():
            monkeypatch.setattr(doctor, name, value)
        return {finding.name: finding for finding in doctor.examine(tmp_path, SMALL)}

    return findings


def versions_with(**versions):
    return lambda name: versions.get(name, version(name) if name in ("tensorflow", "numpy") else None)


def test_this_machine(findings, tmp_path):
    pytest.importorskip("tensorflow")
    seen = findings()
    assert seen["TensorFlow"].value == version("tensorflow")
    assert seen["Processor"].value.startswith(f"{usable_cpus()} core")
    assert "numpy " + version("numpy") in seen["Packages"].value
    assert "/s, reads " in seen["Disk rate"].value
    assert not list(tmp_path.iterdir()), "the file of the measurement is removed"


def test_command_prints_json_and_its_status_says_whether_there_is_a_problem(run, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_devices", lambda: {"gpus": [], "cuda": None})
    monkeypatch.setattr(doctor, "DISK_TEST_BYTES", SMALL)
    monkeypatch.setattr(doctor, "available_memory", lambda: 8 << 30)
    status, out, _ = run("doctor", tmp_path, "--json")
    report = json.loads(out)
    assert (status, report["problems"]) == (0, 0), report
    monkeypatch.setattr(doctor, "available_memory", lambda: 1 << 30)
    status, out, _ = run("doctor", tmp_path)
    assert status == 1
    assert "FAIL Memory      1.07 GB free" in out
    assert "end other programs" in out
    status, _, err = run("doctor", tmp_path / "none")
    assert status == 1
    assert "is not a folder; name the one where datasets are to lie" in err


CASES = {
    "no OpenCV": ({"_opencv_flavours": lambda: []}, "OpenCV", "note", "pip install 'tfprep[opencv]'"),
    "two flavours of OpenCV": (
        {"_opencv_flavours": lambda: ["opencv-python", "opencv-python-headless"], "version": lambda _: "5.0.0"},
        "OpenCV", "problem", "pip uninstall opencv-python opencv-python-headless; pip install opencv-python-headless",
    ),
    "old OpenCV": (
        {"_opencv_flavours": lambda: ["opencv-python"], "version": lambda _: "4.13.0.92"}, "OpenCV", "note", "1/32 pixel",
    ),
    "no TensorFlow": ({"_version": versions_with(tensorflow=None)}, "TensorFlow", "note", "pip install 'tfprep[tens"),
    "old TensorFlow": ({"_version": versions_with(tensorflow="2.16.2")}, "TensorFlow", "problem", "2.18 or newer"),
    "few cores": ({"usable_cpus": lambda: 1}, "Processor", "note", "control group"),
    "little memory": ({"available_memory": lambda: 1 << 30}, "Memory", "problem", "2 GiB"),
    "slow disk": ({"_disk_rates": lambda *_: (2e8, 5e7)}, "Disk rate", "note", "local disk"),
    "TensorFlow that fails": ({"_devices": lambda: "ImportError: libz"}, "GPU", "problem", "import tensorflow"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_finding_has_an_advice(findings, monkeypatch, case):
    pytest.importorskip("tensorflow")
    replaced, name, status, advice = CASES[case]
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    finding = findings(**replaced)[name]
    assert finding.status == status
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("hard", "advice"), [(4096, "ulimit -n 4096"), (512, "ulimit -n 512"), (256, "the hard limit")]
)
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
        ({"gpus": ["H200"], "cuda": "12.5"}, True, "ok", "H200 (CUDA 12.5)"),
        ({"gpus": [], "cuda": None}, False, "ok", "none"),
        ({"gpus": [], "cuda": None}, True, "problem", "tensorflow[and-cuda]"),
        ({"gpus": [], "cuda": "12.5"}, True, "problem", "CUDA 12.5 were not found"),
    ],
)
def test_gpus(devices, driver, status, words):
    finding = doctor._as_finding(devices, driver)
    assert finding.status == status
    assert words in finding.value + finding.advice


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('no libcudart')", "ImportError: no libcudart"),
        ("print('nothing')", "printed no list"),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9"),
    ],
)
def test_a_tensorflow_that_cannot_be_asked(monkeypatch, code, words):
    monkeypatch.setattr(doctor, "_LIST_DEVICES", code)
    assert words in doctor._devices()


def test_devices_come_from_tensorflow():
    pytest.importorskip("tensorflow")
    assert doctor._devices() == {"gpus": [], "cuda": None} or doctor._devices()["gpus"] is not None


def test_version_lists_what_matters(run):
    pytest.importorskip("tensorflow")
    status, out, _ = run("--version")
    assert status == 0
    assert f"tensorflow {version('tensorflow')}" in out
    assert f"numpy {version('numpy')}" in out


def test_without_opencv_a_command_says_what_to_install(tmp_path):
    pytest.importorskip("tensorflow")
    code = "import sys; sys.modules['cv2'] = None; from tfprep.cli import main; main(['demo', '--out', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "needs OpenCV: pip install 'tfprep[opencv]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_completion(run):
    """The script asks the command itself, through the variables that it sets."""
    for shell in ("bash", "zsh", "fish"):
        status, out, _ = run("completion", shell)
        assert status == 0
        assert "_TFPREP_COMPLETE" in out
    code = "from tfprep.cli import main; main()"
    env = {**os.environ, "_TFPREP_COMPLETE": "bash_complete", "COMP_WORDS": "tfprep bu", "COMP_CWORD": "1"}
    env["PYTHONPATH"] = str(Path(doctor.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.split() == ["plain,build"]
