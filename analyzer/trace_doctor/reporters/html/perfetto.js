/* Only in a page that `trace-doctor view` serves with a trace: Perfetto's UI in a window of its own, at the moment in view. */
(function () {
  "use strict";
  var doc = document, given = JSON.parse(doc.getElementById("served").textContent), PERFETTO = "https://ui.perfetto.dev";
  var place = doc.querySelector("[data-timeline]");
  if (!place) return;
  var part = doc.createElement("p"), open = doc.createElement("button"), said = doc.createElement("span");
  open.type = "button";
  open.textContent = "Open in Perfetto at this moment";
  said.className = "muted";
  said.setAttribute("role", "status");
  said.textContent = "This opens " + PERFETTO + ", which needs the network. The trace (" + given.name + ") stays in this browser.";
  part.className = "tools";
  part.append(open, " ", said);
  place.after(part);

  open.addEventListener("click", function () {
    var timeline = window.traceDoctor.timeline, moment = timeline && timeline.moment(given.input), query = "";
    var ns = function (us) { return String(BigInt(Math.max(0, Math.round(us))) * 1000n); };
    if (moment) query = "?visStart=" + ns(moment.start_us) + "&visEnd=" + ns(moment.end_us);
    var target = window.open(PERFETTO + "/" + query); /* now, while the click counts */
    if (!target) { said.textContent = "The browser has blocked the window. Allow it for this page, and click again."; return; }
    fetch(given.trace).then(function (answer) {
      if (!answer.ok) throw new Error(answer.statusText);
      return answer.arrayBuffer();
    }).then(function (buffer) {
      var calls = setInterval(function () { if (target.closed) stop(); else target.postMessage("PING", PERFETTO); }, 100);
      var stop = function () { clearInterval(calls); window.removeEventListener("message", ready); };
      var ready = function (event) {
        if (event.source !== target || event.origin !== PERFETTO || event.data !== "PONG") return;
        stop();
        target.postMessage({ perfetto: { buffer: buffer, title: given.name, fileName: given.name } }, PERFETTO);
      };
      window.addEventListener("message", ready);
    }).catch(function (error) { said.textContent = "The trace could not be read: " + error.message; });
  });
})();
