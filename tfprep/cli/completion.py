"""The command `tfprep completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    Load it when the shell starts: `eval "$(tfprep completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc,
    `tfprep completion fish | source` in ~/.config/fish/config.fish.
    """
    from tfprep.cli import tfprep

    maker = get_completion_class(shell)
    assert maker is not None, "click knows the three shells"
    click.echo(maker(tfprep, {}, "tfprep", "_TFPREP_COMPLETE").source())
