"""The command line. Each command parses its options, calls the library once and prints the result."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import click

from tfprep import __version__
from tfprep.cli.text import echo, json_alone, print_json
from tfprep.errors import TfprepError, TooManyRejectedError

COMMANDS = {
    "init": ("files", "Inspect a folder and write a recipe for it."),
    "build": ("build", "Build a dataset from raw images."),
    "show": ("content", "Draw samples of a dataset with their variants, masks and maps."),
    "info": ("content", "Print what a dataset contains."),
    "check": ("content", "Find duplicates, and leaks between splits."),
    "stats": ("content", "Print statistics, and draw them."),
    "verify": ("files", "Check every file and record of a dataset."),
    "diff": ("content", "Compare two datasets by keys and digests."),
    "export": ("files", "Write a dataset in another format."),
    "bench": ("measure", "Measure how fast a dataset loads and what limits it."),
    "fields": ("build", "Add fields that a model computes, or remove them."),
    "index": ("files", "Index TFRecords of other tools, so that they open as a dataset."),
    "clean": ("files", "List older versions and what builds left, and remove them."),
    "doctor": ("measure", "Print what is installed, what this machine offers and what to change."),
    "demo": ("measure", "Make data, build it, draw it and train on it."),
}
"""Module and help of each command, in the order of `tfprep --help`."""

EXIT_ERROR, EXIT_REJECTED, EXIT_INTERRUPTED = 1, 3, 130


class _Lazy(click.Group):
    """Imports a command's module only when the command runs, so that `tfprep --help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {cmd_name!r}. {fix}")
        imported = importlib.import_module(f"tfprep.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(imported, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from tfprep.bench.machine import installed

        for line in (f"tfprep {__version__}", *(f"  {name} {number}" for name, number in installed().items())):
            click.echo(line)
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print versions and exit.",
)
def tfprep() -> None:
    """Image preprocessing done once, ahead of training.

    Exit status: 0 success, 1 error (explained on standard error), 2 wrong usage, 3 too many rejected inputs, 4 a check failed,
    130 interrupted (Ctrl-C or SIGTERM).
    """


def run() -> None:
    """Run the console script, or `python -m tfprep`."""
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed by the program that started this
        from tfprep.pool import open_standard_descriptors

        open_standard_descriptors()
        sys.stdin, sys.stdout = sys.stdin or os.fdopen(0), sys.stdout or os.fdopen(1, "w")
        sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that its encoding does not have is shown as \u2026
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # which process 1 of a container ignores
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    finally:
        # Ctrl-C while text was executed, as namedtuple and users' functions do: Python notes it until it executes the next text,
        # and ends the process by the signal in place of the exit status.
        exec("")
        try:  # Python would try again to write what is left at its end, and exit with status 120.
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(args: list[str] | None = None) -> Any:
    """Run the command line and exit. With `--json`, an error is a JSON object on standard output too."""
    as_json = "--json" in (sys.argv[1:] if args is None else args)
    with json_alone() if as_json else nullcontext():
        try:
            status = tfprep.main(args=args, prog_name="tfprep", standalone_mode=False)
            sys.stdout.flush()
            sys.exit(status if isinstance(status, int) else 0)
        except click.ClickException as error:
            error.show()
            _print_error(error.format_message(), "UsageError", as_json)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", "Interrupted", EXIT_INTERRUPTED, as_json)
        except TooManyRejectedError as error:
            _fail(str(error), type(error).__name__, EXIT_REJECTED, as_json)
        except BrokenPipeError:
            sys.exit(EXIT_ERROR)
        except ModuleNotFoundError as error:
            from tfprep.optional import missing_package

            message = missing_package(error, "this command")
            if message is None:
                raise error
            _fail(message, "MissingDependencyError", EXIT_ERROR, as_json)
        except (TfprepError, OSError) as error:
            _fail(str(error), type(error).__name__, EXIT_ERROR, as_json)


def _fail(message: str, kind: str, status: int, as_json: bool) -> NoReturn:
    echo(f"tfprep: {message}", err=True)
    with suppress(OSError):  # the message may be that standard output cannot be written
        _print_error(message, kind, as_json)
    sys.exit(status)


def _print_error(message: str, kind: str, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"type": kind, "message": message}})
