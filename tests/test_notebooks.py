"""Every tutorial runs, and its page and notebook are those of the source, with the output of a run."""

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("make_notebooks", DOCS / "make_notebooks.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)

HINT = "run python docs/make_notebooks.py"


def test_there_are_four_tutorials():
    assert make.names() == ["budget", "federated", "jax", "pytorch"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("name", make.names())
def test_page_and_notebook_are_current(name, tmp_path, monkeypatch):
    """Numbers may differ from run to run, since the noise does; everything else is equal."""
    monkeypatch.chdir(tmp_path)
    done = make.executed(make.cells((DOCS / f"tutorial-{name}.py").read_text()))
    assert sum(cell.output != "" for cell in done) >= 2
    page, notebook = ((DOCS / f"tutorial-{name}.{kind}").read_text() for kind in ("md", "ipynb"))
    assert make.masked(page) == make.masked(make.page(name, done)), HINT
    assert make.masked(notebook) == make.masked(make.notebook(done)), HINT


@pytest.mark.parametrize("name", make.names())
def test_the_code_of_page_and_notebook_is_that_of_the_source(name):
    source = make.cells((DOCS / f"tutorial-{name}.py").read_text())
    data = json.loads((DOCS / f"tutorial-{name}.ipynb").read_text())
    assert data["nbformat"] == 4
    assert ["".join(cell["source"]) for cell in data["cells"]] == [cell.source for cell in source]
    page = (DOCS / f"tutorial-{name}.md").read_text()
    assert all(cell.source in page for cell in source)


def test_a_changed_output_is_noticed():
    assert make.masked("epsilon 3.99, exact") == make.masked("epsilon 4.00, exact")
    assert make.masked("epsilon 3.99, exact") != make.masked("epsilon 3.99, upper")
