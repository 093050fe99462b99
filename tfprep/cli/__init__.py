"""The command line: parse, one call of the library, print. One file a command, imported when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from tfprep._version import __version__
from tfprep.errors import TfprepError, TooManyRejectsError

COMMANDS = {
    "build": "turn raw images into a dataset",
    "info": "what a dataset holds",
    "verify": "check every file and record against what was built",
    "show": "draw samples of a dataset, variants, masks and maps",
    "bench": "how fast a dataset loads, and what limits it",
    "advise": "what to store, measured before anything is built",
    "init": "look at a folder and write a recipe for it",
    "demo": "make data, build it, look at it, train on it",
}

EXIT_ERROR, EXIT_REJECTS, EXIT_INTERRUPTED = 1, 3, 130


class _Lazy(click.Group):
    """Imports a command's module when it is called, so that `tfprep --help` is there at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tfprep.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tfprep")
def tfprep() -> None:
    """Image preprocessing done once, ahead of training.

    Exit status: 0 done, 1 an error (told on standard error), 2 wrong usage, 3 too many bad inputs, 130 interrupted.
    """


def main(args: list[str] | None = None) -> Any:
    """The console script."""
    try:
        status = tfprep.main(args=args, prog_name="tfprep", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _fail("interrupted", EXIT_INTERRUPTED)
    except TooManyRejectsError as error:
        _fail(str(error), EXIT_REJECTS)
    except TfprepError as error:
        _fail(str(error), EXIT_ERROR)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(EXIT_ERROR)
    except OSError as error:
        _fail(str(error), EXIT_ERROR)


def _fail(message: str, status: int) -> None:
    click.echo(f"tfprep: {message}", err=True)
    sys.exit(status)
