/* The timeline: what ran, event by event, on a canvas. It is made when its panel opens, from what the page embeds. */
(function () {
  "use strict";
  var doc = document, root = doc.documentElement, box = doc.querySelector("[data-timeline]");
  if (!box || typeof DecompressionStream === "undefined") return; /* the pictures remain */
  var given = JSON.parse(box.dataset.timeline), words = JSON.parse(doc.getElementById("zoom-words").textContent);
  var ROW = 17, AXIS = 24, LEAST = 0.01, MANY = 8; /* pixels, pixels, µs in view at least, ranks whose threads are shown in full at most */
  var COLOURS = { operator: "k-dispatch", call: "k-launch", annotation: "k-annotation", python: "k-python", profiler: "k-profiler",
    critical: "critical", warning: "warning", info: "info" };
  var make = window.traceDoctor.make;
  var button = function (text, act, label) { return window.traceDoctor.button(text, act, label ? { "aria-label": label, title: label } : {}); };
  var time = function (us) { return window.traceDoctor.time(us, 4); };

  /* ---- what there is: captures, each with tracks of events; times in µs from the start of its window */
  var label = function (kind) { return words.events[kind] || words.kinds[kind] || kind; };
  var rowed = function (track, depths) {
    var rows = [];
    for (var i = 0; i < track.start.length; i++) (rows[depths.length ? depths[i] : 0] = rows[depths.length ? depths[i] : 0] || []).push(i);
    track.rows = Array.from(rows, function (own) {
      own = own || [];
      return { track: track, own: own, longest: own.reduce(function (most, i) { return Math.max(most, track.dur[i]); }, 0) };
    });
    return track;
  };
  var ofSegments = function (head, segments) {
    return rowed({ head: head, start: segments.map(function (s) { return s[0]; }), dur: segments.map(function (s) { return s[1]; }),
      kind: function (i) { return segments[i][2]; }, name: function (i) { return label(segments[i][2]); } }, []);
  };
  var ofFindings = function (capture, found) {
    var spans = [];
    found.findings.forEach(function (finding) {
      if ((finding.input || 0) !== capture.input) return;
      (finding.spans || []).forEach(function (span) { spans.push({ finding: finding, start: span.ts_us - capture.clock, dur: span.dur_us, device: span.device, label: span.label }); });
    });
    spans.sort(function (a, b) { return a.start - b.start || b.dur - a.dur; });
    var ends = [], depths = spans.map(function (span) {
      var depth = 0;
      while (depth < 5 && ends[depth] > span.start) depth++;
      ends[depth] = Math.max(ends[depth] || -Infinity, span.start + span.dur);
      return depth;
    });
    capture.spans = spans;
    return rowed({ head: "findings", start: spans.map(function (s) { return s.start; }), dur: spans.map(function (s) { return s.dur; }),
      kind: function (i) { return spans[i].finding.severity; },
      name: function (i) { return spans[i].finding.code + " " + (spans[i].finding.title || spans[i].finding.name); } }, depths);
  };
  var ofEvents = function (events, part, first) {
    var at = 0, start = part.start.map(function (step) { at += step; return at / 1e3; });
    var device = part.device === undefined ? -1 : part.device;
    return rowed({ head: (device < 0 ? "" : "GPU " + device + " ") + part.label, start: start, dur: part.dur.map(function (ns) { return ns / 1e3; }), first: first,
      events: events, part: part, kind: function (i) { return events.kinds[part.name[i]]; }, name: function (i) { return events.names[part.name[i]]; } }, part.depth || []);
  };
  var capturesOf = function (found, details) {
    return given.captures.map(function (pair) {
      var input = pair[0], detail = (details || []).find(function (one) { return (one.input || 0) === input; });
      var events = detail && detail.events, capture = { input: input, name: pair[1], offset: 0, spans: [], tracks: [], length: 0 };
      if (events) {
        capture.clock = events.start_us;
        capture.epoch = pair[2];
        capture.length = events.dur_us;
        capture.cut = events.shown < events.of;
        if (found.findings.some(function (f) { return (f.input || 0) === input && (f.spans || []).length; })) capture.tracks.push(ofFindings(capture, found));
      }
      given.lanes.forEach(function (named) {
        var lane = found.timeline[named[0]];
        if ((lane.input || 0) !== input) return;
        capture.length = Math.max(capture.length, lane.dur_us);
        capture.tracks.push(ofSegments(named[1], lane.segments));
        if (!events) (lane.streams || []).forEach(function (strip) { capture.tracks.push(ofSegments(named[1] + " stream " + strip.stream, strip.segments)); });
      });
      var first = 0;
      if (events) events.tracks.forEach(function (part) { capture.tracks.push(ofEvents(events, part, first)); first += part.start.length; });
      capture.steps = (found.steps || []).filter(function (s) { return (s.input || 0) === input; });
      capture.tracks.forEach(function (track) { track.capture = capture; });
      return capture;
    });
  };

  /* ---- the panel */
  var panel = make("details", "", { "class": "more zoom" }), inner = make("div", "One moment …", { "class": "timeline-panel" });
  panel.append(make("summary", "Zoom into it"), inner);
  box.append(panel);
  var started, shown;
  var start = function () {
    started = started || Promise.all([window.traceDoctor.result(), window.traceDoctor.detail()]).then(function (both) { return build(both[0], both[1]); })
      .catch(function (error) { inner.textContent = "This browser cannot draw it; the picture above shows the same."; throw error; });
    return started;
  };
  panel.addEventListener("toggle", function () { if (panel.open) start().then(function (made) { made.draw(); }); });

  var build = function (found, details) {
    var captures = capturesOf(found, details), rows, view, from, to, picked = null, under = null, hits = [], matches = new Map(), colours = {};
    var views = captures.map(function (capture) { return { name: capture.name || "the capture", captures: [capture], folded: new Set() }; });
    if (given.together) {
      var zero = Math.min.apply(null, captures.map(function (c) { return c.epoch; }));
      captures.forEach(function (c) { c.offset = c.epoch - zero; });
      var threads = captures.flatMap(function (c) { return c.tracks.filter(function (track) { return track.part && !(track.part.device >= 0); }); });
      views.push({ name: given.together, captures: captures, folded: new Set(captures.length > MANY ? threads : []) });
    }
    var canvas = make("canvas", "", { "aria-hidden": "true" }), pen = canvas.getContext("2d"), space = make("div"), tip = make("div", "", { "class": "tip", "aria-hidden": "true" });
    var scroller = make("div", "", { "class": "timeline-box", tabindex: "0", role: "application", "aria-label": "Timeline: W and S zoom, A and D move, arrow keys select an event, F collapses its track" });
    var said = make("p", "", { "class": "picked", role: "status" }), beside = make("p", "", { "class": "tools" });
    tip.hidden = true;

    /* toolbar */
    var choice = make("select", "", { "aria-label": "Capture" });
    views.forEach(function (one, n) { choice.append(make("option", one.name, { value: String(n) })); });
    choice.addEventListener("change", function () { choose(views[+choice.value]); draw(); });
    var query = make("input", "", { type: "search", placeholder: "Search events by name", "aria-label": "Search events by name" });
    var count = make("span", "", { "class": "muted", role: "status" });
    var bar = make("div", "", { "class": "filter", role: "search", "aria-label": "Events" });
    if (views.length > 1) bar.append(choice);
    bar.append(query, button("‹", function () { hop(-1); }, "Previous hit"), button("›", function () { hop(1); }, "Next hit"), count,
      button("+", function () { zoom(0.5); draw(); }, "Zoom in"), button("−", function () { zoom(2); draw(); }, "Zoom out"),
      button("Whole window", function () { whole(); draw(); }), button("Add up the view", function () { add(); }));
    var help = make("p", "W S or the wheel zoom, A D or dragging move; arrow keys select an event, Enter zooms to it, Esc lets go. A click on the name of a track, or F, collapses and expands it. The wheel zooms when the timeline has the focus or Ctrl is held." + (doc.getElementById("served") ? "" :
      " For Perfetto: trace-doctor view REPORT.html --trace CAPTURE, or the file of trace-doctor analyze CAPTURE -o perfetto=FILE."), { "class": "limit" });
    scroller.append(canvas, space);
    var holder = make("div", "", { "class": "timeline-holder" });
    holder.append(scroller, tip);
    var sums = make("div", "", { "class": "more" });
    inner.replaceChildren(bar, holder, said, beside, sums, help);
    var add = function () { /* the events of what is in view; of a page without events the parts of the devices */
      var tracks = view.captures.flatMap(function (c) { return c.tracks; }), cut = view.captures.some(function (c) { return c.cut; });
      var events = tracks.filter(function (track) { return track.part; }), gpu = events.filter(function (track) { return track.part.device >= 0; });
      var groups = events.length ? [["GPU", gpu], ["Host", events.filter(function (track) { return gpu.indexOf(track) < 0; })]] : [["Devices", tracks]];
      sums.replaceChildren.apply(sums, groups.filter(function (group) { return group[1].length; }).map(function (group) {
        var those = group[1].map(function (track) { return { track: track, offset: offset(track.capture) }; });
        return window.traceDoctor.sums(group[0], those, from, to, label, cut);
      }));
    };

    /* ---- view */
    var offset = function (capture) { return view.captures.length > 1 ? capture.offset : 0; };
    var bounds = function () {
      return [Math.min.apply(null, view.captures.map(offset)), Math.max.apply(null, view.captures.map(function (c) { return offset(c) + c.length; }))];
    };
    var whole = function () { var all = bounds(); from = all[0]; to = Math.max(all[1], from + LEAST); };
    var choose = function (next) {
      view = next;
      choice.value = String(views.indexOf(view));
      list();
      pick(null);
      whole();
      search();
    };
    var list = function () { /* the rows in sight: of a collapsed track the outermost alone */
      rows = [];
      view.captures.forEach(function (capture) {
        capture.tracks.forEach(function (track) {
          var folded = view.folded.has(track), mark = track.rows.length < 2 ? "" : folded ? "▸ " : "▾ ";
          (folded ? track.rows.slice(0, 1) : track.rows).forEach(function (row, n) {
            row.head = n ? "" : mark + (view.captures.length > 1 && capture.name && track.head.indexOf(capture.name) ? capture.name + " " : "") + track.head;
            rows.push(row);
          });
        });
      });
    };
    var fold = function (track) { /* collapses or expands it; the selection stays in sight */
      if (track.rows.length < 2) return;
      if (!view.folded.delete(track)) view.folded.add(track);
      list();
      pick(picked && rows.indexOf(picked.row) < 0 ? nearest(track.rows[0]) : picked);
    };
    var left = function () { return canvas.clientWidth < 600 ? 104 : 190; };
    var scale = function () { return (canvas.clientWidth - left()) / (to - from); };
    var clamp = function () {
      var all = bounds(), length = Math.min(Math.max(to - from, LEAST), (all[1] - all[0]) * 1.2 + LEAST), middle = (from + to) / 2;
      middle = Math.min(Math.max(middle, all[0]), all[1]);
      from = middle - length / 2;
      to = middle + length / 2;
    };
    var zoom = function (factor, at) {
      at = at === undefined ? (from + to) / 2 : at;
      var length = Math.max((to - from) * factor, LEAST), part = (at - from) / (to - from);
      from = at - length * part;
      to = from + length;
      clamp();
    };
    var move = function (by) { from += by; to += by; clamp(); };

    /* ---- drawing */
    var probe = make("span", "", { "class": "hidden" });
    doc.body.append(probe);
    var colour = function (name) {
      if (!colours[name]) { probe.style.color = "var(--" + name + ")"; colours[name] = getComputedStyle(probe).color; }
      return colours[name];
    };
    var begun = function (row, t) { /* the first of the row that may reach t */
      var own = row.own, start = row.track.start, low = 0, high = own.length, least = t - row.longest;
      while (low < high) { var middle = (low + high) >> 1; if (start[own[middle]] < least) low = middle + 1; else high = middle; }
      return low;
    };
    var fitted = function (text, room) {
      var letters = Math.floor(room / 6.2);
      return letters < 3 ? "" : text.length <= letters ? text : text.slice(0, letters - 1) + "…";
    };
    var draw = function () {
      if (!panel.open) return;
      var ratio = window.devicePixelRatio || 1, total = AXIS + rows.length * ROW + 4, height = Math.min(total, Math.max(220, Math.round(innerHeight * 0.6))), width = scroller.clientWidth;
      scroller.style.height = height + "px";
      canvas.style.width = width + "px";
      canvas.style.height = height + "px";
      space.style.height = Math.max(0, total - height) + "px";
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = colour("surface");
      pen.fillRect(0, 0, width, height);
      pen.font = "11px " + getComputedStyle(doc.body).fontFamily;
      pen.textBaseline = "middle";
      var x0 = left(), s = scale(), top = scroller.scrollTop, first = Math.max(0, Math.floor(top / ROW)), last = Math.min(rows.length, Math.ceil((top + height) / ROW));
      pen.save();
      pen.beginPath();
      pen.rect(x0, AXIS, width - x0, height - AXIS);
      pen.clip();
      for (var r = first; r < last; r++) drawRow(rows[r], AXIS + r * ROW - top, x0, s, width);
      pen.restore();
      var labeled = [];
      view.captures.forEach(function (capture) {
        pen.strokeStyle = colour("line-strong");
        pen.setLineDash([2, 3]);
        var firstRow = rows.findIndex(function (row) { return row.track.capture === capture; }), own = rows.filter(function (row) { return row.track.capture === capture; }).length;
        var y0 = Math.max(AXIS, AXIS + firstRow * ROW - top), y1 = AXIS + (firstRow + own) * ROW - top;
        if (y1 > y0 && y0 < height) capture.steps.forEach(function (step) {
          var x = x0 + (step.start_us + offset(capture) - from) * s;
          if (x < x0 || x > width) return;
          pen.beginPath(); pen.moveTo(x, y0 - 5); pen.lineTo(x, y1); pen.stroke();
          if (step.dur_us * s > 60 && labeled.every(function (other) { return Math.abs(other - x) > 60; })) { labeled.push(x); pen.fillStyle = colour("muted"); pen.fillText("step " + step.index, x + 3, AXIS - 6); }
        });
        pen.setLineDash([]);
      });
      axis(x0, s, width);
      pen.fillStyle = colour("surface");
      pen.fillRect(0, 0, x0 - 1, height);
      for (r = first; r < last; r++) {
        if (!rows[r].head) continue;
        pen.fillStyle = colour("muted");
        pen.fillText(fitted(rows[r].head, x0 - 6), 2, AXIS + r * ROW - top + ROW / 2);
        pen.fillStyle = colour("line");
        pen.fillRect(0, AXIS + r * ROW - top - 1, width, 1);
      }
      pen.fillStyle = colour("surface");
      pen.fillRect(0, 0, x0 - 1, AXIS);
    };
    var axis = function (x0, s, width) {
      var step = Math.pow(10, Math.ceil(Math.log10(90 / s)));
      if (step / 5 * s >= 90) step /= 5; else if (step / 2 * s >= 90) step /= 2;
      var unit = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
      pen.fillStyle = colour("muted");
      for (var t = Math.ceil(from / step) * step; t <= to; t += step) {
        var x = x0 + (t - from) * s;
        pen.fillText(+(t / unit[0]).toFixed(6) + " " + unit[1], x + 3, 7);
        pen.fillRect(x, 0, 1, 6);
      }
    };
    var drawRow = function (row, y, x0, s, width) {
      var track = row.track, shift = offset(track.capture), own = row.own, drawn = -1, lit = matches.get(track);
      for (var k = begun(row, from - shift); k < own.length; k++) {
        var i = own[k], at = track.start[i] + shift;
        if (at > to) break;
        var x = x0 + (at - from) * s, w = track.dur[i] * s, chosen = picked && picked.row === row && picked.k === k;
        if (x + w < x0 || (x + w <= drawn && !chosen && !(lit && lit[i]))) continue;
        var l = Math.max(x, x0), right = Math.min(x + Math.max(w, 1), width), kind = track.kind(i);
        pen.globalAlpha = lit && !lit[i] && !chosen ? 0.45 : 1;
        pen.fillStyle = colour(COLOURS[kind] || "k-" + kind);
        pen.fillRect(l, y + 1, Math.max(right - l - (w > 4 ? 1 : 0), 1), ROW - 3);
        drawn = right;
        if (right - l > 26) { pen.fillStyle = colour("surface"); pen.fillText(fitted(track.name(i), right - l - 6), l + 3, y + ROW / 2); }
        pen.globalAlpha = 1;
        if (chosen) { pen.strokeStyle = colour("text"); pen.lineWidth = 2; pen.strokeRect(l, y + 1, Math.max(right - l, 3), ROW - 3); pen.lineWidth = 1; }
      }
    };

    /* ---- one event */
    var at = function (event) {
      var place = canvas.getBoundingClientRect(), x = event.clientX - place.left, y = event.clientY - place.top;
      var row = y < AXIS ? null : rows[Math.floor((y - AXIS + scroller.scrollTop) / ROW)];
      return { x: x, y: y, t: from + (x - left()) / scale(), row: x < left() ? null : row, named: x < left() && row ? row.track : null };
    };
    var eventAt = function (place) {
      if (!place.row) return null;
      var row = place.row, track = row.track, t = place.t - offset(track.capture), near = 2 / scale(), best = null;
      for (var k = begun(row, t - near); k < row.own.length && track.start[row.own[k]] <= t + near; k++)
        if (track.start[row.own[k]] + track.dur[row.own[k]] >= t - near) best = { row: row, k: k };
      return best;
    };
    var accusing = function (one) {
      var track = one.row.track, i = one.row.own[one.k], a = track.start[i], b = a + track.dur[i], ids = [];
      track.capture.spans.forEach(function (span) {
        if (span.start < b && span.start + span.dur > a && ids.indexOf(span.finding.id) < 0) ids.push(span.finding.id);
      });
      return ids;
    };
    var told = function (one) {
      var track = one.row.track, i = one.row.own[one.k], part = track.part, parts = [track.name(i), time(track.dur[i]) + " from " + time(track.start[i])];
      var step = track.capture.steps.find(function (s) { return s.start_us <= track.start[i] && track.start[i] < s.start_us + s.dur_us; });
      if (step) parts.push("step " + step.index);
      parts.push((track.capture.name ? track.capture.name + ", " : "") + track.head + (part ? ", " + label(track.kind(i)) : ""));
      if (part && part.operator && part.operator[i] >= 0) parts.push("launched by " + track.events.names[part.operator[i]]);
      if (part && part.stack && part.stack[i] >= 0) parts.push(track.events.stacks[part.stack[i]].map(function (n) { return track.events.names[n]; }).join(" ← "));
      if (view.folded.has(track)) parts.push("collapsed, F expands it");
      return parts;
    };
    var pick = function (one) {
      if (one && view.folded.has(one.row.track) && rows.indexOf(one.row) < 0) { view.folded.delete(one.row.track); list(); }
      picked = one;
      said.textContent = one ? told(one).join(" · ") : "";
      beside.replaceChildren();
      if (!one) return;
      var part = one.row.track.part, i = one.row.own[one.k], call = part && part.launch ? part.launch[i] : -1;
      if (call >= 0) beside.append(button("Go to its launch", function () { reveal(numbered(one.row.track.capture, call)); }));
      accusing(one).slice(0, 6).forEach(function (id) { beside.append(make("a", "in a moment of " + id, { href: "#" + id }), " "); });
    };
    var numbered = function (capture, number) {
      var track = capture.tracks.find(function (t) { return t.part && t.first <= number && number < t.first + t.start.length; });
      if (!track) return null;
      var i = number - track.first, row = track.rows.find(function (r) { return r.own.indexOf(i) >= 0; });
      return row ? { row: row, k: row.own.indexOf(i) } : null;
    };
    var scrollTo = function (row) {
      var y = rows.indexOf(row) * ROW, height = scroller.clientHeight - AXIS - ROW;
      if (y < scroller.scrollTop || y > scroller.scrollTop + height) scroller.scrollTop = Math.max(0, y - height / 2);
    };
    var reveal = function (one) { /* selects it, and moves the view where it is outside */
      if (!one) return;
      var track = one.row.track, i = one.row.own[one.k], a = track.start[i] + offset(track.capture), b = a + track.dur[i];
      if (b < from || a > to || b - a < (to - from) / 400) { var length = Math.min(to - from, Math.max(track.dur[i] * 40, LEAST)); from = (a + b - length) / 2; to = from + length; clamp(); }
      pick(one);
      scrollTo(one.row);
      draw();
    };

    /* ---- search */
    var search = function () {
      var text = query.value.toLowerCase();
      matches = new Map();
      hits = [];
      var all = view.captures.flatMap(function (c) { return c.tracks.flatMap(function (track) { return track.rows; }); });
      if (text) all.forEach(function (row) {
        var track = row.track;
        if (!matches.has(track)) matches.set(track, new Uint8Array(track.start.length));
        var lit = matches.get(track), known = track.known = track.known || new Map();
        row.own.forEach(function (i, k) {
          var name = track.name(i);
          if (!known.has(name)) known.set(name, name.toLowerCase());
          if (known.get(name).indexOf(text) >= 0) { lit[i] = 1; hits.push({ row: row, k: k }); }
        });
      });
      var when = function (one) { return one.row.track.start[one.row.own[one.k]] + offset(one.row.track.capture); };
      hits.sort(function (a, b) { return when(a) - when(b); });
      if (!hits.length) matches = new Map(); /* nothing to stand out, so nothing fades */
      count.textContent = text ? hits.length + (hits.length === 1 ? " hit" : " hits") + (view.captures.some(function (c) { return c.cut; }) ? " among the events shown" : "") : "";
    };
    var hop = function (by) {
      if (!hits.length) return;
      var now = hits.findIndex(function (one) { return picked && one.row === picked.row && one.k === picked.k; });
      var next = now < 0 ? (by > 0 ? 0 : hits.length - 1) : (now + by + hits.length) % hits.length;
      count.textContent = (next + 1) + " of " + hits.length + " hits";
      reveal(hits[next]);
    };
    query.addEventListener("input", function () { search(); draw(); });
    query.addEventListener("keydown", function (event) {
      if (event.key === "Enter") { event.preventDefault(); hop(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { event.stopPropagation(); query.value = ""; search(); draw(); }
    });

    /* ---- hands */
    var nearest = function (row) { /* of a row, to the middle of the view or to the selection */
      var t = (picked ? picked.row.track.start[picked.row.own[picked.k]] + offset(picked.row.track.capture) : (from + to) / 2) - offset(row.track.capture), best = 0;
      for (var k = 1; k < row.own.length; k++) if (Math.abs(row.track.start[row.own[k]] - t) < Math.abs(row.track.start[row.own[best]] - t)) best = k;
      return { row: row, k: best };
    };
    var KEYS = {
      w: function () { zoom(0.7); }, s: function () { zoom(1 / 0.7); }, a: function () { move((from - to) * 0.15); }, d: function () { move((to - from) * 0.15); },
      arrowright: function () { beside_(1); }, arrowleft: function () { beside_(-1); }, arrowdown: function () { below(1); }, arrowup: function () { below(-1); },
      enter: function () { if (picked) { var t = picked.row.track, i = picked.row.own[picked.k], a = t.start[i] + offset(t.capture), room = Math.max(t.dur[i], LEAST); from = a - room * 0.5; to = a + room * 1.5; clamp(); } },
      f: function () { if (picked) { fold(picked.row.track); scrollTo(picked.row); } }, escape: function () { pick(null); }, home: function () { whole(); }
    };
    var beside_ = function (by) {
      if (!picked) return below(0);
      var k = picked.k + by;
      if (k >= 0 && k < picked.row.own.length) reveal({ row: picked.row, k: k });
    };
    var below = function (by) {
      var n = picked ? rows.indexOf(picked.row) + by : 0;
      while (rows[n] && !rows[n].own.length) n += by || 1;
      if (rows[n]) reveal(nearest(rows[n]));
    };
    scroller.addEventListener("keydown", function (event) {
      var act = KEYS[event.key.toLowerCase()];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      act();
      draw();
    });
    scroller.addEventListener("scroll", function () { tip.hidden = true; draw(); });
    scroller.addEventListener("wheel", function (event) {
      if (event.shiftKey || !(event.ctrlKey || event.metaKey || doc.activeElement === scroller)) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event).t);
      draw();
    }, { passive: false });
    var held = null;
    canvas.addEventListener("pointerdown", function (event) {
      held = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
      scroller.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", function (event) {
      if (held) {
        var dx = event.clientX - held.x, dy = event.clientY - held.y;
        if (!held.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
        held = { x: event.clientX, y: event.clientY, moved: true };
        tip.hidden = true;
        move(-dx / scale());
        if (event.pointerType === "mouse") scroller.scrollTop -= dy;
        return draw();
      }
      var place = at(event);
      under = eventAt(place);
      canvas.style.cursor = place.named && place.named.rows.length > 1 ? "pointer" : "";
      tip.hidden = !under;
      if (!under) return;
      tip.textContent = told(under).join("\n");
      tip.style.left = Math.max(0, Math.min(place.x + 12, scroller.clientWidth - tip.offsetWidth - 4)) + "px";
      tip.style.top = (place.y + 16 + tip.offsetHeight > scroller.clientHeight ? Math.max(0, place.y - tip.offsetHeight - 8) : place.y + 16) + "px";
    });
    canvas.addEventListener("pointerup", function (event) {
      if (held && !held.moved) {
        var place = at(event);
        if (place.named) fold(place.named); else pick(eventAt(place));
        draw();
      }
      held = null;
    });
    canvas.addEventListener("pointercancel", function () { held = null; });
    canvas.addEventListener("pointerleave", function () { tip.hidden = true; });
    var again = function () { colours = {}; draw(); };
    new MutationObserver(again).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    window.addEventListener("resize", draw);

    choose(views[0]);
    shown = {
      draw: draw,
      /* the moment `start` … `start + dur` (µs of the window) of a capture; `row` tells which of its rows it is in */
      show: function (input, start, dur, track) {
        var capture = captures.find(function (c) { return c.input === input; });
        if (!capture) return;
        if (view.captures.indexOf(capture) < 0) choose(views.find(function (v) { return v.captures[0] === capture; }));
        var room = Math.max(dur, LEAST);
        from = start + offset(capture) - room * 0.4;
        to = start + offset(capture) + room * 1.4;
        clamp();
        var hit = null;
        capture.tracks.filter(track).some(function (one) {
          return one.rows.some(function (row) {
            return row.own.some(function (i, k) { hit = Math.abs(one.start[i] - start) < 0.01 && Math.abs(one.dur[i] - dur) < 0.01 ? { row: row, k: k } : null; return hit; });
          });
        });
        pick(hit);
        if (hit) scrollTo(hit.row);
        draw();
        scroller.focus({ preventScroll: true });
      },
      find: function (id, number) {
        var finding = found.findings.find(function (f) { return f.id === id; }), span = finding && (finding.spans || [])[number];
        var capture = finding && captures.find(function (c) { return c.input === (finding.input || 0); });
        if (span && capture && capture.clock !== undefined) shown.show(capture.input, span.ts_us - capture.clock, span.dur_us, function (t) { return t.head === "findings"; });
      },
      gap: function (lane, number) {
        var own = found.timeline[lane], gap = own && (own.gaps || [])[number];
        if (gap) shown.show(own.input || 0, gap[0], gap[1], function () { return false; });
      },
      /* what is in view of a capture, on the clock of its file; null where that is not known */
      moment: function (input) {
        var capture = view.captures.find(function (c) { return c.input === input; });
        if (!capture || capture.clock === undefined) return null;
        return { input: capture.input, start_us: from - offset(capture) + capture.clock, end_us: to - offset(capture) + capture.clock };
      }
    };
    window.traceDoctor.timeline = shown;
    return shown;
  };

  /* #panel=timeline opens it; &finding=TD101-1&span=0 and &lane=0&gap=2 at a moment */
  var follow = function () {
    var asked = new URLSearchParams(location.hash.slice(1));
    if (asked.get("panel") !== "timeline") return;
    panel.open = true;
    start().then(function (made) {
      made.draw();
      if (asked.has("finding")) made.find(asked.get("finding"), +asked.get("span") || 0);
      if (asked.has("gap")) made.gap(+asked.get("lane") || 0, +asked.get("gap") || 0);
      panel.scrollIntoView();
    });
  };
  window.addEventListener("hashchange", follow);
  doc.addEventListener("click", function (event) { /* the same link once more */
    var link = event.target.closest && event.target.closest('a[href^="#panel=timeline"]');
    if (link && link.getAttribute("href") === location.hash) follow();
  });
  follow();
})();
