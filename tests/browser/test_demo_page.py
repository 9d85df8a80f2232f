"""The page of the demo in Chromium."""

import pytest

from tests.browser.conftest import SIZES, THEMES, open_at, serious_faults, set_offline, take_screenshot


@pytest.fixture(params=[(size, theme) for size in SIZES for theme in THEMES], ids="-".join)
def view(request, chromium, demo_page):
    size, theme = request.param
    set_offline(chromium, True)
    open_at(chromium, demo_page.as_uri(), size, theme)
    return chromium, size, theme


def test_everything_is_drawn_and_fits(view):
    driver, size, _ = view
    assert driver.execute_script("return document.querySelectorAll('svg.chart').length") == 4
    assert driver.execute_script("return document.querySelectorAll('svg.chart circle.dot').length") == 4
    lengths = driver.execute_script(
        "return [...document.querySelectorAll('svg.chart > path.line[d*=L]')].map(p => p.getTotalLength())"
    )
    assert len(lengths) == 6
    assert min(lengths) > 50
    assert driver.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]


def test_quiet_and_alone(view):
    driver, _, _ = view
    assert driver.get_log("browser") == []
    fetched = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def test_no_serious_fault_of_accessibility(view):
    driver, _, _ = view
    assert serious_faults(driver) == []


def test_screenshots(view, screenshots):
    driver, size, theme = view
    path = screenshots / f"demo-{size}-{theme}.png"
    take_screenshot(driver, path, size, 2.4)
    assert path.stat().st_size > 20_000
