"""A page in a real browser, with the network off."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

CHROMIUM = next((c for c in ("chromium", "chromium-browser", "google-chrome") if shutil.which(c)), None)


class Opened:
    """What a browser made of a page: its document after scripts ran, its console, the addresses it asked for."""

    def __init__(self, source: str, folder: Path, fragment: str = "") -> None:
        page, net = folder / "page.html", folder / "net.json"
        page.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [
                str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net}",
                "--enable-logging=stderr", "--v=0", "--virtual-time-budget=9000", "--dump-dom",
                f"{page.as_uri()}{fragment}",
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.requests = _requests(net)


def _requests(net: Path) -> list[str]:
    """What the page asked for; the browser's own requests (updates and the like) carry no `file:` key."""
    asked = [e.get("params", {}) for e in json.loads(net.read_text(encoding="utf-8"))["events"]]
    return [
        p["url"]
        for p in asked
        if p.get("url") and str(p.get("network_isolation_key", "")).startswith("file:")
    ]


def with_script(page: str, script: str) -> str:
    """The page with one more script at its end, which its policy names; nothing else of the policy changes."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return allowed.replace("</body>", f"<script>{script}</script></body>")
