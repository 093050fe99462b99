"""The commands about what is installed: `tfprep doctor`, `tfprep completion`."""

from __future__ import annotations

from dataclasses import asdict

import click
from click.shell_completion import get_completion_class

from tfprep.cli import text

MARKS = {"ok": "     ", "note": "note ", "problem": "FAIL "}


@click.command("doctor")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(folder: str, as_json: bool) -> int:
    """Print what is installed, what this machine offers and what to change.

    Measures the disk of FOLDER (default: this folder) with a file of 256 MB, which is removed. The exit status is 1 if there is a
    problem.
    """
    from tfprep.bench.doctor import examine

    findings = []
    for finding in examine(folder):
        findings.append(finding)
        if not as_json:
            text.echo(f"{MARKS[finding.status]}{finding.name:<11} {finding.value}")
            if finding.advice:
                text.echo(f"{'':16} {finding.advice}")
    problems = sum(finding.status == "problem" for finding in findings)
    if as_json:
        text.print_json({"problems": problems, "findings": [asdict(finding) for finding in findings]})
    return int(problems > 0)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    Load it when the shell starts: `eval "$(tfprep completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc,
    `tfprep completion fish | source` in ~/.config/fish/config.fish.
    """
    from tfprep.cli import tfprep

    maker = get_completion_class(shell)
    assert maker is not None, "click knows the three shells"
    click.echo(maker(tfprep, {}, "tfprep", "_TFPREP_COMPLETE").source())
