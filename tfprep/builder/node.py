"""The side of a build on a Ray cluster that runs on its nodes: `build_shard`, a task of Ray, builds a shard in a worker process.

Before its first shard, a process of Ray compares the node's versions, its output folder, its lock and some raw files with those
of the driver (`SharedFolderCheck`), and unpacks the user's code.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.builder.layout import scratch_folder
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.shards.shard import BuildContext, Inputs
from tfprep.errors import BuildError, BuildLockedError, DatasetError, RecordError, StorageError, TfprepError
from tfprep.pool import Event, Pool, Progress
from tfprep.recipe.code import is_users
from tfprep.recipe.file import RECIPE_MODULE
from tfprep.sources.raw import raw_root
from tfprep.storage.local import locked
from tfprep.storage.urls import durable_write, read_content, remove_file

_DATA_SUFFIXES = {".csv", ".json", ".toml", ".txt", ".yaml", ".yml"}
_MOST_DATA_BYTES = 1 << 20
"""Files that a recipe may read beside itself, such as a list of classes, are sent up to this size."""
_UNUSED_S = 60.0
"""Time after which a process of Ray that gets no shard any more ends its worker process."""
_BESIDE, _ELSEWHERE = "recipe/", "modules/"


@dataclass(frozen=True)
class Opening:
    """What a process of a node needs before its first shard.

    Attributes:
      entry, item_timeout_s: As in `Pool`.
      argument: That of the work, as on the driver.
      code: The user's code.
      check: What a node has to see in the folders.
      versions: Those of the driver's libraries.
    """

    entry: str
    item_timeout_s: float
    argument: BuildContext
    code: UserCode
    check: SharedFolderCheck
    versions: Mapping[str, str]


@dataclass
class _Opened:
    """The state of a process of Ray: one worker process, which stays for the next shards of the same build, and its folder."""

    of: Any = None
    pool: Pool | None = None
    folder: ExitStack = field(default_factory=ExitStack)
    ending: threading.Timer | None = None

    def close_unused(self) -> None:
        with _lock:
            self.close()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.folder.close()
        self.of, self.pool = None, None


_opened, _lock = _Opened(), threading.Lock()


def node_name(address: str, identifier: str) -> str:
    """Return how messages name a node of Ray."""
    return f"{address}-{identifier[:6]}"


def build_shard(opening: Sequence[Any], content: Any) -> tuple[str, list[Event]]:
    """Build a shard; None only opens this process for the build. A task of Ray.

    Args:
      opening: The reference of an `Opening`.
      content: The shard's task.

    Returns:
      The name of this node, and the events of the task. The driver knows what it contains.

    Raises:
      TfprepError: That of the task, or this node would make other bytes or sees other folders; the message names it.
    """
    import ray

    name = node_name(ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id())
    try:
        with _lock:
            if _opened.ending is not None:
                _opened.ending.cancel()
            if _opened.of != opening[0]:
                _opened.close()
                _opened.pool = _open(ray.get(opening[0]), f"{name}-{os.getpid()}", _opened.folder)
                _opened.of = opening[0]
            assert _opened.pool is not None
            events: list[Event] = []
            if content is not None:
                task = _opened.pool.submit(content)
                events = [event for event in _opened.pool.events() if event and not isinstance(event, Progress)]
                task.content = None
            _opened.ending = threading.Timer(_UNUSED_S, _opened.close_unused)
            _opened.ending.daemon = True
            _opened.ending.start()
    except TfprepError as error:
        kind = BuildError if isinstance(error, RecordError) else type(error)
        raise kind(f"node {name}: {error}") from error
    return name, events


def _open(opening: Opening, run: str, folder: ExitStack) -> Pool:
    """Compare versions and folders with the driver's, unpack the user's code and start a worker process.

    Raises:
      BuildError: They differ.
    """
    own_versions, versions = building_versions(), opening.versions
    differing = [name for name in {**versions, **own_versions} if own_versions.get(name) != versions.get(name)]
    if differing:
        texts = [f"{name} is {own_versions.get(name)} there and {versions.get(name)} here" for name in differing]
        raise BuildError(f"{', '.join(texts)}; other versions make other bytes")
    argument, code = opening.argument, opening.code
    opening.check.compare(argument)
    layout = argument.layout
    own = folder.enter_context(scratch_folder(layout.scratch and layout.scratch.parent))
    unpack(code, own / "code")
    here = replace(
        argument,
        source=own / "code" / code.recipe if code.recipe else argument.source,
        layout=replace(layout, scratch=layout.scratch and own),
        # Another node may take over a shard while this one, which seemed dead, still writes to its files.
        run=f"{argument.run}-{run}",
        on_node=True,
    )
    pool = Pool(opening.entry, here, 1, item_timeout_s=opening.item_timeout_s)
    pool.start()
    return pool


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
            durable_write(own, self.mark)
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
    durable_write(path, mark)
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
