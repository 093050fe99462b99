"""One node of a cluster: an actor that runs tasks in local worker processes and returns their events to the driver.

The driver calls `open`, then `run` for each task. `open` compares the node's versions, its output folder, its lock and some raw
files with those of the driver (`SharedFolderCheck`), and unpacks the user's code.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfprep.builder.layout import scratch_folder
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.shards.shard import BuildContext, Inputs
from tfprep.errors import BuildError, BuildLockedError, DatasetError, StorageError
from tfprep.pool import LATER, Event, Idle, Pool, Progress
from tfprep.recipe.code import is_users
from tfprep.recipe.file import RECIPE_MODULE
from tfprep.sources.raw import raw_root
from tfprep.storage.local import locked
from tfprep.storage.urls import read_content, remove_file, write_content

_DATA_SUFFIXES = {".csv", ".json", ".toml", ".txt", ".yaml", ".yml"}
_MOST_DATA_BYTES = 1 << 20
"""Files that a recipe may read beside itself, such as a list of classes, are sent up to this size."""
_BESIDE, _ELSEWHERE = "recipe/", "modules/"


class Node:
    """Runs tasks in `workers` processes of this machine, each as the only one of a `Pool`.

    The methods are called from `workers` threads. These live as long as the actor, which counts because a process ends with the
    thread that started it.
    """

    def __init__(self, name: str, entry: str, workers: int, item_timeout_s: float) -> None:
        self._name = name
        self._engines = [Pool(entry, LATER, 1, item_timeout_s=item_timeout_s) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Pool] = queue.SimpleQueue()
        self._folder = ExitStack()

    def open(
        self, argument: BuildContext, code: UserCode, check: SharedFolderCheck, versions: Mapping[str, str]
    ) -> None:
        """Compare versions and folders with the driver's, unpack the user's code and start the workers.

        Raises:
          BuildError: They differ.
        """
        own_versions = building_versions()
        differing = [name for name in {**versions, **own_versions} if own_versions.get(name) != versions.get(name)]
        if differing:
            texts = [f"{name} is {own_versions.get(name)} there and {versions.get(name)} here" for name in differing]
            raise BuildError(f"{', '.join(texts)}; other versions make other bytes")
        check.compare(argument)
        layout = argument.layout
        own = self._folder.enter_context(scratch_folder(layout.scratch and layout.scratch.parent))
        unpack(code, own / "code")
        here = replace(
            argument,
            source=own / "code" / code.recipe if code.recipe else argument.source,
            layout=replace(layout, scratch=layout.scratch and own),
            # Another node may take over a shard while this one, which seemed dead, still writes to its files.
            run=f"{argument.run}-{self._name}",
            on_node=True,
        )
        for engine in self._engines:
            engine.start()
            engine.open(here)
            self._idle.put(engine)

    def run(self, content: Any) -> list[Event]:
        """Run a task and return its events, the last of which says that it is done. The driver knows what it contains.

        Raises:
          TfprepError: That of the task (`Pool.events`).
        """
        engine = self._idle.get()
        try:
            task = engine.submit(content)
            events: list[Event] = [event for event in engine.events() if not isinstance(event, Idle | Progress)]
            task.content = None
            return events
        finally:
            self._idle.put(engine)


# --- the folders of a node -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedFolderCheck:
    """Facts that another machine has to see as well.

    Attributes:
      mark: The content of `Layout.mark`.
      samples: Files, values and digest of some samples.
    """

    mark: str
    samples: Sequence[tuple[Sequence[str], Sequence[Any], bytes]]

    def compare(self, argument: BuildContext) -> None:
        """Compare the folders of this machine. Raises BuildError that says what differs."""
        layout = argument.layout
        own = layout.mark.with_name(f"{layout.mark.name}-{secrets.token_hex(4)}")
        try:
            same = read_content(layout.mark).decode() == self.mark
            write_content(own, self.mark)
            remove_file(own)
        except FileNotFoundError:
            same = False
        except (OSError, DatasetError, BuildError) as error:
            raise BuildError(f"{layout.out} cannot be used there: {error}") from error
        if not same:
            raise BuildError(f"{layout.out} is not the driver's folder there; --out names a folder that all nodes see")
        if not layout.at_store:  # attempts at one shard rely on locks that all machines share
            with suppress(BuildLockedError), locked(layout.lock, BuildLockedError()):
                raise BuildError(
                    f"{layout.lock} is locked by the driver and not locked there: the file system is mounted without shared "
                    "locks (the options nolock and local_lock of NFS, noflock of Lustre)"
                )
        inputs = _raw_inputs(argument)
        for files, values, digest in self.samples:
            if inputs.digest(files, values) != digest:
                names = ", ".join(files) or "a sample"
                raise BuildError(
                    f"{names} below {argument.root} is missing or another file there; --data names a folder that all nodes "
                    "see, or a copy on each node"
                )


@contextmanager
def shared_folder_check(argument: BuildContext) -> Iterator[SharedFolderCheck]:
    """Leave a mark in the output folder, and digest the samples that are witnesses."""
    mark, inputs = secrets.token_hex(8), _raw_inputs(argument)
    samples = [(files, values, inputs.digest(files, values)) for files, values in argument.witnesses]
    path = argument.layout.mark
    write_content(path, mark)
    try:
        yield SharedFolderCheck(mark, samples)
    finally:
        with suppress(StorageError):  # The next build writes it anew.
            remove_file(path)


def _raw_inputs(argument: BuildContext) -> Inputs:
    return Inputs(raw_root(argument.root), argument.listing.files, argument.listing.values)


# --- the user's code --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserCode:
    """Files of the user's code.

    Attributes:
      files: Their content by path: what lies beside the recipe is below `recipe/`, what is imported from elsewhere below
        `modules/`.
      recipe: The recipe's path among them; empty if the recipe is not a file.
    """

    files: Mapping[str, bytes]
    recipe: str


def collected(recipe: Path | None, named: Mapping[str, Path]) -> UserCode:
    """Return the recipe's file and its neighbors, and all modules in memory that are neither installed nor built in.

    The user's code travels to other machines; installed packages are part of each machine's environment, as tfprep itself.

    Args:
      recipe: The recipe's file; None if it has none.
      named: The files that the recipe names. Those below its folder are sent, whatever they are; others have to be on each node.

    Raises:
      BuildError: A file cannot be read.
    """
    beside = {} if recipe is None else {**dict(_package(recipe.resolve().parent)), recipe.name: recipe}
    beside |= {name: path for name, path in named.items() if recipe is not None and not os.path.isabs(name)}
    paths = {_BESIDE + name: path for name, path in beside.items()}
    paths |= {_ELSEWHERE + name: path for name, path in _loaded_modules() if path not in beside.values()}
    try:
        files = {name: path.read_bytes() for name, path in sorted(paths.items())}
    except OSError as error:
        raise BuildError(f"{error.filename} cannot be sent to the nodes: {error.strerror}") from error
    return UserCode(files, _BESIDE + recipe.name if recipe else "")


def unpack(code: UserCode, folder: Path) -> None:
    """Write the files into a new folder, and let this process and its workers import the modules from elsewhere.

    The folder of the recipe is not among those: a file beside it may be named as a module of the standard library, which counts
    from the moment on when the recipe is loaded, and not before.
    """
    for name, content in code.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sys.path.insert(0, str(folder / _ELSEWHERE))


def _package(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the Python files and the small data files of a folder and of the packages in it.

    A folder without `__init__.py` may hold a million raw files; what the recipe has imported from it is in memory.
    """
    key = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")  # of a service account: it must not leave the machine
    for path in folder.iterdir():
        name = f"{inside}{path.name}"
        if path.is_dir():
            if (path / "__init__.py").is_file():
                yield from _package(path, f"{name}/")
        elif path.name.startswith(".") or not path.is_file() or (key and Path(key).resolve() == path.resolve()):
            continue  # also links of editors to nothing, and pipes
        elif path.suffix == ".py" or (path.suffix in _DATA_SUFFIXES and path.stat().st_size <= _MOST_DATA_BYTES):
            yield name, path


def _loaded_modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of the modules in memory that belong to the user, with all files of their packages."""
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        top, _, rest = name.partition(".")
        # "__": the main program, and functions that AutoGraph translated
        if top.startswith(("__", RECIPE_MODULE)) or path.suffix != ".py" or not is_users(module):
            continue
        if path.name != "__init__.py":
            yield f"{name.replace('.', '/')}.py", path
        elif not rest:
            yield from _package(path.parent, f"{top}/")
        else:
            yield f"{name.replace('.', '/')}/__init__.py", path
