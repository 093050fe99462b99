"""`scripts/figures`: marks on pages lead to commands, and figures that differ from what a command measures are printed."""

import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = """
| case | rate |
|---|---:|
| of 64 images | 1,200 (900 to 1,500) <!-- figures: rates/a, b; -; rates/most --> | `python benchmarks/one.py --data data/x` |

A batch of 8 takes 0.25 <!-- figures: batch_s/0*1000 -->
ms (`python benchmarks/two.py
--workers 2`), 1.6 <!-- figures: ratio --> times as long.
"""
COMMANDS = ("python benchmarks/one.py --data data/x", "python benchmarks/two.py --workers 2")


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """The script, over a page and two benchmarks of a folder."""
    loader = SourceFileLoader("figures", str(ROOT / "scripts" / "figures"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("figures", loader))
    monkeypatch.setitem(sys.modules, "figures", module)
    loader.exec_module(module)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "benchmarks").mkdir()
    results = {"one": {"rates": {"a, b": 1301.4, "most": 1800.0}}, "two": {"batch_s": [0.00026], "ratio": 0.5}}
    for name, result in results.items():
        script = f"import sys\nopen(sys.argv[-1], 'w').write({json.dumps(result)!r})\nassert sys.argv[-2] == '--json'\n"
        (tmp_path / "benchmarks" / f"{name}.py").write_text(script)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def run(figures, monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["figures", "--results", str(folder / "results"), *arguments])
    return int(figures.main())


def test_every_marker_of_the_project_leads_to_a_script_with_json(figures):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    commands = {figure.command for page in pages for figure in figures.figures_of(page)}
    assert len(commands) > 3
    for command in commands:
        assert "--json" in (ROOT / command.split()[1]).read_text(), command


def test_figures_that_differ_are_printed_and_written(figures, tmp_path, monkeypatch, capsys):
    assert run(figures, monkeypatch, tmp_path) == 1
    said = capsys.readouterr().out
    assert "README.md:4: 1,500 is 1,800 (rates/most)" in said
    assert "README.md:8: 1.6 is 0.5 (ratio)" in said
    assert "4 of 4 figures measured, 2 differ by more than 15%" in said
    assert "1,200 is" not in said
    assert "0.25 is" not in said
    run(figures, monkeypatch, tmp_path, "--write")
    text = (tmp_path / "README.md").read_text()
    assert text == PAGE.replace("1,200 (", "1,300 (").replace("1,500)", "1,800)").replace("0.25", "0.26").replace(
        "1.6", "0.5"
    )
    assert run(figures, monkeypatch, tmp_path) == 0


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("12 <!-- figures: a -->\n", "1 keys for 1 numbers and 0 commands"),
        ("12 <!-- figures: a; b --> `python benchmarks/one.py`\n", "2 keys for 1 numbers"),
    ],
)
def test_a_marker_without_a_command_or_a_number_is_an_error(figures, tmp_path, page, message):
    (tmp_path / "README.md").write_text(page)
    with pytest.raises(ValueError, match=f"README.md:1: {message}"):
        list(figures.figures_of(tmp_path / "README.md"))
