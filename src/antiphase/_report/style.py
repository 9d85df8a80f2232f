"""CSS of the report: light and dark, colour-blind safe, readable on a phone."""

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
.chart .line{fill:none;stroke-width:2.2;stroke-linejoin:round}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}
.chart .faint{stroke:var(--rule);stroke-width:1}
.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}
"""
PAGE = """
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25;margin:1.4rem 0 .4rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--c1);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
nav ul{list-style:none;padding:0;margin:.6rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem}
.answer{border:2px solid var(--rule);border-radius:.6rem;background:var(--card);padding:.8rem 1rem;margin:1rem 0}
.answer strong{font-size:1.35rem}
.dim{color:var(--dim)}
.remark{border-left:4px solid var(--bad);padding:.2rem .8rem;margin:.6rem 0;background:var(--card)}
dl{display:grid;grid-template-columns:minmax(9rem,16rem) 1fr;gap:.35rem 1.2rem;margin:0}
dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1.2rem}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:.6rem;padding:.8rem;min-width:0}
figcaption{font-weight:600;margin-bottom:.4rem}
.chart,.heat{width:100%;height:auto;display:block}
.heat{image-rendering:pixelated}
details{margin-top:.6rem}summary{cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%;font-size:.93rem}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}td.words,th.words{text-align:left;white-space:normal;min-width:12rem}
caption{text-align:left;color:var(--dim);padding:.2rem 0}
footer{color:var(--dim);margin-top:2.5rem;padding-bottom:2rem;font-size:.9rem}
@media(max-width:36rem){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.6rem}}
@media(max-width:36rem){th,td{white-space:normal;padding:.25rem .35rem}}
@media print{nav,.skip{display:none}figure,.answer{break-inside:avoid}}
"""


def themed(selector: str) -> str:
    """Colours for a selector, light or dark by the reader's preference."""
    return f"{selector}{{color-scheme:light dark;{LIGHT}}}@media(prefers-color-scheme:dark){{{selector}{{{DARK}}}}}"


def page_style() -> str:
    """CSS for the HTML page."""
    return (themed(":root") + CHART + PAGE).replace("\n", "")


def file_style() -> str:
    """CSS for an SVG file of its own, with a background."""
    return (themed("svg") + "svg{background:var(--back)}" + CHART).replace("\n", "")
