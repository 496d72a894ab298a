/* The page is complete without this file: it only adds filter, sort, copy, theme and deep links. */
(function () {
  "use strict";
  var doc = document, root = doc.documentElement;
  var all = function (selector, from) { return Array.prototype.slice.call((from || doc).querySelectorAll(selector)); };
  var make = function (tag, text, attributes) {
    var node = doc.createElement(tag);
    if (text) node.textContent = text;
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    return node;
  };
  var button = function (text, act, attributes) {
    var node = make("button", text, Object.assign({ type: "button" }, attributes));
    node.addEventListener("click", act);
    return node;
  };

  /* the embedded result, byte for byte as --output json writes it: as it is, or packed where the page would grow too large */
  var island = doc.getElementById("result");
  var unpack = async function (text) {
    var binary = atob(text.trim()), bytes = new Uint8Array(binary.length);
    for (var i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  var text;
  var json = function () {
    text = text || (island.type === "application/gzip" ? unpack(island.textContent) : Promise.resolve(island.textContent));
    return text;
  };
  var parsed;
  var details;
  var result = function () {
    parsed = parsed || json().then(JSON.parse);
    return parsed;
  };
  var lookup = function (path) {
    return result().then(function (found) { return path.split(".").reduce(function (value, key) { return value[key]; }, found); });
  };
  /* what is shown closer, of each capture; null where the page was made without it */
  var detail = function () {
    var packed = doc.getElementById("detail");
    details = details || (packed ? unpack(packed.textContent).then(JSON.parse) : Promise.resolve(null));
    return details;
  };
  /* figures as the page itself writes them */
  var fixed = function (value, decimals) { return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }); };
  var decimals = function (value, figures) { return Math.abs(value) > 1e-9 ? Math.max(0, figures - 1 - Math.floor(Math.log10(Math.abs(+value.toPrecision(figures))))) : 0; };
  var time = function (us, figures) {
    var shown = Math.abs(+us.toPrecision(figures)), unit = shown >= 1e6 ? [1e6, " s"] : shown >= 1e3 || !shown ? [1e3, " ms"] : [1, " µs"];
    return fixed(us / unit[0], decimals(us / unit[0], figures)) + unit[1];
  };
  var bytes = function (count) {
    var units = ["B", "KiB", "MiB", "GiB"], n = 0;
    while (Math.abs(count) >= 1024 && n < 3) { count /= 1024; n += 1; }
    return fixed(count, n ? decimals(count, 3) : 0) + " " + units[n];
  };
  window.traceDoctor = { unpack: unpack, result: result, detail: detail, all: all, make: make, button: button, fixed: fixed, time: time, bytes: bytes, framed: function (table) { framed(table); } };
  var download = function (name, type, text) {
    var url = URL.createObjectURL(new Blob([text], { type: type }));
    var link = make("a", "", { href: url, download: name });
    link.click();
    setTimeout(function () { URL.revokeObjectURL(url); }, 1000);
  };

  /* theme: as the system, light, dark */
  var tools = doc.getElementById("tools");
  var themes = ["auto", "light", "dark"];
  var theme = button("", function () {
    var next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("trace-doctor-theme");
      else localStorage.setItem("trace-doctor-theme", next);
    } catch (error) { /* a page may not remember: then it does not */ }
    named();
  });
  var named = function () { theme.textContent = "Theme: " + (root.dataset.theme || "auto"); };
  named();
  tools.append(theme, button("Save JSON", function () {
    json().then(function (data) { download("trace-doctor.json", "application/json", data); });
  }));

  /* copy */
  var status = make("div", "", { role: "status", "class": "hidden" });
  doc.body.append(status);
  var copied = function (node, text) {
    var label = node.textContent;
    var say = function (word) {
      node.textContent = word;
      status.textContent = word;
      setTimeout(function () { node.textContent = label; }, 1400);
    };
    var old = function () {
      var area = make("textarea", "", { "class": "hidden", "aria-hidden": "true" });
      area.value = text;
      doc.body.append(area);
      area.select();
      var done = doc.execCommand("copy");
      area.remove();
      say(done ? "Copied" : "Select and copy");
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(function () { say("Copied"); }, old); else old();
  };
  all("[data-label]").forEach(function (box) {
    box.append(button(box.dataset.label, function (event) {
      var node = event.currentTarget, shown = box.querySelector("pre").textContent;
      if (!box.dataset.copy) return copied(node, shown);
      lookup(box.dataset.copy).then(function (exact) { copied(node, exact); }, function () { copied(node, shown); });
    }));
  });

  /* of a finding: its address, and itself for an issue or a chat */
  var fenced = function (text, language) {
    var fence = "```";
    while (text.indexOf(fence) >= 0) fence += "`";
    return fence + language + "\n" + text.replace(/\n$/, "") + "\n" + fence;
  };
  var markdown = function (card, finding) {
    var plain = function (text) { return String(text).replace(/[\\`*_{}\[\]<>#|~@]/g, "\\$&"); };
    var words = function (selector) { var node = card.querySelector(selector); return node ? plain(node.textContent.trim()) : ""; };
    var lines = ["**" + plain(finding.code + " " + (finding.title || finding.name)) + "**", ""];
    lines.push([plain(finding.severity + ", " + finding.confidence + " confidence"), words("summary .gain-words"), words("summary .where")].filter(Boolean).join(" · "));
    lines.push("", plain(finding.message));
    finding.fixes.slice(0, 1).forEach(function (fix) {
      lines.push("", "Fix: " + plain(fix.title));
      if (fix.diff) lines.push("", fenced(fix.diff, "diff"));
      else if (fix.text) lines.push("", fenced(fix.text, ""));
      if (!fix.diff && fix.sketch) lines.push("", "Sketch, not applied:", "", fenced(fix.sketch, "diff"));
    });
    return lines.join("\n") + "\n";
  };
  all(".finding").forEach(function (card, n) { /* in the order of the result */
    var bar = make("p", "", { "class": "tools" });
    bar.append(
      button("Copy link", function (event) { copied(event.currentTarget, location.href.split("#")[0] + "#" + card.id); }),
      button("Copy as Markdown", function (event) {
        var node = event.currentTarget;
        result().then(function (data) { copied(node, markdown(card, data.findings[n])); });
      })
    );
    card.querySelector(".body").prepend(bar);
  });

  /* boxes are stops of the tab key only where they scroll */
  var boxes = all("[tabindex='0']");
  var stops = function () {
    boxes.forEach(function (node) {
      if (node.scrollWidth > node.clientWidth) node.tabIndex = 0; else node.removeAttribute("tabindex");
    });
  };
  /* a table that is wider than its frame is shown row by row: below the name of each row its other values, each with its heading */
  var fitted = new Map(), asked = false; /* table -> width of its frame */
  var room = function (frame) {
    var style = getComputedStyle(frame);
    return frame.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  };
  var fit = function () {
    asked = false;
    var tables = Array.from(fitted.keys()).filter(function (table) { return table.parentNode.clientWidth !== fitted.get(table); });
    tables.forEach(function (table) { table.classList.remove("stacked"); });
    tables.filter(function (table) { return table.offsetWidth > room(table.parentNode); }).forEach(function (table) {
      var names = all("thead th", table).map(function (head) { return head.textContent; });
      all("tbody td, tbody th", table).forEach(function (cell) {
        var said = cell.tagName === "TD" ? cell.hasChildNodes() : /^[\d.,]+$/.test(cell.textContent); /* a rank, a step */
        if (said) cell.dataset.heading = names[cell.cellIndex];
      });
      table.classList.add("stacked");
    });
    tables.forEach(function (table) { fitted.set(table, table.parentNode.clientWidth); });
    stops();
  };
  var later = function () {
    if (!asked) requestAnimationFrame(fit);
    asked = true;
  };
  var refit = function (table) { fitted.set(table, 0); later(); };
  var changed = new MutationObserver(function (records) { records.forEach(function (record) { refit(record.target.closest("table")); }); });
  var framed = function (table) { refit(table); changed.observe(table, { childList: true, subtree: true }); };
  all(".scroll > table").forEach(framed);
  window.addEventListener("resize", later);
  ["toggle", "change", "input", "click"].forEach(function (name) { doc.addEventListener(name, later, true); });
  fit();
  /* a picture that is wider than the screen begins where the memory ran out */
  boxes.forEach(function (node) {
    var mark = node.querySelector(".oom-text");
    if (mark) node.scrollLeft = mark.getBoundingClientRect().right - node.getBoundingClientRect().right + 12;
  });

  /* sort */
  var value = function (row, column) {
    var cell = row.cells[column], inner = cell.firstElementChild;
    var exact = parseFloat(cell.title || (inner && inner.title)); /* the title holds the exact number */
    return isNaN(exact) ? cell.textContent.trim() : exact;
  };
  var compare = function (a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? 1 : -1;
  };
  all("table[data-sortable]").forEach(function (table) {
    if (table.closest("[data-explore]")) return; /* sorts what it does not show as well: explore.js */
    all("thead th", table).forEach(function (head, column) {
      var sort = button("", function () {
        var down = head.getAttribute("aria-sort") !== "descending" && (head.classList.contains("num") || head.getAttribute("aria-sort") === "ascending");
        all("thead th", table).forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var body = table.tBodies[0];
        var rows = Array.prototype.slice.call(body.rows).sort(function (a, b) {
          return compare(value(a, column), value(b, column)) * (down ? -1 : 1);
        });
        body.append.apply(body, rows);
      });
      sort.append.apply(sort, Array.prototype.slice.call(head.childNodes));
      head.append(sort);
    });
  });

  /* one of several views: all switches that have it show the same rank */
  var radios = all(".switch input");
  var show = function (key) { radios.forEach(function (radio) { if (radio.value === key) radio.checked = true; }); };
  radios.forEach(function (radio) {
    radio.addEventListener("change", function () {
      state.rank = radio.value === "all" ? "" : radio.value;
      show(radio.value);
      apply(true);
    });
  });

  /* filter; its state is in the address: #q=loader&hide=info&fixable=1&rank=3 */
  var cards = all(".finding");
  var state = { q: "", hide: [], fixable: false, rank: "" };
  var box, toggles = {}, fixable, shown;
  var apply = function (write) {
    var words = state.q.toLowerCase().split(/\s+/).filter(Boolean), count = 0;
    cards.forEach(function (card) {
      var text = card.textContent.toLowerCase();
      var fits = words.every(function (word) { return text.indexOf(word) >= 0; }) &&
        state.hide.indexOf(card.dataset.severity) < 0 && (!state.fixable || card.dataset.fixable !== undefined);
      card.parentNode.hidden = !fits;
      count += fits ? 1 : 0;
    });
    if (box) said(count);
    if (!write) return;
    var parts = [];
    if (state.q) parts.push("q=" + encodeURIComponent(state.q));
    if (state.hide.length) parts.push("hide=" + state.hide.join(","));
    if (state.fixable) parts.push("fixable=1");
    if (state.rank) parts.push("rank=" + encodeURIComponent(state.rank));
    try { history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search); } catch (error) { /* some viewers refuse */ }
  };
  var said = function (count) {
    if (box.value !== state.q) box.value = state.q;
    Object.keys(toggles).forEach(function (name) { toggles[name].setAttribute("aria-pressed", String(state.hide.indexOf(name) < 0)); });
    fixable.setAttribute("aria-pressed", String(state.fixable));
    shown.textContent = count === cards.length ? "" : "showing " + count + " of " + cards.length;
  };
  if (cards.length) {
    box = make("input", "", { type: "search", placeholder: "Filter by code, text, file or kernel", "aria-label": "Filter findings" });
    box.addEventListener("input", function () { state.q = box.value; apply(true); });
    shown = make("span", "", { "class": "muted", role: "status" });
    var bar = make("div", "", { "class": "filter", role: "search", "aria-label": "Findings" });
    bar.append(box);
    ["critical", "warning", "info"].forEach(function (name) {
      if (!cards.some(function (card) { return card.dataset.severity === name; })) return;
      toggles[name] = button(name, function () {
        var at = state.hide.indexOf(name);
        if (at < 0) state.hide.push(name); else state.hide.splice(at, 1);
        apply(true);
      });
      bar.append(toggles[name]);
    });
    fixable = button("has a patch", function () { state.fixable = !state.fixable; apply(true); });
    if (cards.some(function (card) { return card.dataset.fixable !== undefined; })) bar.append(fixable);
    var every = button("Expand all", function () {
      var open = cards.some(function (card) { return !card.open; });
      cards.forEach(function (card) { card.open = open; });
      every.textContent = open ? "Collapse all" : "Expand all";
    });
    bar.append(every, shown);
    doc.querySelector("#findings .cards").before(bar);
    apply(false);
  }
  doc.addEventListener("keydown", function (event) {
    var typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "radio";
    if (event.key === "/" && !typing && box && !event.ctrlKey && !event.metaKey) { event.preventDefault(); box.focus(); }
    if (event.key === "Escape" && typing) { state = { q: "", hide: [], fixable: false, rank: state.rank }; apply(true); }
  });

  /* deep links: #TD101, #TD101-2, and the filter's own state */
  var follow = function () {
    var hash;
    try { hash = decodeURIComponent(location.hash.slice(1)); } catch (error) { return; } /* "#100%" names nothing */
    if (!hash) return;
    if (hash.indexOf("=") > 0) {
      var found = new URLSearchParams(location.hash.slice(1));
      if (found.has("rank")) { state.rank = found.get("rank"); show(state.rank); }
      if (found.has("panel")) return; /* the panel's own */
      state.q = found.get("q") || "";
      state.hide = (found.get("hide") || "").split(",").filter(Boolean);
      state.fixable = found.get("fixable") === "1";
      apply(false);
      var filtered = state.q || state.hide.length || state.fixable;
      var there = doc.getElementById(filtered ? "findings" : "timeline") || doc.getElementById("memory");
      if (there) there.scrollIntoView();
      return;
    }
    var node = doc.getElementById(hash);
    if (!node) return;
    var card = node.classList.contains("anchor") ? node.nextElementSibling : node.closest("details");
    if (card && card.classList.contains("finding")) {
      card.parentNode.hidden = false;
      card.open = true;
      card.querySelector("summary").focus({ preventScroll: true });
      card.scrollIntoView();
      return;
    }
    for (var outer = card; outer; outer = outer.parentElement.closest("details")) outer.open = true;
    if (node.tabIndex >= -1 && node.hasAttribute("tabindex")) node.focus({ preventScroll: true });
    node.scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  window.addEventListener("load", follow); /* not before: the browser's own jump would take the focus back */
})();
