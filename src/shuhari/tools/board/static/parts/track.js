// An episode of a controller: what it saw, did and was paid over time, with a slider for a moment of it.

import { COLOURS, draw, plain } from "../chart.js";
import { h, number } from "../dom.js";

/** Curves of a track {at, length, moves, curves}, in panels by what they are of. */
export function drawTrack(track) {
  const names = Object.keys(track.curves);
  if (!names.length) return h("p", { class: "quiet" }, "It saw pictures alone: see its video.");
  const panels = new Map();
  for (const name of names) {
    const of = name.replace(/ \d+$/, "").replace(/^reward .*/, "reward");
    panels.set(of, [...(panels.get(of) ?? []), name]);
  }
  const charts = h("div", { class: "charts" }), values = h("dl", { class: "moment" });
  const slider = h("input", { type: "range", min: 0, max: Math.max(0, track.at.length - 1), value: 0, "aria-label": "moment" });
  const where = h("output", {});
  const boxes = [...panels].map(([of, own]) => [h("div", { class: "chart", role: "img", "aria-label": `${of} over time` }), of, own]);
  charts.append(...boxes.map(([box]) => box));
  const shapes = () => [{ type: "line", x0: track.at[slider.value], x1: track.at[slider.value], y0: 0, y1: 1, yref: "paper", line: { width: 1, dash: "dot", color: "#888" } }];
  const layout = (of) => ({ title: { text: plain(of, 60) }, showlegend: panels.get(of).length > 1, shapes: shapes() });
  function redraw() {
    for (const [box, of, own] of boxes)
      draw(box, own.map((name, i) => ({ x: track.at, y: track.curves[name], name: plain(name, 60), mode: "lines", line: { color: COLOURS[i % COLOURS.length], shape: of === "action" ? "hv" : "linear" } })), layout(of));
  }
  function tellMoment() {
    where.textContent = `step ${track.at[slider.value] ?? 0} of ${track.moves}`;
    values.replaceChildren(...names.flatMap((name) => [h("dt", {}, name), h("dd", {}, number(track.curves[name][slider.value]))]));
  }
  slider.addEventListener("input", () => { tellMoment(); redraw(); });
  tellMoment();
  setTimeout(redraw); // once it is on the page
  return h("div", {}, charts, h("p", { class: "slide" }, slider, where), h("details", { open: true }, h("summary", {}, "Numbers of this moment"), values));
}
