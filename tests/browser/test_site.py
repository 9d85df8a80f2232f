"""The documentation site in Chromium, opened as files and without a network: search, themes, widths, accessibility."""

import time
from pathlib import Path

import pytest

from tests.browser.conftest import SIZES, THEMES, open_at, serious_faults, set_offline

SITE = Path(__file__).parents[2] / "site"
PAGES = ["index.html", "tutorial-budget.html", "reference.html"]


@pytest.fixture(scope="module", autouse=True)
def site(chromium):
    assert (SITE / "index.html").exists(), "run make docs"
    set_offline(chromium, True)


def fetched_from_elsewhere(driver):
    names = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    return [name for name in names if not name.startswith(("file:", "data:"))]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_pages_need_no_network_and_fit(chromium, page, size, theme):
    open_at(chromium, (SITE / page).as_uri(), size, theme)
    assert fetched_from_elsewhere(chromium) == []
    assert [entry for entry in chromium.get_log("browser") if "ERR_" in entry["message"]] == []
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    back = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(back.partition("(")[2].partition(",")[0])
    assert (red < 80) == (theme == "dark")


@pytest.mark.parametrize("theme", THEMES)
def test_no_serious_fault_of_accessibility(chromium, theme):
    open_at(chromium, (SITE / "getting-started.html").as_uri(), "desktop", theme)
    # The content is ours. The frame around it is the theme's, whose search dialog has no name.
    assert serious_faults(chromium, ".md-content") == []


def test_search_finds_a_page_without_a_server(chromium):
    open_at(chromium, (SITE / "index.html").as_uri(), "desktop", "light")
    box = chromium.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys("balls-in-bins")
    until = time.monotonic() + 60
    while not chromium.find_elements("css selector", ".md-search-result__link"):
        assert time.monotonic() < until, "nothing was found"
        time.sleep(0.1)
    links = chromium.find_elements("css selector", ".md-search-result__link")
    assert any("amplification" in link.get_attribute("href") for link in links)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_screenshots(chromium, screenshots, size, theme):
    open_at(chromium, (SITE / "index.html").as_uri(), size, theme)
    path = screenshots / f"site-{size}-{theme}.png"
    chromium.save_screenshot(str(path))
    assert path.stat().st_size > 20_000
