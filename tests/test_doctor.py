"""`antiphase doctor`: what it finds here, and what it says where something is missing."""

import json
from importlib import metadata

import pytest

import antiphase as ap
from antiphase._cli import doctor
from tests.test_cli import run


@pytest.fixture(scope="module")
def found():
    result = run("doctor", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_versions_are_those_that_are_installed(found):
    assert found["machine"]["antiphase"] == ap.__version__
    assert found["libraries"]["numpy"] == metadata.version("numpy")
    assert found["healthy"]


def test_the_machine_is_described(found):
    machine = found["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 1e8
    assert machine["kernel_cache"]
    assert found["noise"]["aes_gigabytes_per_second"] > 0.0
    assert "OpenSSL" in found["noise"]["openssl"]


def test_every_extra_of_the_package_is_listed(found):
    extras = set(metadata.metadata("antiphase").get_all("Provides-Extra")) - {"dev"}
    assert set(found["extras"]) == extras
    assert {package["name"] for package in found["extras"]["torch"]} == {"torch", "opacus"}
    names = {package["name"] for package in found["extras"]["huggingface"]}
    assert {"torch", "transformers"} <= names  # what an extra needs through another extra
    assert "numpy" not in names


def test_what_is_missing_is_named_with_the_command(monkeypatch):
    versions = {"torch": "2.5.0", "opacus": None}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "1000.0"))
    text = " ".join(run("doctor").stdout.split())
    assert "torch>=2.6 (installed: 2.5.0)" in text
    assert "opacus>=1.6 (missing)" in text
    assert "pip install 'antiphase[torch]'" in text
    assert "jax" in text


def test_a_missing_library_or_wrong_noise_is_an_error(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else "1000.0")
    result = run("doctor")
    assert result.exit_code == 1
    assert "scipy MISSING" in result.stdout


def test_noise_that_cannot_be_made_is_an_error(monkeypatch):
    def broken(*_):
        raise ap.Refused("the noise is wrong", hint="")

    monkeypatch.setattr(ap, "NoiseStream", broken)
    result = run("doctor")
    assert result.exit_code == 1
    assert "the noise is wrong" in result.stdout
