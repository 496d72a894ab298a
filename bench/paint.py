"""When a browser shows a report: first contentful paint of a page, in headless Chromium from an empty profile.

    python bench/paint.py report.html --megabytes 6 --repeats 5

Packed data is added up to the size, as a page of many captures holds it. Times in ms from the start of the navigation.
"""

from __future__ import annotations

import argparse
import base64
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import CHROMIUM, with_script

_ASK = """addEventListener("load", function () {
  new PerformanceObserver(function (list) { document.title = "paint " + list.getEntriesByName("first-contentful-paint")[0].startTime; })
    .observe({ type: "paint", buffered: true });
});"""


def grown(page: str, size: int) -> str:
    """The page with inert packed data before its scripts, up to `size` bytes."""
    data = base64.b64encode(random.Random(0).randbytes(max(0, size - len(page.encode())) * 3 // 4)).decode()
    return page.replace("</main>", f'</main><script type="application/gzip" id="more">{data}</script>', 1)


def first_paint(page: Path) -> float:
    """Milliseconds. Raises StopIteration where the browser painted nothing."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--timeout=4000",
             f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    return float(next(re.finditer(r"<title>paint ([\d.]+)</title>", done.stdout))[1])


def main() -> None:
    """Prints the size of the page and the paints, the median first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("--megabytes", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    source = with_script(grown(asked.page.read_text(encoding="utf-8"), int(asked.megabytes * 1e6)), _ASK)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(source, encoding="utf-8")
        paints = sorted(first_paint(page) for _ in range(asked.repeats))
    shown = ", ".join(f"{ms:.0f}" for ms in paints)
    print(
        f"{len(source.encode()) / 1e6:.1f} MB: first contentful paint {statistics.median(paints):.0f} ms ({shown})"
    )


if __name__ == "__main__":
    main()
