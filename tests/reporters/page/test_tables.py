"""Tables of the page in a real browser: none is cut at its right edge, at any width. Skipped where no Chromium is installed."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Opened, with_script

from trace_doctor.reporters import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page in")

_MEASURE = """var every = function (what, from) { return Array.from((from || document).querySelectorAll(what)); };
window.requestAnimationFrame = function (draw) { setTimeout(draw, 0); }; /* nobody draws a page that is only read */
var widths = [400, 768, 1024, 1280, 1600], said = {};
var next = function () {
  if (!widths.length) { document.title = JSON.stringify(said); return; }
  var width = widths.shift();
  document.body.style.width = width + "px";
  window.dispatchEvent(new Event("resize"));
  setTimeout(function () {
    var frames = every("main .scroll").filter(function (frame) { return frame.offsetWidth && frame.querySelector("table"); });
    said[width] = {
      frames: frames.length,
      cut: frames.filter(function (frame) { return frame.scrollWidth > frame.clientWidth || frame.lastElementChild.getBoundingClientRect().right > frame.getBoundingClientRect().right - parseFloat(getComputedStyle(frame).paddingRight) + 1; }).map(function (frame) { return frame.textContent.slice(0, 60); }),
      stacked: every(".stacked").length,
    };
    if (width > 400) return next();
    var table = every(".stacked").find(function (one) { return one.offsetWidth && one.tBodies[0].rows.length > 1; });
    table.querySelectorAll("thead button")[1].click();
    setTimeout(function () {
      var names = every("thead th", table).map(function (head) { return head.textContent; });
      said[width].named = every("tbody td", table).every(function (cell) { return cell.dataset.heading === names[cell.cellIndex]; });
      next();
    }, 50);
  }, 50);
};
every("details:not(.zoom)").forEach(function (one) { one.open = true; });
addEventListener("load", function () { setTimeout(next, 50); });"""


@pytest.mark.parametrize("name", ["hostile_result", "job_result"])
def test_no_table_is_wider_than_its_frame(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = render(request.getfixturevalue(name), "html")
    opened = Opened(with_script(page, _MEASURE), tmp_path)
    assert opened.console == []
    measured: dict[str, Any] = json.loads(
        unescape(re.findall("<title>(.*?)</title>", opened.dom, re.DOTALL)[0])
    )
    for width, of in measured.items():
        assert of["frames"] > 5 and of["cut"] == [], (width, of)
    assert measured["400"]["stacked"] > measured["1280"]["stacked"], "side by side where there is room"
    assert measured["400"]["named"]
