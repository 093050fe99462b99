"""Without an optional package, a feature that needs it raises one error with the line that installs it."""

import subprocess
import sys
from types import ModuleType

import pytest

import tfprep
from tfprep import train
from tfprep.cli import main
from tfprep.errors import MissingDependencyError
from tfprep.optional import OPTIONAL, cv2, require_package

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
from tfprep import train
from tfprep.errors import MissingDependencyError
for name in train.__all__:
    try:
        getattr(train, name)
    except MissingDependencyError as error:
        assert error.__context__ is None
        print(error)
    else:
        print(name, "needs no TensorFlow")
"""


@pytest.fixture
def missing(monkeypatch):
    """Makes imports of a package fail."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(("name", "requirement"), [(name, pip) for name, (_, pip) in OPTIONAL.items()])
def test_error_says_what_to_install(missing, name, requirement):
    missing(name)
    with pytest.raises(MissingDependencyError, match=r"^this needs .*: pip install "):
        require_package(name, "this")
    with pytest.raises(ImportError, match=f"pip install {requirement}; that works$".replace("[", r"\[")):
        require_package(name, "this", "that works")


def test_loader_names_numpy_loader(missing, photos):
    data = tfprep.open(photos.path)
    missing("tensorflow")
    with pytest.raises(MissingDependencyError, match=r"loader\(\) .*'tfprep\[tensorflow\]'; numpy_loader\(\) works"):
        data.loader("train", 4)
    missing("torch")
    with pytest.raises(MissingDependencyError, match=r"torch_loader\(\) .*'tfprep\[torch\]'; numpy_loader\(\) works"):
        data.torch_loader("train", 4)
    assert len(next(iter(data.numpy_loader("train", 4, inputs="image")))) == 4


@pytest.mark.parametrize(
    "command", [["bench", "{folder}"], ["bench", "--forms", "{folder}/recipe.py"], ["demo", "--out", "{folder}"]]
)
def test_commands_end_with_one_message(missing, tmp_path, capsys, command):
    (tmp_path / "recipe.py").touch()
    missing("tensorflow")
    with pytest.raises(SystemExit, match=r"^1$"):
        main([part.format(folder=tmp_path) for part in command])
    assert (
        capsys.readouterr().err == f"tfprep: tfprep {command[0]} needs TensorFlow: pip install 'tfprep[tensorflow]'\n"
    )


def test_every_name_of_train_says_what_it_needs():
    pytest.importorskip("keras")
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TENSORFLOW], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert len(lines) == len(train.__all__)
    assert "tfprep.train.RetraceGuard needs TensorFlow: pip install 'tfprep[tensorflow]'" in lines
    assert all("needs TensorFlow: pip install" in line or "needs no TensorFlow" in line for line in lines)


def test_opencv_is_found_by_one_thread_while_another_imports_it(monkeypatch):
    """OpenCV takes its module out and puts another one in while it is imported; that one has no spec for a moment."""
    half = ModuleType("cv2")
    half.INTER_AREA, half.__spec__ = 3, None
    monkeypatch.setitem(sys.modules, "cv2", half)
    assert type(cv2)().INTER_AREA == 3
