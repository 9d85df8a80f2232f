"""Metadata of the package: ranges of versions that only constraints.txt pins, classifiers, citation and workflows."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
OPACUS_NEEDS = "2.6"  # torch>=2.6.0 in the metadata of Opacus 1.6


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def extra(name):
    return {requirement.name: requirement.specifier for requirement in map(Requirement, EXTRAS[name])}


def pinned(name):
    """The version in constraints.txt, or in constraints-integrations.txt, which adds to it."""
    text = "\n".join((ROOT / f"constraints{part}.txt").read_text() for part in ("", "-integrations"))
    return Version(re.search(rf"^{name}==(\S+)$", text, re.MULTILINE)[1])


def variable(name):
    """A variable of the Makefile."""
    return re.search(rf"^{name} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]


def test_every_extra_is_installed_pinned_and_documented():
    installed = [name for part in ("EXTRAS", "INTEGRATIONS") for name in variable(part).split(",")]
    assert sorted(installed) == sorted(EXTRAS)
    pages = "\n".join(path.read_text() for path in [*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])
    for name in EXTRAS:
        requirements = extra(name)
        requirements.pop("antiphase", None)  # another extra
        assert all(pinned(package) in accepted for package, accepted in requirements.items())
        assert name == "dev" or f"antiphase[{name}]" in pages or f"(extra `{name}`)" in pages


def test_the_extra_accepts_a_range_of_pytorch_versions():
    torch, tested = extra("torch")["torch"], pinned("torch")
    minors = [f"{tested.major}.{minor}.{patch}" for minor in range(6, tested.minor + 1) for patch in (0, 1)]
    assert len(minors) >= 2 * 4
    assert all(version in torch for version in minors)
    assert f"{tested.major}.{tested.minor + 1}.0" in torch
    assert "2.5.1" not in torch  # Opacus does not support it
    assert not any(part.operator in ("==", "===", "~=") for part in torch)


def test_what_is_pinned_is_accepted_and_documented():
    for name, specifier in extra("torch").items():
        assert pinned(name) in specifier
    text = (ROOT / "docs" / "torch.md").read_text()
    torch, opacus = pinned("torch"), pinned("opacus")
    assert f"PyTorch {torch.major}.{torch.minor} and Opacus {opacus.major}.{opacus.minor}" in text
    assert f"PyTorch ({OPACUS_NEEDS} or later" in text


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_classifiers_claim_what_is_tested():
    classifiers = set(project()["classifiers"])
    assert "Typing :: Typed" in classifiers
    assert (ROOT / "src" / "antiphase" / "py.typed").exists()
    versions = {text.rpartition(" ")[2] for text in classifiers if re.search(r"Python :: 3\.\d+$", text)}
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    tested = set(re.findall(r'python: "(3\.\d+)", untested: false', workflow))
    assert versions == tested
    assert f">={min(versions)}" == project()["requires-python"]
    untested = set(re.findall(r'python: "(3\.\d+)", untested: true', workflow))
    assert tested | untested == {"3.11", "3.12", "3.13", "3.14"}


def test_the_citation_has_the_version_of_the_package():
    text = (ROOT / "CITATION.cff").read_text()
    version = (ROOT / "src" / "antiphase" / "_version.py").read_text()
    assert f'"{re.search(r"^version: (.*)$", text, re.MULTILINE)[1]}"' in version
    assert f"license: {project()['license']}" in text


def test_workflows_and_hooks_call_what_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"run: make (.*)$", path.read_text(), re.MULTILINE):
            assert {word for word in line.split() if "=" not in word and not word.startswith(".")} <= targets, line
    tools = set(re.findall(r"entry: \.venv/bin/([\w-]+)", (ROOT / ".pre-commit-config.yaml").read_text()))
    assert tools == {"ruff", "lint-imports", "mypy"}


def test_every_development_tool_is_pinned():
    pins = (ROOT / "constraints.txt").read_text()
    for text in project()["optional-dependencies"]["dev"]:
        name = Requirement(text).name
        assert re.search(rf"^{name}==", pins, re.MULTILINE | re.IGNORECASE), name
