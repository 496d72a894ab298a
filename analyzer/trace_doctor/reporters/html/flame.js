/* Flame graphs: a tree of {name, value, children} as SVG, width by value. `traceDoctor.flame(holder, tree, options)` draws
   one into an element. Options: label (what it is called), format (node -> its value in words), short (name -> what its frame
   shows); path, the names of the frame to begin at, whose callers then stay drawn, and zoomed, which takes the path of each
   frame that is zoomed to. Beside it stands a table in words. */
(function () {
  "use strict";
  var page = window.traceDoctor, make = page.make, button = page.button, all = page.all;
  var ROW = 19, CHARACTER = 6.7, NARROWEST = 1, LEVELS = 36, COLOURS = 6;
  var svg = function (tag, attributes) {
    var node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.keys(attributes).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    return node;
  };
  /* frames of one file have one colour */
  var colour = function (name) {
    var hash = 0, file = name.split(/\(|:\d/)[0] || name;
    for (var i = 0; i < file.length; i++) hash = (hash * 31 + file.charCodeAt(i)) % 65521;
    return name === "other" ? "flame-other" : "flame-" + hash % COLOURS;
  };

  page.flame = function (holder, tree, options) {
    var parents = new Map(), nodes = [];
    var walk = [tree];
    while (walk.length) {
      var node = walk.pop();
      (node.children || []).forEach(function (child) { parents.set(child, node); walk.push(child); });
    }
    var said = function (node) {
      var part = tree.value ? " · " + (100 * node.value / tree.value).toFixed(1) + "%" : "";
      return node.name + " · " + options.format(node) + part;
    };
    /* callers that all of the time is in are no choice: begin below them */
    var begin = tree;
    if (options.path) begin = options.path.reduce(function (node, name) { return node.children.find(function (child) { return child.name === name; }); }, tree);
    else while ((begin.children || []).length === 1 && begin.children[0].value >= 0.98 * tree.value) begin = begin.children[0];
    var shown = begin, focused = begin;
    var tools = make("p", "", { "class": "tools" }), line = make("p", "", { "class": "muted flame-line", role: "status" });
    var box = make("div", "", { "class": "flame", role: "group", "aria-label": options.label });
    var out = button("Caller", function () { zoom(parents.get(shown) || tree); }), top = button("All", function () { zoom(tree); });
    tools.append(out, top, make("span", "Click a frame to zoom in. Keys: arrows move, Enter zooms in, Escape zooms out.", { "class": "muted" }));
    holder.replaceChildren(tools, box, line);

    var callers = function (node) { var above = []; while ((node = parents.get(node))) above.unshift(node); return above; };
    var zoom = function (node) {
      shown = focused = node;
      draw();
      if (options.zoomed) options.zoomed(callers(node).concat(node).slice(1).map(function (one) { return one.name; }));
      var there = box.querySelector("[tabindex='0']"); if (there) there.focus({ preventScroll: true });
    };
    var tell = function (node) { line.textContent = said(node); };
    var draw = function () {
      var width = Math.max(240, box.clientWidth || 900), hidden = 0;
      var picture = svg("svg", { width: width, "class": "flame-picture" });
      var above = options.path ? callers(shown) : [], deepest = above.length, first = deepest;
      nodes = above.map(function (node, level) { return [node, level, 0, width]; });
      var place = [[shown, first, 0, width]];
      while (place.length) {
        var one = place.pop(), node = one[0], level = one[1], left = one[2], wide = one[3];
        if (level - first >= LEVELS) { hidden += 1; continue; }
        deepest = Math.max(deepest, level);
        nodes.push([node, level, left, wide]);
        var at = left;
        (node.children || []).forEach(function (child) {
          var own = shown.value ? child.value / shown.value * width : 0;
          if (own >= NARROWEST) place.push([child, level + 1, at, own]);
          at += own;
        });
      }
      nodes.sort(function (a, b) { return a[1] - b[1] || a[2] - b[2]; });
      nodes.forEach(function (one) {
        var node = one[0], y = one[1] * ROW, room = Math.floor((one[3] - 8) / CHARACTER);
        var group = svg("g", { role: "button", tabindex: node === focused ? 0 : -1, "aria-label": said(node), "class": one[1] < first ? "flame-caller" : colour(node.name) });
        group.append(svg("rect", { x: one[2].toFixed(2), y: y, width: Math.max(0.5, one[3] - 0.6).toFixed(2), height: ROW - 1, rx: 2 }));
        if (room >= 3) {
          var text = svg("text", { x: (one[2] + 4).toFixed(2), y: y + 13 });
          var name = options.short ? options.short(node.name) : node.name;
          text.textContent = name.length > room ? name.slice(0, room - 1) + "…" : name;
          group.append(text);
        }
        group.addEventListener("click", function () { zoom(node === shown ? parents.get(node) || tree : node); });
        group.addEventListener("mouseenter", function () { tell(node); });
        group.addEventListener("focus", function () { focused = node; all("g", picture).forEach(function (other) { other.setAttribute("tabindex", other === group ? 0 : -1); }); tell(node); });
        picture.append(group);
        one.push(group);
      });
      picture.setAttribute("height", (deepest + 1) * ROW);
      box.replaceChildren(picture);
      out.disabled = top.disabled = shown === tree;
      line.textContent = said(shown) + (hidden ? " · deeper levels are not drawn: zoom in" : "");
    };
    box.addEventListener("keydown", function (event) {
      var at = nodes.findIndex(function (one) { return one[0] === focused; });
      if (at < 0) return;
      var one = nodes[at], to = null;
      if (event.key === "ArrowDown") to = nodes.find(function (other) { return parents.get(other[0]) === one[0]; });
      else if (event.key === "ArrowUp") to = nodes.find(function (other) { return other[0] === parents.get(one[0]); });
      else if (event.key === "ArrowRight") to = nodes[at + 1] && nodes[at + 1][1] === one[1] ? nodes[at + 1] : null;
      else if (event.key === "ArrowLeft") to = nodes[at - 1] && nodes[at - 1][1] === one[1] ? nodes[at - 1] : null;
      else if (event.key === "Enter" || event.key === " ") zoom(one[0]);
      else if (event.key === "Escape" || event.key === "Backspace") zoom(parents.get(shown) || tree);
      else return;
      event.preventDefault();
      event.stopPropagation();
      if (to) to[4].focus();
    });
    draw();
    var before = box.clientWidth;
    new ResizeObserver(function () { if (box.clientWidth && Math.abs(box.clientWidth - before) > 2) { before = box.clientWidth; draw(); } }).observe(box);
  };

  /* the host's time by Python stack, once it is opened */
  all("[data-flame=host_stacks]").forEach(function (holder) {
    var fold = holder.closest("details"), picture = make("div"), choices = JSON.parse(holder.dataset.captures);
    var which = make("select", "", { "aria-label": "Capture" });
    var draw = function () {
      page.detail().then(function (details) {
        var one = (details || []).find(function (d) { return String(d.input) === which.value && d.host_stacks; });
        if (one) page.flame(picture, one.host_stacks.root, { label: "Host time by Python stack", format: function (node) { return page.time(node.value, 3); } });
      });
    };
    choices.forEach(function (one) { which.append(make("option", one[1] || "this capture", { value: String(one[0]) })); });
    which.addEventListener("change", draw);
    if (choices.length > 1) holder.append(which);
    holder.append(picture);
    fold.addEventListener("toggle", function () { if (fold.open && !picture.childNodes.length) draw(); });
    if (fold.open) draw();
  });
})();
