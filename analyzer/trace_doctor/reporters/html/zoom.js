/* The zoomable panels. The chart library waits compressed in the page and is unpacked when the first panel opens. */
(function () {
  "use strict";
  var doc = document, root = doc.documentElement;
  var packed = doc.getElementById("plotly");
  if (!packed || typeof DecompressionStream === "undefined") return; /* the pictures remain */
  var result;
  var words = JSON.parse(doc.getElementById("zoom-words").textContent);

  var library;
  var load = function () {
    library = library || (async function () {
      var script = doc.createElement("script");
      script.textContent = await window.traceDoctor.unpack(packed.textContent);
      /* its maps, which no panel draws, bring a style that the policy refuses; they do not where an element of its name is */
      var maps = /getElementById\("(\w+)"\)\)\{var \w+=document\.createElement\("style"\)/.exec(script.textContent);
      if (maps) doc.head.append(Object.assign(doc.createElement("style"), { id: maps[1] }));
      result = await window.traceDoctor.result();
      doc.head.append(script);
      return window.Plotly;
    })();
    return library;
  };

  /* the page's own colours, in the theme of the moment */
  var probe = doc.createElementNS("http://www.w3.org/2000/svg", "path"), holder = doc.createElementNS("http://www.w3.org/2000/svg", "svg");
  holder.setAttribute("class", "defs");
  holder.setAttribute("width", 0);
  holder.setAttribute("height", 0);
  holder.setAttribute("aria-hidden", "true");
  holder.append(probe);
  doc.body.append(holder);
  var colour = function (name) {
    probe.removeAttribute("class");
    probe.style.fill = "var(--" + name + ")";
    return getComputedStyle(probe).fill;
  };
  var fill = function (name) {
    probe.style.fill = "";
    probe.setAttribute("class", name);
    return getComputedStyle(probe).fill;
  };
  var GIB = 1073741824;
  var bytes = window.traceDoctor.bytes;
  var layout = function (height, x, y) {
    var axis = { gridcolor: colour("line"), zerolinecolor: colour("line-strong"), linecolor: colour("line-strong") };
    return {
      height: height, barmode: "overlay", bargap: 0.25, hovermode: "closest", dragmode: "pan", showlegend: true,
      paper_bgcolor: colour("surface"), plot_bgcolor: colour("surface"), margin: { l: 56, r: 8, t: 8, b: 44 },
      font: { family: getComputedStyle(doc.body).fontFamily, size: 12, color: colour("text") },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { color: colour("muted") } },
      xaxis: Object.assign({}, axis, x), yaxis: Object.assign({ automargin: true }, axis, y)
    };
  };

  var memory = function (box) {
    var series = result.memory_timeline[+box.dataset.series], clock = series.unit === "us";
    var highest = Math.max.apply(null, series.at.map(function (_, i) {
      return Object.keys(series.live_by_category).reduce(function (sum, k) { return sum + series.live_by_category[k][i]; }, 0);
    }));
    var unit = highest >= GIB ? GIB : 1048576;
    var scaled = function (b) { return b === null ? null : b / unit; };
    var x = clock ? series.at.map(function (t) { return t / 1e3; }) : series.at;
    var made = Object.keys(words.memory).filter(function (k) { return series.live_by_category[k]; }).map(function (k) {
      var live = series.live_by_category[k];
      return {
        x: x, y: live.map(scaled), name: words.memory[k], stackgroup: "live", line: { shape: "hv", width: 0.5, color: fill("m-" + k) },
        fillcolor: fill("m-" + k), text: live.map(bytes), hovertemplate: "%{text}<extra>" + words.memory[k] + "</extra>"
      };
    });
    if (series.reserved.some(function (r) { return r !== null; })) made.push({
      x: x, y: series.reserved.map(scaled), name: "reserved", mode: "lines", line: { shape: "hv", width: 1.5, dash: "dash", color: colour("text") },
      text: series.reserved.map(function (r) { return r === null ? "" : bytes(r); }), hovertemplate: "%{text}<extra>reserved</extra>"
    });
    var drawn = layout(380, { title: { text: clock ? "ms from the first entry" : "position in the record" } },
      { rangemode: "tozero", fixedrange: true, title: { text: unit === GIB ? "GiB" : "MiB" } });
    drawn.shapes = (series.marks || []).filter(function (m) { return m[1] === "oom" || m[1] === "step"; }).slice(0, 200).map(function (m) {
      var at = clock ? m[0] / 1e3 : m[0];
      return { type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: colour(m[1] === "oom" ? "critical" : "line-strong"), width: 1, dash: "dot" } };
    });
    return [made, drawn];
  };

  var open = [];
  var draw = function (plotly, box) {
    var parts = memory(box);
    return plotly.react(box.querySelector(".plot"), parts[0], parts[1], { displaylogo: false, responsive: true, scrollZoom: true,
      modeBarButtons: [["pan2d", "zoom2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  };
  var again = function () { if (open.length) load().then(function (plotly) { open.forEach(function (box) { draw(plotly, box); }); }); };

  Array.prototype.forEach.call(doc.querySelectorAll("[data-zoom]"), function (box) {
    var panel = doc.createElement("details"), summary = doc.createElement("summary"), plot = doc.createElement("div");
    panel.className = "more zoom";
    summary.textContent = "Zoom into it";
    plot.className = "plot";
    plot.textContent = "One moment …";
    panel.append(summary, plot);
    box.append(panel);
    panel.addEventListener("toggle", function () {
      if (!panel.open || open.indexOf(box) >= 0) return;
      open.push(box);
      load().then(function (plotly) { plot.textContent = ""; return draw(plotly, box); })
        .catch(function () { plot.textContent = "This browser cannot draw it; the picture above shows the same."; });
    });
  });
  new MutationObserver(again).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  /* #panel=memory opens the first */
  var follow = function () {
    var wanted = new URLSearchParams(location.hash.slice(1)).get("panel");
    var boxes = wanted ? Array.prototype.slice.call(doc.querySelectorAll('[data-zoom="' + CSS.escape(wanted) + '"]')) : [];
    var box = boxes.filter(function (node) { return node.offsetParent; })[0] || boxes[0]; /* of the view that is shown */
    if (!box) return;
    box.querySelector("details").open = true;
    box.closest("section").scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  follow();
})();
