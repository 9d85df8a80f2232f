"""`antiphase doctor`: show what this machine has, and what each integration still needs."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

import antiphase as ap
from antiphase._cli.memory import physical_memory
from antiphase._cli.output import print_facts, print_json, print_table

LIBRARIES = ("numpy", "scipy", "numba", "cryptography", "dp-accounting", "joblib", "typer", "rich", "jinja2")
EXTRAS = {
    "torch": "PyTorch and Opacus",
    "huggingface": "Hugging Face Trainer",
    "lightning": "Lightning",
    "jax": "JAX and Optax",
    "keras": "Keras on JAX",
    "flower": "Flower",
    "demo": "antiphase demo",
}
MEGABYTE = 1 << 20
AES_MEGABYTES = 32
HARDWARE_AES = 0.5  # GB per second. If AES is faster than this, it runs in hardware. In software, it reaches about 0.2.


@dataclass(frozen=True)
class Package:
    """A package that an extra needs.

    `version` is None if the package is not installed. `fits` is True if `version` is in the range `wanted`.
    """

    name: str
    wanted: str
    version: str | None
    fits: bool


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, caches, cores, AES support, and what each integration still needs.

    The exit code is 1 if the library itself cannot work here, and 0 otherwise.

    Example: antiphase doctor
    """
    machine, noise, extras = _machine(), _noise(), {name: list(_packages(name)) for name in EXTRAS}
    versions = {name: _version(name) for name in LIBRARIES}
    healthy = noise["problem"] is None and all(versions.values())
    if as_json:
        plain = {name: [vars(package) for package in packages] for name, packages in extras.items()}
        print_json({"machine": machine, "libraries": versions, "noise": noise, "extras": plain, "healthy": healthy})
    else:
        _print(machine, noise, versions, extras)
    if not healthy:
        raise typer.Exit(1)


def _machine() -> dict[str, Any]:
    cache, why = _kernel_cache()
    return {
        "antiphase": ap.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "runs": _can_run(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": physical_memory() if physical_memory() < sys.maxsize else None,
        "kernel_cache": None if cache is None else str(cache),
        "kernel_cache_problem": why,
        "kernels_cached": 0 if cache is None else len(list(cache.glob("*.nbi"))),
        "kernel_cache_bytes": 0 if cache is None else sum(file.stat().st_size for file in cache.glob("*.nb[ic]")),
    }


def _can_run() -> bool:
    """Return whether runs can lock their directory, which Windows does not support."""
    try:
        import fcntl
    except ImportError:
        return False
    return hasattr(fcntl, "flock")


def _kernel_cache() -> tuple[Path | None, str | None]:
    """Return the directory of compiled kernels, or the reason why there is none."""
    from antiphase._kernels import read_row

    try:
        return Path(read_row._cache.cache_path), None
    except AttributeError:
        return None, "no directory is writable; set NUMBA_CACHE_DIR to a writable directory"


def _noise() -> dict[str, Any]:
    """Test the noise generator, which compares itself with a reference, and measure AES, which generates its bits."""
    from cryptography.hazmat.backends.openssl.backend import backend

    problem = None
    try:
        stream = ap.NoiseStream(_small_mechanism(), [(16,)], ap.Secret.generate())
        stream.next()
    except (ap.AntiphaseError, OSError) as error:
        problem = str(error).splitlines()[0]
    speed = _aes_speed()
    flag = _cpu_has_aes()
    return {
        "problem": problem,
        "openssl": backend.openssl_version_text(),
        "aes_gigabytes_per_second": round(speed, 2),
        "aes_in_hardware": flag if flag is not None else speed > HARDWARE_AES,
    }


def _small_mechanism() -> ap.Mechanism:
    return ap.Mechanism(ap.strategies.Toeplitz.square_root(8, bands=4), ap.SingleParticipation(), 1.0)


def _aes_speed() -> float:
    """Return the speed of AES-256-CTR on one core, in GB per second."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptor = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
    zeros, out = bytes(MEGABYTE), bytearray(MEGABYTE + 16)
    encryptor.update_into(zeros, out)
    start = perf_counter()
    for _ in range(AES_MEGABYTES):
        encryptor.update_into(zeros, out)
    return AES_MEGABYTES * MEGABYTE / (perf_counter() - start) / 1e9


def _cpu_has_aes() -> bool | None:
    """Return whether the processor has instructions for AES; None if the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return None if flags is None else "aes" in flags[1].split()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages(extra: str) -> Iterator[Package]:
    """Yield the packages that an extra needs, according to the metadata of the installed library."""
    from packaging.requirements import Requirement

    for text in metadata.requires("antiphase") or ():
        wanted = Requirement(text)
        if wanted.marker is None or not wanted.marker.evaluate({"extra": extra}):
            continue
        if wanted.marker.evaluate({"extra": ""}):
            continue
        if wanted.name == "antiphase":
            for other in wanted.extras:
                yield from _packages(other)
            continue
        version = _version(wanted.name)
        fits = version is not None and wanted.specifier.contains(version, prereleases=True)
        yield Package(wanted.name, str(wanted.specifier), version, fits)


def _print(
    machine: dict[str, Any], noise: dict[str, Any], versions: dict[str, str | None], extras: dict[str, list[Package]]
) -> None:
    memory = machine["memory_bytes"]
    cached = f"{machine['kernels_cached']} kernels, {machine['kernel_cache_bytes'] / 1e6:.1f} MB, in "
    hardware = "in hardware" if noise["aes_in_hardware"] else "in software, so noise is slow"
    print_facts(
        [
            ("antiphase", machine["antiphase"]),
            ("Python", machine["python"]),
            ("system", machine["system"]),
            ("cores", str(machine["cores"])),
            ("memory", "unknown" if memory is None else f"{memory / 1e9:.1f} GB"),
            ("compiled kernels", machine["kernel_cache_problem"] or cached + str(machine["kernel_cache"])),
            ("AES", f"{hardware}, {noise['aes_gigabytes_per_second']:.2g} GB/s per core, {noise['openssl']}"),
            ("noise", noise["problem"] or "correct, compared with a float64 reference"),
            ("runs", "can be made" if machine["runs"] else "cannot be made: this system has no fcntl; planning works"),
            ("libraries", ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())),
        ]
    )
    typer.echo()
    rows = (_row(name, found) for name, found in extras.items())
    print_table("Integrations", ["extra", "for", "state"], rows, numbers=False)


def _row(extra: str, packages: list[Package]) -> list[str]:
    wrong = [package for package in packages if not package.fits]
    if not wrong:
        have = ", ".join(f"{package.name} {package.version}" for package in packages)
        return [extra, EXTRAS[extra], f"ready: {have}"]
    named = ", ".join(
        f"{p.name}{p.wanted} ({'missing' if p.version is None else f'installed: {p.version}'})" for p in wrong
    )
    return [extra, EXTRAS[extra], f"needs {named}: pip install 'antiphase[{extra}]'"]
