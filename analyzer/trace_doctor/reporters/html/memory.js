/* Memory block by block: tooltips of the picture; the blocks and stacks of one moment; the segments. All text of a capture
   is set as text. */
(function () {
  "use strict";
  var doc = document, SVG = "http://www.w3.org/2000/svg";
  var holders = Array.prototype.slice.call(doc.querySelectorAll("[data-blocks]"));
  if (!holders.length || typeof DecompressionStream === "undefined") return;
  var classes = JSON.parse(doc.getElementById("memory-classes").textContent); /* [key, label] by number */
  var NO_HISTORY = "unknown (no history)";
  var FEW_ROWS = 12, MOST_ROWS = 500, SEGMENT_ROWS = 30;

  var fill = function (node, attributes, children) {
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    node.append.apply(node, [].concat(children === undefined ? [] : children));
    return node;
  };
  var el = function (tag, attributes, children) { return fill(doc.createElement(tag), attributes, children); };
  var svg = function (tag, attributes, children) { return fill(doc.createElementNS(SVG, tag), attributes, children); };
  var button = window.traceDoctor.button;
  var bytes = window.traceDoctor.bytes;
  var time = function (us) { return window.traceDoctor.time(us, 3); };
  var share = function (part, whole) { return whole ? (100 * part / whole).toFixed(1) + "%" : "–"; };
  var counted = function (count, word) { return count.toLocaleString("en-US") + " " + word + (count === 1 ? "" : "s"); };
  /* a frame as people call it: function (file:line) */
  var called = function (frame) {
    var parts = /^(?:.*[/\\])?([^/\\]+:\d+) (.+)$/.exec(frame);
    return parts ? parts[2] + " (" + parts[1] + ")" : frame;
  };
  var sum = function (rows, key) { return rows.reduce(function (total, row) { return total + row[key]; }, 0); };
  /* the last position whose value is at most the wanted one */
  var before = function (values, wanted) {
    var low = 0, high = values.length - 1;
    while (low < high) { var middle = Math.ceil((low + high) / 2); if (values[middle] <= wanted) low = middle; else high = middle - 1; }
    return low;
  };

  var tip = el("div", { "class": "memory-tip", "aria-hidden": "true" });
  tip.hidden = true;
  doc.body.append(tip);
  var hide = function () { tip.hidden = true; };
  var show = function (event, text) {
    tip.textContent = text;
    tip.hidden = false;
    var box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + "px";
  };
  var when = function (unit, at) { return unit === "us" ? time(at) : "entry " + Math.round(at).toLocaleString("en-US"); };

  /* the picture: what is below the pointer, and the moment that a click picks */
  var picture = function (holder, pick) {
    var title = doc.getElementById(holder.dataset.chart + "-t");
    if (!title || !holder.dataset.frame) return null;
    var drawing = title.closest("svg"), frame = JSON.parse(holder.dataset.frame), series;
    /* read when the pointer first comes: the result may be megabytes, and the page is to stand before */
    var wanted, load = function () {
      wanted = wanted || window.traceDoctor.result().then(function (found) { series = found.memory_timeline[+holder.dataset.series]; });
      return wanted;
    };
    var width = frame.right - frame.left, line;
    drawing.addEventListener("pointerenter", load);
    var moment = function (event) {
      var box = drawing.getBoundingClientRect(), scale = drawing.viewBox.baseVal.width / box.width;
      var part = Math.min(1, Math.max(0, ((event.clientX - box.left) * scale - frame.left) / width));
      var first = series.at[0], last = series.at[series.at.length - 1];
      return { at: first + part * (last - first), value: (frame.bottom - (event.clientY - box.top) * scale) / (frame.bottom - frame.top) * frame.most };
    };
    drawing.addEventListener("pointermove", function (event) {
      if (!series) return;
      var here = moment(event), i = before(series.at, here.at), below = 0, text = "";
      classes.forEach(function (pair) {
        var held = (series.live_by_category[pair[0]] || [])[i] || 0;
        if (!text && here.value >= below && here.value < below + held) text = pair[1] + ": " + bytes(held);
        below += held;
      });
      if (!text && here.value >= below && here.value < series.reserved[i]) text = "reserved, not allocated: " + bytes(series.reserved[i] - below);
      if (text) show(event, text + "\nallocated: " + bytes(below) + "\nat " + when(series.unit, series.at[i])); else hide();
    });
    drawing.addEventListener("pointerleave", hide);
    if (pick) {
      drawing.classList.add("pickable");
      drawing.addEventListener("click", function (event) { load().then(function () { pick(moment(event).at); }); });
    }
    return function (at) {
      load().then(function () {
        if (!line) { line = svg("path", { "class": "moment" }); drawing.append(line); }
        var span = series.at[series.at.length - 1] - series.at[0] || 1e-9;
        line.setAttribute("d", "M" + (frame.left + (at - series.at[0]) / span * width) + " " + frame.top + "V" + frame.bottom);
      });
    };
  };

  /* stacks: a node of the tree as frames, outermost first */
  var reader = function (memory) {
    var library = new Set(memory.library), known = new Map();
    var whole = function (node) {
      if (!known.has(node)) {
        var frames = [];
        for (var n = node; n >= 0; n = memory.parent[n]) frames.push(memory.frame[n]);
        known.set(node, frames.reverse());
      }
      return known.get(node);
    };
    var stack = function (node, all) {
      var frames = whole(node), own = all ? frames : frames.filter(function (f) { return !library.has(f); });
      return (own.length ? own : frames).map(function (f) { return memory.frames[f]; });
    };
    return {
      stack: function (node, all) { var found = stack(node, all); return found.length ? found : ["no frames recorded"]; },
      /* the innermost line that is not PyTorch's, with the operator it called */
      place: function (node) {
        var frames = stack(node, false), operator = frames.length > 1 && /^aten::/.test(frames[frames.length - 1]) ? frames.pop() : "";
        return frames.length ? called(frames[frames.length - 1]) + (operator ? " · " + operator : "") : "no frames recorded";
      }
    };
  };

  /* what is allocated at a point */
  var live = function (device, point) {
    var b = device.blocks, rows = [];
    b.size.forEach(function (size, i) {
      if (b.first[i] <= point && point < b.last[i]) rows.push({ size: size, count: 1, category: b.category[i], node: b.node[i], since: b.since[i], step: b.step[i] });
    });
    (device.added || []).forEach(function (group) {
      var row = { size: 0, count: 0, category: group.category, node: group.node, since: null, step: null };
      group.changes.forEach(function (change) { if (change[0] <= point) { row.size += change[1]; row.count += change[2]; } });
      if (row.count) rows.push(row);
    });
    return rows;
  };

  /* the allocating stacks as a tree, the largest first: values are bytes */
  var tree = function (rows, stacks, all) {
    var root = { name: "all stacks", value: 0, count: 0, under: new Map() };
    rows.forEach(function (row) {
      var node = root;
      root.value += row.size; root.count += row.count;
      stacks.stack(row.node, all).forEach(function (name) {
        if (!node.under.has(name)) node.under.set(name, { name: name, value: 0, count: 0, under: new Map() });
        node = node.under.get(name);
        node.value += row.size; node.count += row.count;
      });
    });
    var order = function (node) {
      node.children = Array.from(node.under.values()).sort(function (a, b) { return b.value - a.value; });
      node.children.forEach(order);
    };
    order(root);
    return root;
  };
  var starts = function (path, with_) { return with_.every(function (name, i) { return path[i] === name; }); };

  var cell = function (value, numeric) { return el("td", numeric ? { "class": "num" } : {}, value); };
  var lines = function (root) {
    var rows = [];
    var walk = function (node, level) {
      if (rows.length >= 200 || node.value < root.value / 200) return;
      var name = el("th", { scope: "row" }, el("bdi", { title: node.name }, called(node.name)));
      name.style.paddingLeft = Math.min(level, 30) * 10 + "px";
      rows.push(el("tr", {}, [name, cell(String(level), true), cell(bytes(node.value), true), cell(share(node.value, root.value), true)]));
      node.children.forEach(function (child) { walk(child, level + 1); });
    };
    walk(root, 0);
    var heads = ["Frame", "Level", "Allocated", "Share"].map(function (word, n) { return el("th", n ? { scope: "col", "class": "num" } : { scope: "col" }, word); });
    return el("table", {}, [el("caption", {}, "Stacks with at least 0.5% of the bytes, each frame below its caller"), el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)]);
  };

  /* one moment: its classes, flame graph and blocks, all of the same rows */
  var moment = function (panel, memory, device, marked) {
    var stacks = reader(memory), end = device.unit === "end", failures = device.failures || [];
    var point = failures.length ? failures[failures.length - 1] : device.peak;
    var focus = [], allocated = [], all = false, order = { key: "size", down: true }, every = false;
    var more = button("", function () { every = !every; draw(); });
    var slider = el("input", { type: "range", min: 0, max: device.at.length - 1, value: point, "aria-label": "Moment" });
    var head = el("p", { role: "status", "class": "peak-line" }), parts = el("ul", { "class": "keys" }), graph = el("div", { "class": "flame-box" });
    var text = el("details", { "class": "more" }, el("summary", {}, "The flame graph as a table"));
    var framed = function (table) { var frame = el("div", { "class": "scroll" }, table); window.traceDoctor.framed(table); return frame; };
    var table = el("table", {}), scroller = framed(table);
    var libraries = el("input", { type: "checkbox" });
    var jump = function (word, to) { return button(word, function () { slider.value = to; pick(); }); };

    var columns = [["size", "Requested bytes", true], ["category", "Class", false], ["step", "Allocated", false], ["since", "Age", true], ["node", "Allocated by", false]];
    if (end) columns = [columns[0], columns[1], columns[4]];
    var words = {
      size: function (row) { return bytes(row.size) + (row.count > 1 ? " in " + counted(row.count, "block") : ""); },
      category: function (row) { return end ? NO_HISTORY : classes[row.category][1]; },
      step: function (row) { return row.since === null ? "–" : row.since < 0 ? "before the record" : row.step >= 0 ? "in step " + row.step : "at " + when(device.unit, row.since); },
      since: function (row) { return row.since === null || row.since < 0 ? "–" : device.unit === "us" ? time(device.at[point] - row.since) : counted(Math.round(device.at[point] - row.since), "entry").replace(/entrys$/, "entries"); },
      node: function (row) { return stacks.place(row.node); }
    };
    var rank = {
      size: function (row) { return row.size; },
      category: words.category,
      step: function (row) { return row.since === null ? -2 : row.since; },
      since: function (row) { return row.since === null ? -2 : row.since < 0 ? Infinity : device.at[point] - row.since; },
      node: words.node
    };
    var list = function () {
      var value = rank[order.key], rows = allocated.filter(function (row) { return starts(stacks.stack(row.node, all), focus); });
      rows = rows.map(function (row) { return [value(row), row]; }).sort(function (a, b) { return (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) * (order.down ? -1 : 1); })
        .map(function (pair) { return pair[1]; });
      var shown = rows.slice(0, every ? MOST_ROWS : FEW_ROWS), rest = rows.slice(shown.length);
      more.hidden = rows.length <= FEW_ROWS;
      more.textContent = every ? "Show fewer" : "Show more blocks";
      var line = function (row) {
        return el("tr", {}, columns.map(function (column) {
          var content = words[column[0]](row);
          if (column[0] !== "node") return cell(content, column[2]);
          return cell(el("details", {}, [el("summary", {}, el("bdi", {}, content)), el("pre", {}, stacks.stack(row.node, true).reverse().join("\n"))]));
        }));
      };
      var foot = function (word, rows) {
        return el("tr", {}, [cell(bytes(sum(rows, "size")), true), el("td", { colspan: columns.length - 1 }, word + ", " + counted(sum(rows, "count"), "block"))]);
      };
      table.replaceChildren(
        el("caption", {}, "Allocated blocks" + (focus.length ? " below " + called(focus[focus.length - 1]) : "")),
        el("thead", {}, el("tr", {}, columns.map(function (column) {
          var sort = button(column[1], function () {
            order = { key: column[0], down: order.key === column[0] ? !order.down : column[2] };
            draw();
            Array.prototype.find.call(table.querySelectorAll("thead button"), function (b) { return b.textContent === column[1]; }).focus();
          });
          var th = el("th", { scope: "col" }, sort);
          if (column[2]) th.className = "num";
          if (order.key === column[0]) th.setAttribute("aria-sort", order.down ? "descending" : "ascending");
          return th;
        }))),
        el("tbody", {}, shown.map(line)),
        el("tfoot", {}, (rest.length ? [foot("not shown", rest)] : []).concat(foot("all", rows)))
      );
    };
    var draw = function () {
      var rows = live(device, point), root = tree(rows, stacks, all), node = root;
      focus = focus.filter(function (name, i) { node = node && node.under.get(name); return node; });
      var place = end ? "When the snapshot was written" : "At " + when(device.unit, device.at[point]) + (failures.indexOf(point) >= 0 ? " (out of memory)" : point === device.peak ? " (the peak)" : "");
      head.replaceChildren(place + ": ", el("strong", {}, bytes(root.value)), " allocated in " + counted(root.count, "block"));
      slider.setAttribute("aria-valuetext", head.textContent);
      var held = {};
      rows.forEach(function (row) { held[row.category] = (held[row.category] || 0) + row.size; });
      parts.hidden = end;
      parts.replaceChildren.apply(parts, Object.keys(held).map(function (n) {
        return el("li", {}, [svg("svg", { "class": "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("rect", { width: 14, height: 14, rx: 3, "class": "m-" + classes[n][0] })), classes[n][1] + " " + bytes(held[n])]);
      }));
      window.traceDoctor.flame(graph, root, { label: "Flame graph of the allocating stacks", format: function (node) { return bytes(node.value) + " in " + counted(node.count, "block"); }, short: called, path: focus, zoomed: zoom });
      var old = text.querySelector(".scroll");
      if (old) old.remove();
      if (text.open) text.append(framed(lines(root)));
      allocated = rows;
      list();
      if (marked && !end) marked(device.at[point]);
    };
    var zoom = function (path) { focus = path; list(); };
    var pick = function () { point = +slider.value; draw(); };
    slider.addEventListener("input", pick);
    libraries.addEventListener("change", function () { all = libraries.checked; focus = []; draw(); });
    text.addEventListener("toggle", function () { if (text.open) draw(); });
    var bar = el("div", { "class": "moment-bar" }, [slider, jump("Peak", device.peak)]);
    failures.forEach(function (to, n) { bar.append(jump("Out of memory" + (failures.length > 1 ? " " + (n + 1) : ""), to)); });
    bar.append(jump("End", device.at.length - 1));
    bar.hidden = end;
    var whole = device.blocks.size.length;
    panel.append(bar, head, parts, el("h3", {}, "Allocating stacks"),
      el("div", { "class": "moment-bar" }, [el("label", { "class": "check" }, [libraries, "Frames of PyTorch"]), el("span", { "class": "muted" }, "Width is bytes.")]),
      graph, text, el("h3", {}, "Blocks"), scroller, more);
    if (whole < device.recorded) panel.append(el("p", { "class": "limit" }, "The page holds the " + counted(whole, "largest block") + " of " + device.recorded.toLocaleString("en-US") + "; smaller ones are added up by class and stack."));
    draw();
    return function (at) { slider.value = before(device.at, at); pick(); };
  };

  /* the segments when the snapshot was written: each a bar, its blocks inside */
  var STATES = ["free", "allocated", "freed, still used by another stream"];
  var segments = function (panel, memory, device) {
    var stacks = reader(memory), plain = device.unit === "end", box = el("div"), said = el("div", { "class": "block-text", role: "status" }, "Point at or tap a block, or use the arrow keys.");
    var used = function (block) { return (block[3] === 2 ? "seg-pending " : "") + "seg-used " + (plain ? "seg-plain" : "m-" + classes[block[4]][0]); };
    var told = function (segment, block) {
      var text = "0x" + (segment.address + block[0]).toString(16) + " · " + STATES[block[3]] + " · " + bytes(block[1]);
      if (block[3]) text += " (" + bytes(block[2]) + " requested) · " + (plain ? NO_HISTORY : classes[block[4]][1]) + "\n" + stacks.stack(block[5], false).reverse().slice(0, 12).map(called).join("\n");
      return text + "\nin a segment of " + bytes(segment.size);
    };
    var draw = function () {
      var width = Math.max(280, box.clientWidth), largest = device.segments.length ? device.segments[0].size : 1;
      var scale = Math.min((width - 2) / largest, SEGMENT_ROWS * width / (sum(device.segments, "size") || 1));
      var x = 0, y = 0, shapes = [], places = [], here = -1;
      device.segments.forEach(function (segment) {
        var wide = Math.max(2, segment.size * scale);
        if (x && x + wide > width) { x = 0; y += 24; }
        segment.blocks.forEach(function (block) {
          var shape = svg("rect", { x: x + block[0] * scale, y: y + 1, width: Math.max(.4, Math.min(block[1] * scale, wide)), height: 18, "class": block[3] ? used(block) : "seg-free", "data-n": places.length });
          places.push({ shape: shape, segment: segment, block: block });
          shapes.push(shape);
        });
        shapes.push(svg("rect", { x: x, y: y + 1, width: wide, height: 18, "class": "seg", "pointer-events": "none" }));
        x += wide + 3;
      });
      var drawing = svg("svg", { "class": "segments", role: "group", tabindex: "0", viewBox: "0 0 " + width + " " + (y + 20),
        "aria-label": counted(device.segments.length, "segment") + " with " + counted(places.length, "block") + "; arrow keys move from block to block" }, shapes);
      var name = function (n) {
        if (!places[n]) return;
        if (places[here]) places[here].shape.classList.remove("seg-here");
        here = n;
        places[n].shape.classList.add("seg-here");
        said.textContent = told(places[n].segment, places[n].block);
      };
      drawing.addEventListener("pointermove", function (event) {
        var place = places[event.target.dataset.n];
        if (place) show(event, told(place.segment, place.block)); else hide();
      });
      drawing.addEventListener("pointerleave", hide);
      drawing.addEventListener("click", function (event) { name(+event.target.dataset.n); });
      drawing.addEventListener("keydown", function (event) {
        var way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!way) return;
        event.preventDefault();
        name(Math.max(0, Math.min(places.length - 1, here + way)));
      });
      box.replaceChildren(drawing);
    };
    var kinds = {};
    device.segments.forEach(function (s) { s.blocks.forEach(function (b) { if (b[3]) kinds[plain ? NO_HISTORY : classes[b[4]][1]] = used([0, 0, 0, 1, b[4]]); else kinds.free = "seg-free"; if (b[3] === 2) kinds[STATES[2]] = used(b); }); });
    panel.append(el("p", { "class": "limit" }, "Each bar is a segment, the largest first; its width is its size. Showing " + device.segments.length.toLocaleString("en-US") + " of " + counted(device.space.segments, "segment") + "."),
      el("ul", { "class": "keys" }, Object.keys(kinds).sort().map(function (word) {
        return el("li", {}, [svg("svg", { "class": "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("rect", { x: 1, y: 1, width: 12, height: 12, rx: 2, "class": kinds[word] })), word]);
      })), box, said);
    draw();
    var seen = box.clientWidth;
    new ResizeObserver(function () { if (box.clientWidth && Math.abs(box.clientWidth - seen) > 2) { seen = box.clientWidth; draw(); } }).observe(box);
  };

  holders.forEach(function (holder) {
    var key = holder.dataset.blocks.split(" ").map(Number), set;
    var folded = function (summary, make) {
      var body = el("div", { "class": "blocks-panel" }), panel = el("details", { "class": "more zoom" }, [el("summary", {}, summary), body]), made;
      var open = function () {
        made = made || window.traceDoctor.detail().then(function (details) {
          var memory = details.find(function (d) { return (d.input || 0) === key[0]; }).memory;
          return make(body, memory, memory.devices.find(function (d) { return d.device === key[1]; }));
        });
        return made;
      };
      panel.addEventListener("toggle", function () { if (panel.open) open(); });
      holder.append(panel);
      return { panel: panel, open: open };
    };
    if (holder.dataset.whole === undefined) { picture(holder, null); return; }
    var blocks;
    var marked = picture(holder, function (at) {
      blocks.panel.open = true;
      blocks.open().then(function (go) { go(at); });
    });
    blocks = folded(holder.dataset.frame ? "Blocks and stacks at a moment (click the picture to pick one)" : "Blocks and stacks", function (body, memory, device) { return moment(body, memory, device, marked); });
    folded("Segments when the snapshot was written", segments);
  });
})();
