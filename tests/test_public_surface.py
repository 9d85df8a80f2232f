"""The exported names are the documented names, and each says what it is."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import griffe
import pytest

import antiphase
from antiphase import strategies

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = DOCS / "reference.md"


def exported(module: ModuleType) -> set[str]:
    """The dotted names a module offers, including those of its namespaces.

    The functions that `antiphase.strategies` exports are for the other packages, not for users.
    """
    names: set[str] = set()
    for name in getattr(module, "__all__", [n for n in vars(module) if is_own_function(module, n)]):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            names |= exported(value)
        elif name != "__version__" and not (module is strategies and inspect.isfunction(value)):
            names.add(f"{module.__name__}.{name}")
    return names


def is_own_function(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")


def documented() -> list[str]:
    return re.findall(r"^::: (\S+)$", REFERENCE.read_text(), re.MULTILINE)


def test_exported_names_are_the_documented_names():
    assert sorted(exported(antiphase)) == sorted(documented())


@pytest.fixture(scope="module")
def source() -> griffe.Object | griffe.Alias:
    """The package as mkdocstrings reads it: from the source, with the project's own extension."""
    extensions = griffe.load_extensions(DOCS / "reference_extension.py")
    return griffe.load("antiphase", search_paths=[DOCS.parent / "src"], extensions=extensions, resolve_aliases=True)


def test_the_reference_shows_the_parameters_of_every_call(source):
    for path in documented():
        module, name = path.rsplit(".", 1)
        thing = getattr(importlib.import_module(module), name)
        shown = source[path.removeprefix("antiphase.")]
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        expected = [
            (p.name, p.default is p.empty)
            for p in inspect.signature(thing).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        parameters = [
            (p.name, p.default is None) for p in shown.parameters if p.name != "self" and "variadic" not in p.kind.value
        ]
        assert parameters == expected, path


def test_the_reference_shows_examples_as_code(source):
    value = source["Mechanism"].docstring.value
    assert value.count("```pycon\n>>> ") == 1
    assert value.endswith("\n```")


@pytest.mark.parametrize("module", [antiphase, strategies], ids=lambda module: module.__name__)
def test_exports_are_sorted(module):
    assert list(module.__all__) == sorted(module.__all__)


@pytest.mark.parametrize("path", sorted(exported(antiphase)))
def test_every_public_name_says_what_it_is(path):
    module, name = path.rsplit(".", 1)
    thing = getattr(importlib.import_module(module), name)
    first, _, rest = (thing.__doc__ or "").partition("\n")
    assert first.strip(), f"{path} has no docstring"
    assert first.rstrip().endswith((".", ":")), f"the first line of {path} is not a sentence"
    assert not rest or not rest.partition("\n")[0].strip(), f"the first line of {path} runs on"
    # A dataclass without a docstring is given its signature as one.
    assert not re.match(rf"{name}\(.*\)$", first), f"{path} has no docstring"


@pytest.mark.parametrize("path", sorted(exported(antiphase)))
def test_public_members_say_what_they_are(path):
    module, name = path.rsplit(".", 1)
    thing = getattr(importlib.import_module(module), name)
    own = vars(thing).items() if inspect.isclass(thing) else ()
    members = {k: v for k, v in own if not k.startswith("_") and (callable(v) or isinstance(v, property))}
    assert [k for k, v in members.items() if not inspect.getdoc(v)] == []


def test_a_function_and_a_public_module_never_share_a_name():
    public = {path.stem for path in Path(antiphase.__file__).parent.iterdir() if not path.name.startswith(("_", "."))}
    collisions = [n for n in public & set(antiphase.__all__) if not isinstance(getattr(antiphase, n), ModuleType)]
    assert collisions == []
