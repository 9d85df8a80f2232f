"""The report in Chromium: drawn, quiet, readable at every width and in both themes, and accessible."""

import pytest

from tests.browser.conftest import SIZES, THEMES, open_at, serious_faults, set_offline, take_screenshot


@pytest.fixture(params=[(size, theme) for size in SIZES for theme in THEMES], ids="-".join)
def view(request, chromium, page):
    """The page open at a width and in a theme: (driver, size, theme)."""
    size, theme = request.param
    set_offline(chromium, True)
    open_at(chromium, page.as_uri(), size, theme)
    return chromium, size, theme


def test_every_line_is_drawn(view):
    driver, _, _ = view
    lengths = driver.execute_script(
        "return [...document.querySelectorAll('svg.chart > path.line[d*=L]')].map(p => p.getTotalLength())"
    )
    assert len(lengths) >= 10
    assert min(lengths) > 50
    assert driver.execute_script("return document.querySelectorAll('svg.chart').length") == 4


def test_both_matrices_are_drawn(view):
    driver, _, _ = view
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('svg.heat image')].map(i => i.getBoundingClientRect().width)"
    )
    assert len(boxes) == 2
    assert min(boxes) > 200
    # An image that cannot be decoded has no size of its own.
    decoded = driver.execute_async_script(
        "const done = arguments[0], image = new Image();"
        "image.onload = () => done(image.naturalWidth); image.onerror = () => done(0);"
        "image.src = document.querySelector('svg.heat image').getAttribute('href')"
    )
    assert decoded == 192


def test_nothing_on_the_console_and_nothing_fetched(view):
    driver, _, _ = view
    assert driver.get_log("browser") == []
    fetched = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def test_it_fits_the_width_and_can_be_read(view):
    driver, size, _ = view
    assert driver.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    smallest = driver.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg.chart')].map("
        "s => 13 * s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    )
    assert smallest >= 10  # pixels of the text in charts


def test_the_theme_is_the_readers(view):
    driver, _, theme = view
    colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[theme]


def test_the_keyboard_reaches_everything(view):
    from selenium.webdriver.common.keys import Keys

    driver, _, _ = view
    driver.switch_to.active_element.send_keys(Keys.TAB)
    assert driver.switch_to.active_element.get_attribute("class") == "skip"
    driver.execute_script("document.querySelector('summary').focus()")
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.querySelector('details').open")


def test_no_serious_fault_of_accessibility(view):
    driver, _, _ = view
    assert serious_faults(driver) == []


def test_screenshots(view, screenshots):
    driver, size, theme = view
    path = screenshots / f"report-{size}-{theme}.png"
    take_screenshot(driver, path, size, 2.4)
    assert path.stat().st_size > 20_000
