"""antiphase.flower is imported by name, and says what to install where Flower is missing."""

import subprocess
import sys

import antiphase.flower


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_flower_the_error_names_the_command():
    result = run("import sys; sys.modules['flwr'] = None; import antiphase.flower")
    assert result.returncode != 0
    assert "pip install antiphase[flower]" in result.stderr


def test_the_package_itself_does_not_import_flower():
    assert (
        run(
            "import sys, antiphase; assert 'flwr' not in sys.modules; assert not hasattr(antiphase, 'flower')"
        ).returncode
        == 0
    )


def test_public_names_are_sorted_and_say_what_they_are():
    names = antiphase.flower.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)) == names
    for name in names:
        first, _, rest = (getattr(antiphase.flower, name).__doc__ or "").partition("\n")
        assert first.endswith((".", ":")), name
        assert not rest.partition("\n")[0].strip(), name
