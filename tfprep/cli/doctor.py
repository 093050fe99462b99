"""The command `tfprep doctor`."""

from __future__ import annotations

from dataclasses import asdict

import click

from tfprep.cli import text

MARKS = {"ok": "     ", "note": "note ", "problem": "FAIL "}


@click.command("doctor")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(folder: str, as_json: bool) -> int:
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
