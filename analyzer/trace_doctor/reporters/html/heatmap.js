/* The heatmap of ranks: the pointer or the arrow keys choose a row, a click or Enter goes to the part of the page of its rank. */
(function () {
  "use strict";
  var page = window.traceDoctor, make = page.make, all = page.all;
  all("[data-heat]").forEach(function (box) {
    var rows = all("tbody tr", box); /* before anybody sorts them */
    var steps = all("thead th", box).slice(2).map(function (head) { return head.textContent.replace(/ \(.*/, ""); });
    var cells = box.querySelector(".heat-cells"), picture = cells.querySelector("svg"), cursor = cells.querySelector(".heat-cursor");
    var line = make("p", "", { "class": "picked" }), at = 0;
    var said = function (cell) { return cell.title ? page.time(parseFloat(cell.title), 3) : "not captured"; };
    var link = function () { return rows[at].cells[0].querySelector("a"); };
    var choose = function (row) {
      at = Math.max(0, Math.min(rows.length - 1, row));
      var name = rows[at].cells[0].textContent, of = Array.prototype.slice.call(rows[at].cells, 2);
      cursor.setAttribute("y", at * cursor.getAttribute("height"));
      cells.setAttribute("aria-valuenow", at);
      cells.setAttribute("aria-valuetext", name + ": at most " + said(rows[at].cells[1]) + (link() ? ". Enter: go to it" : ""));
      line.replaceChildren(link() ? link().cloneNode(true) : name, " · " + of.map(function (cell, n) { return steps[n] + ": " + said(cell); }).join(", "));
    };
    var under = function (event) {
      var place = picture.getBoundingClientRect();
      choose(Math.floor((event.clientY - place.top) / place.height * rows.length));
    };
    var go = function () { if (link()) link().click(); };
    var moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e6, End: 1e6 };
    cells.addEventListener("pointermove", under);
    cells.addEventListener("click", function (event) { under(event); go(); });
    cells.addEventListener("keydown", function (event) {
      if (event.key === "Enter") go();
      else if (moves[event.key]) choose(at + moves[event.key]);
      else return;
      event.preventDefault();
    });
    picture.removeAttribute("role");
    picture.setAttribute("aria-hidden", "true");
    Object.entries({
      role: "slider", tabindex: "0", "aria-label": box.dataset.heat, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": rows.length - 1
    }).forEach(function (one) { cells.setAttribute(one[0], one[1]); });
    cells.parentNode.after(line);
    choose(parseInt(box.dataset.first, 10));
  });
})();
