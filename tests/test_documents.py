"""Every Python block of the README and the docs runs, and prints what it says it prints."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_there_are_blocks_to_run():
    assert BLOCK.search((ROOT / "README.md").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}  # the blocks of a page share their names, as a reader would type them
    for block in BLOCK.findall(page.read_text()):
        example = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), None)
        if not example.examples:
            exec(compile(block, page.name, "exec"), names)
            continue
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.FAIL_FAST | doctest.ELLIPSIS)
        out: list[str] = []
        runner.run(example, out=out.append, clear_globs=False)
        assert runner.failures == 0, "".join(out)
        names = example.globs
