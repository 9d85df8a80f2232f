"""CSS for colours and charts, for light and dark themes. The page layout is in templates/report.css."""

LIGHT = """
--back:#ffffff;--card:#f6f7f9;--ink:#16191d;--dim:#4a5058;--rule:#c9ced6;--grid:#e2e5ea;--link:#0b5cad;
--c0:#0072b2;--c1:#c44e00;--c2:#007a5a;--c3:#a8457f;--c4:#7d5b00;--c5:#4b4bb8;--good:#00634a;--bad:#a32a00;
"""
DARK = """
--back:#14171b;--card:#1d2126;--ink:#eceff3;--dim:#b3bac4;--rule:#454c56;--grid:#31373f;--link:#7db8f0;
--c0:#56b4e9;--c1:#ff9a52;--c2:#3fcf9f;--c3:#eb9cc8;--c4:#e6cf4a;--c5:#b9b3ff;--good:#5fd6ac;--bad:#ff9d7a;
"""
CHART = """
.chart text{font:13px system-ui,sans-serif;fill:var(--ink)}
.chart .grid{stroke:var(--grid)}
.chart .mark{stroke:var(--dim);stroke-dasharray:3 3}
.chart .bar{fill:var(--c0)}
.chart .claim{stroke:var(--c1);stroke-width:2.2}
.chart .line{fill:none;stroke-width:2.2;stroke-linejoin:round}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}
.chart .faint{stroke:var(--rule);stroke-width:1}
.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}
"""
DOTS = ".chart .dot{fill:var(--card);stroke-width:2.2}.chart .dot.faint{fill:var(--rule)}"  # on pages only


def themed(selector: str) -> str:
    """Return CSS with the colours for a selector, light or dark according to the reader's system settings."""
    return f"{selector}{{color-scheme:light dark;{LIGHT}}}@media(prefers-color-scheme:dark){{{selector}{{{DARK}}}}}"


def page_style() -> str:
    """Return CSS with the colours and chart styles for the HTML page."""
    return (themed(":root") + CHART + DOTS).replace("\n", "")


def file_style() -> str:
    """Return CSS for a standalone SVG file, with a background."""
    return (themed("svg") + "svg{background:var(--back)}" + CHART).replace("\n", "")


def layout_style() -> str:
    """Return the CSS of the page layout, which all pages of the library share."""
    from importlib.resources import files

    return (files("antiphase._report") / "templates" / "report.css").read_text("utf-8")
