"""What the scripts of this folder have in common: arguments, turns within rounds, limits, datasets, and results as JSON."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

Result = TypeVar("Result")
SOAK = str(Path(__file__).with_name("soak.py"))
"""The script that the runs of `soak_*.py` start again for a process of theirs, with `--part`."""


def arguments(doc: str, commands: Sequence[str] = (), **known: tuple[Any, str]) -> Any:
    """Parse the command line of a script.

    Args:
        doc: The module's docstring, which is the help.
        commands: The subcommands; the one that is given is the value `command`.
        **known: Arguments by name, as (default, help). The type is that of the default; a list takes several values, False is a
            flag, and a type in the place of a default means None.

    Returns:
        The values, with `json`: the file for the results, or None.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if commands:
        parser.add_argument("command", choices=commands)
    known["json"] = (Path, "File for the results")
    for name, (default, text) in known.items():
        if default is False:
            how: dict[str, Any] = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, list):
            how = {"nargs": "*", "type": type(default[0]) if default else str, "default": default}
        else:
            how = {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
    return parser.parse_args()


def finish(options: Any, results: Any, *, failed: object = False) -> None:
    """Write the results to the file of `--json`, and end with status 1 if something failed."""
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(1 if failed else 0)


def in_turns(
    candidates: Mapping[str, Callable[[], Result]], rounds: int, *, warm_up: int = 0
) -> dict[str, list[Result]]:
    """Call every candidate once a round, in the order of the round before turned around; return the results by name.

    The first `warm_up` rounds are not among the results.
    """
    results: dict[str, list[Result]] = {name: [] for name in candidates}
    for number in range(-warm_up, rounds):
        for name in list(candidates)[:: 1 if number % 2 else -1]:
            result = candidates[name]()
            if number >= 0:
                results[name].append(result)
    return results


def rest(timeout_s: float = 10.0) -> None:
    """Waits until all pipelines have filled their buffers: this process and its children use less than a tenth of a core."""
    end = time.perf_counter() + timeout_s
    while time.perf_counter() < end:
        spent = cpu_s()
        time.sleep(0.1)
        if cpu_s() - spent < 0.01:  # children's time is counted in hundredths of a second
            return


def cpu_s() -> float:
    """Processor time of this process and its children so far."""
    import psutil

    seconds = time.process_time()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:2])
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios within a round."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


class TooSlow(BaseException):
    """A time limit has passed. It is not an Exception, so that no handler of ordinary errors catches it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after this time."""

    def stop(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_cases(
    options: Any,
    cases: Iterable[tuple[str, Callable[[], str], float]],
    *,
    allowed: Callable[[str], bool],
    needed: str = "",
) -> None:
    """Run the cases of a fuzz run, count their outcomes, print those that are not allowed, and end the script.

    Args:
        options: The arguments, with `json`.
        cases: For each its name, a function that returns its outcome, and its limit in seconds. An exception is an outcome too,
            "not tfprep's: TYPE", and so is "hang".
        allowed: Which outcomes are not a failure.
        needed: An outcome without which the run has failed.
    """
    counts: Counter[str] = Counter()
    failures, began = [], time.monotonic()
    for name, case, seconds in cases:
        trace = ""
        try:
            with at_most(seconds):
                outcome = case()
        except KeyboardInterrupt:
            raise
        except TooSlow:
            outcome = "hang"
        except BaseException as error:  # a recipe that exits, for example
            outcome, trace = f"not tfprep's: {type(error).__name__}", traceback.format_exc()
        counts[outcome] += 1
        if not allowed(outcome):
            failures.append({"case": name, "outcome": outcome, "error": trace})
            print(f"--- {outcome}: {name}\n{trace[-3000:]}", file=sys.stderr)
    print(f"{counts.total()} cases in {time.monotonic() - began:.0f} s, {len(failures)} failed")
    for outcome, count in counts.most_common():
        print(f"  {count:6} {outcome}")
    finish(options, {"counts": counts, "failures": failures}, failed=failures or (needed and not counts[needed]))


def limit_memory(gigabytes: float) -> None:
    """Limit the address space of this process and of those that it starts to this many bytes above its present size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@contextmanager
def store(folder: Path, latency_ms: float) -> Iterator[tuple[int, dict[str, str]]]:
    """Run `store_server.py` over a folder; the value is its process, and the environment variables that lead clients to it."""
    command = [sys.executable, str(Path(__file__).with_name("store_server.py")), str(folder), str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        yield process.pid, {**keys, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
    finally:
        process.kill()
        process.wait()


class Process:
    """A process that answers lines of its standard input, each with a line; it says first that it is ready."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str] | None = None) -> None:
        here = Path(__file__).parent
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed by `close`
        self._process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, "PYTHONPATH": f"{here}:{here / 'peers'}:{here.parent}", **(environment or {})},
        )  # fmt: skip
        atexit.register(self.close)
        self.answer()

    def tell(self, line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next line that begins with a mark, without it: other programs print to standard output too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK)
        self._errors.seek(0)
        raise RuntimeError(self._errors.read()[-600:].strip() or "no output")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        atexit.unregister(self.close)


MARK = "answer: "


def serve(answer: Callable[[str], object]) -> None:
    """The other side of a `Process`."""
    print(f"{MARK}ready", flush=True)
    for line in sys.stdin:
        print(f"{MARK}{answer(line.strip())}", flush=True)


# --- damage


def damaged(content: bytes, rng: Any) -> bytes:
    """Content with one or two damages at random places; `rng` is NumPy's generator."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 3))):
        DAMAGES[rng.integers(len(DAMAGES))](data, rng)
    return bytes(data)


def _flip(data: bytearray, rng: Any) -> None:
    for _ in range(int(rng.integers(1, 9))):
        if data:
            data[_position(data, rng)] ^= int(rng.integers(1, 256))


def _cut(data: bytearray, rng: Any) -> None:
    del data[int(rng.integers(0, len(data) + 1)) :]


def _remove(data: bytearray, rng: Any) -> None:
    start = _position(data, rng)
    del data[start : start + int(rng.integers(1, 64))]


def _repeat(data: bytearray, rng: Any) -> None:
    start = _position(data, rng)
    data[start:start] = data[start : start + int(rng.integers(1, 64))]


def _fill(data: bytearray, rng: Any) -> None:
    start = _position(data, rng)
    stop = min(len(data), start + int(rng.integers(1, 16)))
    data[start:stop] = bytes([int(rng.choice([0, 0x7F, 0x80, 0xFF]))]) * (stop - start)


DAMAGES = (_flip, _flip, _cut, _remove, _repeat, _fill, _fill)


def _position(data: bytearray, rng: Any) -> int:
    """A random position; in half of the cases among the first 200 bytes, which contain headers."""
    end = min(len(data), 200) if rng.random() < 0.5 else len(data)
    return int(rng.integers(0, max(end, 1)))
