/* The events of a range of the timeline, added up by name. */
(function () {
  "use strict";
  var page = window.traceDoctor, make = page.make, MOST = 12;
  /* of each thread or stream the parts of its events inside of the range, callers before what they call */
  var threads = function (tracks, from, to) {
    var found = new Map();
    tracks.forEach(function (one) {
      var track = one.track, key = track.capture.input + " " + track.head.split(",")[0]; /* frames of libraries have a track of their own */
      if (!found.has(key)) found.set(key, []);
      for (var i = 0; i < track.start.length; i++) {
        var begin = Math.max(track.start[i] + one.offset, from), end = Math.min(track.start[i] + track.dur[i] + one.offset, to);
        if (end > begin) found.get(key).push({ begin: begin, end: end, own: end - begin, kind: track.kind(i), name: track.name(i) });
      }
    });
    return Array.from(found.values(), function (events) { return events.sort(function (a, b) { return a.begin - b.begin || b.end - a.end; }); });
  };
  var grouped = function (tracks, from, to) {
    var groups = new Map();
    threads(tracks, from, to).forEach(function (events) {
      var open = [];
      events.forEach(function (event) {
        while (open.length && open[open.length - 1].end <= event.begin) open.pop();
        var caller = open[open.length - 1];
        if (caller) caller.own -= Math.min(event.end, caller.end) - event.begin;
        open.push(event);
      });
      events.forEach(function (event) {
        var key = event.kind + " " + event.name;
        if (!groups.has(key)) groups.set(key, { kind: event.kind, name: event.name, count: 0, total: 0 });
        groups.get(key).count += 1;
        groups.get(key).total += event.own;
      });
    });
    return Array.from(groups.values()).sort(function (a, b) { return b.total - a.total; });
  };
  /* `of`: whose events they are; `tracks`: each with the offset of its clock; `label`: the words for a kind; `cut`: whether the page
     lacks short events */
  page.sums = function (of, tracks, from, to, label, cut) {
    var found = grouped(tracks, from, to), table = make("table"), head = make("tr"), body = make("tbody");
    var cell = function (text, numeric) { return make("td", text, numeric ? { "class": "num" } : {}); };
    ["Event", "Kind", "Count", "Own time", "Of the range"].forEach(function (word, n) {
      head.append(make("th", word, n > 1 ? { scope: "col", "class": "num" } : { scope: "col" }));
    });
    found.slice(0, MOST).forEach(function (group) {
      var line = make("tr"), name = make("th", "", { scope: "row" });
      var called = make("span", "", { "class": "kernel" });
      called.append(make("bdi", group.name));
      name.append(called);
      line.append(name, cell(label(group.kind)), cell(page.fixed(group.count, 0), true), cell(page.time(group.total, 3), true),
        cell(page.fixed(100 * group.total / (to - from), 1) + "%", true));
      body.append(line);
    });
    var said = of + ", " + page.time(from, 4) + " to " + page.time(to, 4) + ", " + page.time(to - from, 3) + ", without what an event calls" +
      (found.length > MOST ? " – showing " + MOST + " of " + page.fixed(found.length, 0) : "") + (cut ? ". Short events are not in the page." : "");
    var heads = make("thead"), frame = make("div", "", { "class": "scroll kernels" });
    heads.append(head);
    table.append(make("caption", said), heads, body);
    frame.append(table);
    page.framed(table);
    return frame;
  };
})();
