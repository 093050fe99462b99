"""Links between the pages lead somewhere, also on PyPI, which shows the front page only; code fits the column of the site."""

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for name in ("*.md", "docs/**/*.md", "data/*.md", "docs/llms.txt") for path in ROOT.glob(name))
REPOSITORY = re.compile(
    r"https://(?:github\.com/tfprep/tfprep/(?:blob|tree)|raw\.githubusercontent\.com/tfprep/tfprep)/main/"
)


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return re.findall(r"\]\(<?([^)\s>]+)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)


def anchors(page):
    """Anchors as GitHub makes them: lower case, spaces to hyphens, no other punctuation."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page):
    for link in links(page):
        inside = REPOSITORY.match(link)
        if link.startswith(("http", "mailto:")) and not inside:
            continue
        target, _, anchor = (link[inside.end() :] if inside else link).partition("#")
        path = (ROOT / target if inside else page.parent / target) if target else page
        assert path.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {link}"


def test_the_table_of_extras_has_each_extra_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "start.md").read_text(), re.M)
    listed = re.findall(r"`(\w+)`", " ".join(table))
    assert sorted(listed) == sorted(set(setup["options.extras_require"]) - {"dev", "docs"})


def test_the_front_page_has_no_relative_links():
    relative = [link for link in links(ROOT / "README.md") if not link.startswith(("http", "#", "mailto:"))]
    assert not relative, "PyPI shows README.md without the repository"


def test_every_path_of_the_repository_that_the_pages_name_exists():
    pattern = r"`(?:python )?((?:tfprep|tests|scripts|\.ci|benchmarks|pipelines)/[^`\s:]*)"
    paths = {(path, page.name) for page in PAGES for path in re.findall(pattern, page.read_text())}
    assert len(paths) > 30
    missing = [
        path
        for path in sorted(paths)
        if not re.search("NAME|FAMILY", path[0]) and not list(ROOT.glob(path[0].rstrip("/")))
    ]
    assert not missing


def test_code_fits_the_column_of_the_site():
    """As docs/ruff.toml says for Python; here for all languages."""
    blocks = [
        (page.name, block)
        for page in PAGES
        if page.parent != ROOT or page.name == "README.md"
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.S | re.M)
    ]
    assert len(blocks) > 100
    assert [(name, line) for name, block in blocks for line in block.splitlines() if len(line) > 90] == []
