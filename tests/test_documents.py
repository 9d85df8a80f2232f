"""Every code block of the README and the docs runs, and prints what it says it prints; pictures are current."""

import doctest
import importlib.util
import re
import shlex
import warnings
from pathlib import Path
from types import ModuleType

import pytest

with warnings.catch_warnings():  # typer before 0.21, which Flower asks for, uses a name that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

from antiphase._cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = {page.name for page in PAGES if page.name.startswith("tutorial-")}  # test_notebooks.py runs these
FRAMEWORKS = {"flower.md", "huggingface.md", "jax.md", "opacus.md", "torch.md"}  # pages whose blocks import one
SLOW = {"amplification.md"}  # pages whose blocks take many seconds
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = (
    "python3 -m venv",
    "pip install",
    "python -m pip install",
    "pytest",
    "cd ",
)  # what would change the environment of the tests


def test_there_are_blocks_to_run():
    languages = {language for page in PAGES for language, _ in BLOCK.findall(page.read_text())}
    shown = {"text", "diff"}  # not code that stands alone
    assert {"python", "console"} <= languages <= {"python", "console"} | shown, "another language would not be run"


# What Opacus, PEFT and Lightning warn of in every training.
WARNINGS = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing:UserWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:The '.*dataloader' does not have many workers",
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.integration, WARNINGS] if page.name in FRAMEWORKS | SLOW else [])
        for page in PAGES
        if page.name not in TUTORIALS
    ],
    ids=[page.name for page in PAGES if page.name not in TUTORIALS],
)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}  # the blocks of a page share names and files, as a reader would type them
    for language, block in BLOCK.findall(page.read_text()):
        if language == "python":
            names = run_python(block, names, page)
        elif language == "console":
            for line in block.replace("\\\n", " ").splitlines():
                run_console(line.partition(" #")[0].strip())


def run_python(block: str, names: dict[str, object], page: Path) -> dict[str, object]:
    example = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), None)
    if not example.examples:
        exec(compile(block, page.name, "exec"), names)
        return names
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.FAIL_FAST | doctest.ELLIPSIS)
    out: list[str] = []
    runner.run(example, out=out.append, clear_globs=False)
    assert runner.failures == 0, "".join(out)
    return example.globs


def run_console(line: str) -> None:
    """Commands of the library run; make targets must exist."""
    words = shlex.split(line.removeprefix("$ "))
    if not words or line.startswith(NOT_RUN):
        return
    if words[0] == "make":
        target = next(word for word in words[1:] if "=" not in word)
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        return
    assert words[0] == "antiphase", f"the tests do not know how to run {line!r}"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_of_participation_are_current():
    pictures = script("make_pictures")
    for name, (participation, every) in pictures.PICTURES.items():
        stored = (ROOT / "docs" / "images" / f"participation-{name}.svg").read_text()
        assert stored == pictures.drawing(participation, every), "run python docs/make_pictures.py"


def test_picture_of_the_accuracy_is_that_of_the_benchmark():
    pictures = script("make_pictures")
    measured = pictures.accuracies()
    stored = ROOT / "docs" / "images"
    assert (stored / "accuracy.svg").read_text() == pictures.accuracy_picture(measured), "run docs/make_pictures.py"
    assert (stored / "how-it-works.svg").read_text() == pictures.flow_picture(), "run docs/make_pictures.py"
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        (words,) = re.findall(r"!\[([^]]*)\]\([^)]*accuracy\.svg\)", page.read_text())
        for row in pictures.ROWS:
            assert f"{100 * measured[row][8.0].value:.1f} %" in words


def test_picture_of_the_architecture_is_current():
    script("make_architecture").main(["--check"])


def test_a_stale_picture_of_the_architecture_is_noticed():
    architecture = script("make_architecture")
    edges = {("_cli", "_run"), ("_run", "_ledger")}
    picture = architecture.drawing(edges)
    assert architecture.is_current(picture, edges)
    assert architecture.is_current(picture, edges | {("_cli", "_ledger")}) is False
    assert architecture.is_current(picture, edges - {("_run", "_ledger")}) is False
    with pytest.raises(SystemExit, match="No box contains _new"):
        architecture.drawing({("_cli", "_new")})


def test_files_named_by_the_architecture_page_exist():
    named = re.findall(r"`(src/[^`]+|tests/[^`]+|docs/[^`]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) >= 10
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_files_that_are_named_exist(page, tmp_path):
    """Paths start at the repository, inside the package, or at an app that `antiphase flower new` has made."""
    named = re.findall(r"`([\w/]+\.py)`", page.read_text())
    assert CliRunner().invoke(app, ["flower", "new", str(tmp_path / "my-app")]).exit_code == 0
    starts = (ROOT, ROOT / "src" / "antiphase", tmp_path / "my-app")
    assert [path for path in named if not any((start / path).exists() for start in starts)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_images_and_pages_that_are_linked_exist(page):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_no_file_has_two_versions_of_a_passage():
    """Lines that Git leaves where two versions conflict."""
    markers = re.compile(r"^(<{7} |>{7} |={7}$)", re.MULTILINE)
    files = [path for kind in ("md", "py", "html", "js", "css", "toml", "yml") for path in ROOT.glob(f"*.{kind}")]
    for folder in ("src", "docs", "tests", "benchmarks", "examples", ".ci", ".github"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".md", ".py", ".html", ".js", ".css", ".yml"}]
    assert len(files) > 700
    assert [path for path in files if markers.search(path.read_text(encoding="utf-8"))] == []
