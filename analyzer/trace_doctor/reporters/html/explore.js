/* The tables of kernels and operators: search, rank and sorting over all of them; the page itself shows the first. */
(function () {
  "use strict";
  var page = window.traceDoctor, make = page.make, button = page.button, all = page.all;
  var UNITS = { "(s)": 1e6, "(ms)": 1e3, "(µs)": 1 };
  var MOST = 500;
  /* of every capture; from the result alone where the page was made without more */
  var load = function (key) {
    return page.detail().then(function (details) {
      if (!details) return page.result().then(function (found) { return found[key]; });
      var rows = [];
      details.forEach(function (one) {
        one.work[key].forEach(function (row) { rows.push(Object.assign({ input: one.input, rank: one.rank, device: -1 }, row)); });
      });
      return rows;
    });
  };
  var sum = function (rows, field) { return rows.reduce(function (total, row) { return total + (row[field] || 0); }, 0); };
  var place = function (row) { return row.input + " " + row.device; };

  all("[data-explore]").forEach(function (holder) {
    var key = holder.dataset.explore, fields = holder.dataset.fields.split(" "), time = holder.dataset.sort;
    var body = holder.querySelector("tbody"), caption = holder.querySelector("caption"), heads = all("thead th", holder);
    var first = Array.prototype.slice.call(body.rows), open = false, sorted = null, devices = 1;
    var factors = heads.map(function (head) { var unit = head.querySelector(".unit"); return unit ? UNITS[unit.textContent] : 1; });
    /* a column has as many decimals as in the rows that the page came with */
    var decimals = heads.map(function (_, column) {
      return Math.max.apply(null, first.map(function (row) { return (/\.(\d+)/.exec(row.cells[column].textContent) || ["", ""])[1].length; }));
    });
    var written = function (value, count) {
      var least = Math.pow(10, -count);
      return value && Math.abs(value) < least / 2 ? "<" + page.fixed(least, count) : page.fixed(value, count);
    };
    var query = make("input", "", { type: "search", placeholder: "Search all " + key, "aria-label": "Search all " + key });
    var rank = make("select", "", { "aria-label": "Capture" }), count = make("span", "", { "class": "muted", role: "status" });

    var longest = function (rows) { return rows.reduce(function (a, b) { return b[time] > a[time] ? b : a; }); };
    var value = function (rows, field) {
      var calls = Math.max(1, sum(rows, "count")), compute = rows[0].kind === "compute";
      if (field === "name" || field === "kind") return rows[0][field];
      if (field === "devices") return rows.length;
      if (field === "mean_us") return sum(rows, time) / calls;
      if (field === "share") return compute || key === "operators" ? 100 * sum(rows, field) / devices : null;
      if (field === "tensor_cores") return !compute ? "–" : rows[0][field] === true ? "yes" : rows[0][field] === false ? "no" : "not known";
      if (field === "dtype") return !compute || rows.some(function (row) { return row.dtype !== rows[0].dtype; }) ? "–" : rows[0].dtype || "not known";
      return sum(rows, field);
    };
    var origin = function (rows) {
      var row = longest(rows), node = make("span", key === "kernels" ? "launched by " : "in ", { "class": "origin" }), any = false;
      [row.operator, row.site].forEach(function (one) {
        if (!one) return;
        node.append(any ? ", " : "", make("bdi", one.name), one.share < 0.995 ? " (" + (100 * one.share).toFixed(0) + "%)" : "");
        any = true;
      });
      return any ? node : "";
    };
    var cell = function (rows, field, column) {
      var node = make(column ? "td" : "th", "", column ? {} : { scope: "row" });
      if (field === "name") { var name = make("span", "", { "class": "kernel" }); name.append(make("bdi", rows[0].name)); node.append(name, origin(rows)); return node; }
      var exact = value(rows, field);
      if (typeof exact === "string") { node.textContent = exact; return node; }
      node.className = "num";
      node.title = exact === null ? "" : String(exact);
      node.textContent = exact === null ? "–" : written(exact / factors[column], decimals[column]) + (field === "share" ? "%" : "");
      return node;
    };
    var ordered = function (groups) {
      var field = sorted ? fields[sorted.column] : time, way = sorted && !sorted.down ? 1 : -1;
      return groups.map(function (rows) { return [value(rows, field), rows]; }).sort(function (a, b) {
        var x = a[0], y = b[0];
        if (typeof x === "string" && typeof y === "string") return way * (x < y ? -1 : x > y ? 1 : 0);
        return way * ((x === null ? -1 : x) - (y === null ? -1 : y));
      }).map(function (one) { return one[1]; });
    };
    var asked = 0;
    var draw = function () {
      var mine = ++asked, narrowed = open || query.value || rank.value;
      caption.hidden = Boolean(narrowed || sorted);
      if (!caption.hidden) { body.replaceChildren.apply(body, first); count.textContent = ""; return; }
      load(key).then(function (found) {
        if (mine !== asked) return; /* another question came meanwhile */
        var words = query.value.toLowerCase().split(/\s+/).filter(Boolean), groups = new Map();
        found = found.filter(function (row) { return !rank.value || String(row.input) === rank.value; });
        devices = Math.max(1, new Set(found.map(place)).size);
        found.forEach(function (row) {
          var text = [row.name, row.operator ? row.operator.name : "", row.site ? row.site.name : ""].join(" ").toLowerCase();
          if (!words.every(function (word) { return text.indexOf(word) >= 0; })) return;
          var at = row.kind + " " + row.name;
          if (groups.has(at)) groups.get(at).push(row); else groups.set(at, [row]);
        });
        var most = narrowed ? MOST : first.length, order = ordered(Array.from(groups.values()));
        count.textContent = order.length > most ? "showing " + most + " of " + order.length : order.length + " found";
        body.replaceChildren.apply(body, order.slice(0, most).map(function (rows) {
          var line = make("tr");
          fields.forEach(function (field, column) { line.append(cell(rows, field, column)); });
          return line;
        }));
      });
    };
    if (first.length > 1) heads.forEach(function (head, column) {
      var text = head.classList.contains("num") ? false : true;
      var sort = button("", function () {
        var down = head.getAttribute("aria-sort") === "descending" ? false : head.getAttribute("aria-sort") === "ascending" ? true : !text;
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sorted = fields[column] === time && down ? null : { column: column, down: down };
        draw();
      });
      sort.append.apply(sort, Array.prototype.slice.call(head.childNodes));
      head.append(sort);
      if (fields[column] === time) head.setAttribute("aria-sort", "descending");
    });
    var every = button("Show all", function () { open = !open; every.textContent = open ? "Show the first" : "Show all"; draw(); });
    query.addEventListener("input", draw);
    rank.addEventListener("change", draw);
    var bar = make("div", "", { "class": "filter", role: "search", "aria-label": "All " + key });
    bar.append(query, every, count);
    holder.prepend(bar);
    var captures = JSON.parse(holder.dataset.captures || "[]");
    if (captures.length < 2) return;
    rank.append(make("option", "all captures", { value: "" }));
    captures.forEach(function (one) { rank.append(make("option", one[1], { value: String(one[0]) })); });
    query.after(rank);
  });
})();
