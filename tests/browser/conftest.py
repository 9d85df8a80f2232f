"""A headless Chromium without a network, and a page to open in it."""

import base64
import os
import shutil
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import antiphase as ap
from antiphase._demo import as_html, compare
from antiphase._explore import Explorer
from antiphase._report import gather, html, read

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
THEMES = ("light", "dark")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FAMILIES = ["identity", "tree", "stamped", "toeplitz", "banded", "banded-inverse", "blt"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that stopped early."""
    directory = tmp_path_factory.mktemp("report")
    epochs = ap.FixedEpochs(10, 40)
    problem = ap.Problem(400, ap.Budget(4.0, 1e-6), examples=4000, batch_size=100, participation=epochs, unit="user")
    plan = ap.plan(problem, FAMILIES)
    with ap.Run.open(plan, directory / "run", leaves=[(3,)], examples=4000) as run:
        for step in range(300):
            run.batch(step)
            run.commit(step, ap.digest(run.gradient_noise(step)))
            if step in (99, 299):
                run.publish(f"checkpoint {step + 1}")
    path = directory / "report.html"
    path.write_text(html(gather(read(directory / "run"))))
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """One browser for all tests; `make browser` installs it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert BROWSER, "chromium is missing: run make browser"
    assert DRIVER, "chromedriver is missing: run make browser"
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(300)  # axe takes longer on a busy machine
    driver.execute_cdp_cmd("Network.enable", {})
    set_offline(driver, True)
    yield driver
    driver.quit()


def set_offline(driver, offline: bool) -> None:
    """Cut the browser off from every network, this machine's own included, or connect it again."""
    conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)


def open_at(driver, address: str, size: str, theme: str) -> None:
    """Open a page at a width and in a theme."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get_log("browser")  # what an earlier page said is not this one's
    driver.get(address)


def serious_faults(driver, part: str = "html") -> list:
    """What axe finds in a part of the page that is serious or critical."""
    driver.execute_script((files("axe_core_python") / "axe.min.js").read_text())
    found = driver.execute_async_script("axe.run(arguments[0]).then(arguments[1])", part)
    assert found["passes"], "axe did not run"
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in serious]


def take_screenshot(driver, path: Path, size: str, screens: float) -> None:
    """Save the top of the page, as high as some screens."""
    width, height = SIZES[size]
    clip = {"x": 0, "y": 0, "width": width, "height": screens * height, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(taken["data"]))


@pytest.fixture(scope="session")
def explorer() -> Iterator[Explorer]:
    """The explorer's server."""
    found = Explorer()
    thread = threading.Thread(target=found.serve, daemon=True)
    thread.start()
    yield found
    found.close()
    thread.join()


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a demo with few runs."""
    directory = tmp_path_factory.mktemp("demo") / "demo"
    path = directory / "report.html"
    found = compare(directory, 2)
    path.write_text(as_html(found, directory))
    return path


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where screenshots go. SCREENSHOTS=docs/images then replaces the pictures that this folder already has."""
    folder = tmp_path_factory.mktemp("screenshots")
    yield folder
    if given := os.environ.get("SCREENSHOTS"):
        for old in Path(given).glob("*.png"):
            if (folder / old.name).exists():
                shutil.copyfile(folder / old.name, old)
