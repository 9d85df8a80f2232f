"""Charts and heat maps: what is drawn is what was given."""

import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from antiphase._report.chart import Axis, Chart, _stroke, axis, draw, series, thinned, tick_text
from antiphase._report.curves import _coarse_to_fine
from antiphase._report.heat_map import HeatMap, colours, condensed, draw_heat_map, png
from antiphase._report.interval_chart import IntervalChart, draw_intervals

SVG = "{http://www.w3.org/2000/svg}"


def chart(count: int = 2, **options) -> Chart:
    x = np.arange(1, 11)
    return Chart("A & B", "step", "error", tuple(series(f"line <{i}>", x, x**2 + i) for i in range(count)), **options)


@pytest.mark.parametrize("logs", [{}, {"log_x": True}, {"log_y": True}, {"log_x": True, "log_y": True}])
def test_a_chart_is_wellformed_and_has_one_line_for_each_series(logs):
    root = ElementTree.fromstring(draw(chart(8, **logs), "name"))
    lines = [p for p in root.iter(f"{SVG}path") if p.find(f"{SVG}title") is not None]
    assert [p.find(f"{SVG}title").text for p in lines] == [f"line <{i}>" for i in range(8)]
    texts = "".join(t.text or "" for t in root.iter(f"{SVG}text"))
    assert all(f"line <{i}>" in texts for i in range(8))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}desc").text.startswith("error against step.")


def test_points_stand_where_the_axes_say():
    root = ElementTree.fromstring(draw(chart(1), "name"))
    line = next(p for p in root.iter(f"{SVG}path") if p.find(f"{SVG}title") is not None)
    points = np.array([[float(v) for v in pair.split()] for pair in re.split(r"[ML]", line.get("d"))[1:]])
    # Steps are equally far apart and squares fall on a parabola, upside down on the page.
    assert np.ptp(np.diff(points[:, 0])) <= 0.21
    np.testing.assert_allclose(np.polyfit(np.arange(1, 11), points[:, 1], 2)[1], 0.0, atol=0.1)
    assert (np.diff(points[:, 1]) < 0).all()


def test_no_two_of_36_lines_look_alike():
    assert len({_stroke(i) for i in range(36)}) == 36


def test_points_that_are_not_finite_are_left_out():
    assert series("x", [1, 2, 3], [1.0, np.inf, np.nan]).x.tolist() == [1.0]


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 1, False), (-3, 7, False), (1e-9, 0.1, True), (3, 5, True), (5, 5, False)]
)
def test_ticks_are_inside_and_places_grow(low, high, log):
    a = axis([np.array([low, high], dtype=float)], 10.0, 110.0, log)
    ticks = a.ticks()
    assert 1 <= len(ticks) <= 12
    places = [a.place(t) for t in ticks]
    assert places == sorted(places)
    assert min(places) >= 10.0 - 1e-6
    assert max(places) <= 110.0 + 1e-6


def test_axis_places_and_texts():
    assert Axis(1.0, 100.0, 0.0, 10.0, True).place(10.0) == pytest.approx(5.0)
    assert Axis(0.0, 4.0, 0.0, 10.0, False).place(1.0) == pytest.approx(2.5)
    assert [tick_text(v) for v in (1e7, -0.5, 12345.0)] == ["1e7", "-0.5", "12,345"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 33])
def test_coarse_to_fine_is_a_permutation(count):
    assert sorted(_coarse_to_fine(count)) == list(range(count))


def test_thinning_keeps_both_ends():
    found = thinned(1000, 7)
    assert (found[0], found[-1], len(found)) == (0, 999, 7)


def decoded(data: bytes) -> np.ndarray:
    """The pixels of a PNG without filters, read by the standard."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", content[:8])
        body += content if kind == b"IDAT" else b""
        at += size + 12
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_the_image_holds_the_colours():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(decoded(png(pixels)), pixels)


def test_colours_tell_signs_and_sizes_apart():
    found = colours(np.array([[0.0, 1.0], [-1.0, 0.25]]))
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[0, 1].tolist() == [200, 80, 0]
    assert found[1, 0].tolist() == [0, 90, 160]
    assert found[1, 1].tolist() == [228, 168, 128]


def test_a_single_large_entry_survives_condensing():
    matrix = np.zeros((1000, 700))
    matrix[613, 5] = -2.0
    small = condensed(matrix, 100)
    assert small.shape == (100, 100)
    assert small.min() == -2.0
    assert np.count_nonzero(small) == 1


def test_a_heat_map_says_what_it_shows():
    root = ElementTree.fromstring(draw_heat_map(HeatMap("C", np.array([[1.0, 0.0], [-0.5, 1.0]])), "h"))
    assert "from -0.5 to 1; 25 % are below zero" in root.find(f"{SVG}desc").text


def test_dots_mark_every_point_and_may_stand_alone():
    dotted = series("front", [1.0, 2.0, 4.0], [3.0, 2.0, 1.0], dots=True)
    alone = series("others", [1.0, 4.0], [3.0, 2.5], faint=True, dots=True, joined=False)
    root = ElementTree.fromstring(draw(Chart("t", "x", "y", (dotted, alone), x_ticks=((1.0, "none"),)), "name"))
    assert len(list(root.iter(f"{SVG}circle"))) == 5
    lines = [p for p in root.iter(f"{SVG}path") if p.find(f"{SVG}title") is not None]
    (line,) = lines
    places = [f"{c.get('cx')} {c.get('cy')}" for c in root.iter(f"{SVG}circle") if "faint" not in c.get("class")]
    assert line.get("d") == "M" + " L".join(places)
    labels = [t.text for t in root.iter(f"{SVG}text")]
    assert "none" in labels


def test_intervals_are_drawn_to_scale():
    rows = (("a <b>", 60.0, 2.0), ("c", 70.0, 4.0))
    chart = IntervalChart("Accuracy", "percent", rows)
    root = ElementTree.fromstring(draw_intervals(chart, "name"))
    bars = [[float(v) for v in re.findall(r"[MH]([\d.]+)", p.get("d"))] for p in root.iter(f"{SVG}path")]
    widths = [bar[1] - bar[0] for bar in bars]
    assert widths[1] == pytest.approx(2.0 * widths[0], abs=0.2)
    centres = [float(c.get("cx")) for c in root.iter(f"{SVG}circle")]
    assert centres == pytest.approx([(bar[0] + bar[1]) / 2 for bar in bars], abs=0.11)
    assert centres[1] - centres[0] == pytest.approx(2.5 * widths[0], abs=0.3)
    assert root.find(f"{SVG}desc").text == "percent. a <b>: 60.0 ± 2.0; c: 70.0 ± 4.0."
