"""Pictures of a report to look at before a release: `python -m docs.screenshots REPORT.html FOLDER` (`make screenshots`).

Light and dark at 360 and 1440 pixels, and what a printer gets. Needs Chromium. With SECTION HEIGHT as well, the id of a
section of the page and pixels: FOLDER/SECTION.png, that section alone, 1000 pixels wide (`make picture`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEIGHT = 4000


def main(report: Path, folder: Path) -> None:
    """Writes light-360.png, dark-360.png, light-1440.png, dark-1440.png and print.pdf into `folder`."""
    browser = _browser()
    folder.mkdir(parents=True, exist_ok=True)
    page = report.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        for theme in ("light", "dark"):
            themed = Path(scratch) / f"{theme}.html"
            themed.write_text(
                page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">'), encoding="utf-8"
            )
            for width in (360, 1440):
                picture = folder / f"{theme}-{width}.png"
                _browse(
                    browser, scratch, themed, f"--screenshot={picture}", f"--window-size={width},{HEIGHT}"
                )
        _browse(
            browser,
            scratch,
            report.resolve(),
            f"--print-to-pdf={folder / 'print.pdf'}",
            "--no-pdf-header-footer",
        )
    print("\n".join(str(p) for p in sorted(folder.iterdir())))


def section(report: Path, folder: Path, name: str, height: int) -> None:
    """Writes the upper `height` pixels of one section of the page into `folder`."""
    alone = f"<style>main > :not(#{name}) {{ display: none }}</style>"
    page = re.sub(
        r"<meta http-equiv=.Content-Security-Policy.[^>]*>", alone, report.read_text(encoding="utf-8")
    )
    browser = _browser()
    with tempfile.TemporaryDirectory() as scratch:
        shown = Path(scratch) / "section.html"
        shown.write_text(page, encoding="utf-8")
        picture = (folder / f"{name}.png").resolve()
        _browse(browser, scratch, shown, f"--screenshot={picture}", f"--window-size=1000,{height}")


def _browser() -> str:
    for name in BROWSERS:
        if shutil.which(name):
            return name
    raise SystemExit(f"needs one of {', '.join(BROWSERS)}")


def _browse(browser: str, profile: str, page: Path, *options: str) -> None:
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
    command = [browser, *fixed, f"--user-data-dir={profile}/profile", *options, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    if sections := sys.argv[3:]:
        section(Path(sys.argv[1]), Path(sys.argv[2]), sections[0], int(sections[1]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
