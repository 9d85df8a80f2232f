"""Install packages with pip behind a progress bar: `python .ci/install.py COUNT ARGUMENTS...`.

COUNT is about how many packages there will be. ARGUMENTS are those of `pip install`. What pip prints, including
warnings of package indexes, is shown only if it fails.
"""

from __future__ import annotations

import subprocess
import sys
import time

WIDTH = 40


def main(count: int, arguments: list[str]) -> int:
    """Run pip, draw the bar on a terminal, and return pip's exit code."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started, found, lines, what = time.monotonic(), 0, [], "looking"
    if not sys.stderr.isatty():
        print("installing the packages of the demo", file=sys.stderr)
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Collecting "):
            found, what = found + 1, line.split()[1]
        elif line.startswith("Installing collected"):
            what = "unpacking"
        draw(min(0.95, found / count), what, time.monotonic() - started)
    code = process.wait()
    if code:
        sys.stderr.write("\n" + "".join(lines))
        return code
    draw(1.0, "done", time.monotonic() - started)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return 0


def draw(share: float, what: str, seconds: float) -> None:
    """Draw the bar over the last one."""
    if sys.stderr.isatty():
        full = round(WIDTH * share)
        bar = "#" * full + "." * (WIDTH - full)
        print(f"\r  installing {what:<28.28} {bar} {seconds:4.0f} s", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
