"""A headless Chromium without a network, and a page to open in it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphase as ap
from antiphase._report import gather, html, read

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
            run.commit(step, ap.digest(run.noise(step)))
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
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go; SCREENSHOTS=docs/images renews those of the documentation."""
    given = os.environ.get("SCREENSHOTS")
    return Path(given).absolute() if given else tmp_path_factory.mktemp("screenshots")
