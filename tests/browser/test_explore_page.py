"""The explorer in Chromium: real plans, progress and cancel, at every width, in both themes, with the keyboard."""

import json
import os
import time

import pytest

from tests.browser.conftest import SIZES, THEMES, open_at, serious_faults, set_offline, take_screenshot

SECONDS = 300  # for a busy machine


def js(driver, code, *arguments):
    return driver.execute_script(code, *arguments)


def state(driver):
    return js(driver, "return document.getElementById('status').dataset.state")


def wait_for(driver, wanted, seconds=SECONDS):
    until = time.monotonic() + seconds
    while state(driver) != wanted:
        assert time.monotonic() < until, (
            state(driver),
            js(driver, "return document.getElementById('message').textContent"),
        )
        time.sleep(0.05)


def change(driver, **settings):
    """Type settings into the page, as a person would."""
    for name, value in settings.items():
        js(
            driver,
            "const [id, value] = arguments, input = document.getElementById(id); input.value = value;"
            "input.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )


# Settings that are planned in a second. With SCREENSHOTS, the pictures show those that the page starts with.
SMALL = {"steps": 60, "epochs": 4, "batch_size": 20, "participation": "fixed-epochs"}


@pytest.fixture(scope="module")
def ready(chromium, explorer):
    """The browser, allowed to reach this machine, with the answer to its first settings in the server's memory."""
    set_offline(chromium, False)
    open_at(chromium, explorer.address.partition("#")[0], "desktop", "light")  # without the token, nothing is planned
    if "SCREENSHOTS" not in os.environ:
        js(chromium, "sessionStorage.setItem('settings', arguments[0])", json.dumps(SMALL))
    open_home(chromium, explorer)
    yield chromium
    set_offline(chromium, True)


def open_home(driver, explorer, size="desktop", theme="light"):
    """Open the page anew with its first settings, and wait until everything is drawn."""
    driver.get("about:blank")  # otherwise a new part after # would not load the page
    open_at(driver, explorer.address, size, theme)
    wait_for(driver, "done")


@pytest.fixture(params=[(size, theme) for size in SIZES for theme in THEMES], ids="-".join)
def view(request, ready, explorer):
    size, theme = request.param
    open_home(ready, explorer, size, theme)
    return ready, size, theme


def test_everything_is_drawn(view):
    driver, _, _ = view
    lines = js(
        driver, "return [...document.querySelectorAll('svg.chart path.line[d*=L]')].map(p => p.getTotalLength())"
    )
    assert len(lines) >= 5
    assert min(lines) > 20
    assert js(driver, "return document.querySelectorAll('svg.chart').length") == 3
    assert js(driver, "return document.querySelectorAll('svg.heat image').length") == 2
    assert js(driver, "return document.querySelectorAll('#price-words li').length") >= 3
    assert "ap.plan(problem" in js(driver, "return document.getElementById('python').textContent")
    assert js(driver, "return document.getElementById('command').textContent").startswith("antiphase plan --steps ")


def test_nothing_on_the_console_and_nothing_fetched_from_elsewhere(view, explorer):
    driver, _, _ = view
    assert driver.get_log("browser") == []
    fetched = js(driver, "return performance.getEntriesByType('resource').map(e => e.name)")
    home = f"http://127.0.0.1:{explorer.port}/"
    assert [name for name in fetched if not name.startswith((home, "data:"))] == []
    assert explorer.token not in driver.current_url


def test_it_fits_the_width(view):
    driver, size, _ = view
    assert js(driver, "return document.documentElement.scrollWidth") <= SIZES[size][0]


def test_the_theme_is_the_readers(view):
    driver, _, theme = view
    colour = js(driver, "return getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[theme]


def test_no_serious_fault_of_accessibility(view):
    driver, _, _ = view
    assert serious_faults(driver) == []


def test_screenshots(view, screenshots):
    driver, size, theme = view
    path = screenshots / f"explore-{size}-{theme}.png"
    take_screenshot(driver, path, size, 1.6 if size == "desktop" else 3.0)
    assert path.stat().st_size > 20_000


def test_an_answer_that_is_known_comes_within_a_second(ready, explorer):
    open_home(ready, explorer)
    first = js(ready, "return document.getElementById('epsilon').value")
    change(ready, epsilon="3.3")
    wait_for(ready, "running")
    wait_for(ready, "done")
    assert "epsilon=3.3," in js(ready, "return document.getElementById('python').textContent")
    change(ready, epsilon=first)
    time.sleep(1.0)
    wait_for(ready, "done")
    entry = "const found = performance.getEntriesByName(location.origin + '/api/start').pop(); return found.duration"
    assert js(ready, entry) < 1000


def test_the_keyboard_moves_a_slider_and_a_new_plan_comes(ready, explorer):
    from selenium.webdriver.common.keys import Keys

    open_home(ready, explorer)
    before = js(ready, "return document.getElementById('epsilon').value")
    js(ready, "document.querySelector('[data-for=epsilon]').focus()")
    ready.switch_to.active_element.send_keys(Keys.ARROW_RIGHT * 10)
    after = js(ready, "return document.getElementById('epsilon').value")
    assert float(after) > float(before)
    wait_for(ready, "running")
    wait_for(ready, "done")
    assert f"epsilon={after}" in js(ready, "return document.getElementById('python').textContent").replace(".0,", ",")


def test_every_control_is_reached_by_tab(ready, explorer):
    from selenium.webdriver.common.keys import Keys

    open_home(ready, explorer)
    seen = []
    for _ in range(22):
        ready.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(ready.switch_to.active_element.get_attribute("id"))
    wanted = {
        "steps",
        "epochs",
        "batch_size",
        "epsilon",
        "delta",
        "adjacency",
        "memory_copies",
        "participation",
        "cancel",
    }
    assert wanted <= set(seen)


def test_work_can_be_cancelled(ready, explorer):
    open_home(ready, explorer)
    change(ready, steps="50000", participation="any")
    wait_for(ready, "running")
    js(ready, "document.getElementById('cancel').click()")
    wait_for(ready, "stopped", 10)
    assert "Cancelled" in js(ready, "return document.getElementById('message').textContent")
    change(ready, **{name: str(value) for name, value in SMALL.items()})
    wait_for(ready, "done")


def test_errors_are_explained(ready, explorer):
    open_home(ready, explorer)
    change(ready, steps="0")
    wait_for(ready, "error")
    change(ready, steps="61", participation="fixed-size")
    wait_for(ready, "running")
    wait_for(ready, "error")
    assert "Hint" in js(ready, "return document.getElementById('message').textContent")


def test_without_the_token_the_page_says_what_to_do(ready, explorer):
    js(ready, "sessionStorage.removeItem('token')")
    open_at(ready, explorer.address.partition("#")[0], "desktop", "light")
    wait_for(ready, "error")
    assert "antiphase explore" in js(ready, "return document.getElementById('message').textContent")
