// An episode of a controller: what it saw, did and was paid over time, with a player, and the chain of a decision that was
// denoised.

import { COLOURS, draw, mark, plain } from "../chart.js";
import { h, number } from "../dom.js";

const FEW = 40; // points of a curve that are marked each
const PAUSE = 40, LONGEST = 20_000; // milliseconds of a moment, and at most of all

/** Curves of a track {at, length, moves, curves, chains}, in panels by what they are of. `frames`: {at, images}, pictures of some moments. */
export function drawTrack(track, frames = { at: [], images: [] }) {
  const { at, curves } = track, names = Object.keys(curves), end = Math.max(0, at.length - 1), chains = track.chains ?? [];
  if (!names.length && !frames.at.length) return h("p", { class: "quiet" }, "It saw pictures alone, and its environment draws none.");
  const charts = h("div", { class: "charts" }), chain = h("div", { class: "charts" }), values = h("dl", { class: "moment" });
  const slider = h("input", { type: "range", min: 0, max: end, value: 0, "aria-label": "moment" }), where = h("output", {});
  const picture = frames.at.length ? h("img", { alt: "the environment at this moment" }) : null;
  const panels = end > 0 ? split(names, (name) => name.replace(/ \d+$/, "").replace(/^reward .*/, "reward")) : [];
  const boxes = panels.map(([of]) => h("div", { class: "chart", role: "img", "aria-label": `${of} over time` }));
  charts.append(...boxes);

  function show(i) {
    slider.value = i;
    where.textContent = `step ${at[i] ?? 0} of ${track.moves}`;
    values.replaceChildren(...names.flatMap((name) => [h("dt", {}, name), h("dd", {}, number(curves[name][i]))]));
    boxes.forEach((box) => mark(box, at[i]));
    if (picture) picture.src = `data:image/jpeg;base64,${frames.images[Math.max(0, frames.at.findLastIndex((t) => t <= (at[i] ?? 0)))]}`;
    drawChain(chain, chains[i] ?? {});
  }
  let timer = null;
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  const play = h("button", { type: "button", onclick: () => {
    if (timer !== null) { stop(); return; }
    const began = performance.now(), from = Number(slider.value) < end ? Number(slider.value) : 0, pause = Math.min(PAUSE, LONGEST / (end + 1));
    play.textContent = "Pause";
    timer = setInterval(() => {
      const i = Math.min(end, from + Math.round((performance.now() - began) / pause));
      if (!play.isConnected) { stop(); return; }
      show(i);
      if (i === end) stop();
    }, PAUSE);
  } }, "Play");
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  setTimeout(() => { // once it is on the page
    boxes.forEach((box, k) => {
      const [of, own] = panels[k], shape = of === "action" ? "hv" : "linear", first = { x0: at[0], x1: at[0], y0: 0, y1: 1 };
      draw(box, own.map((name, i) => line(at, curves[name], name, i, shape)), { title: { text: plain(of, 60) }, showlegend: own.length > 1,
        shapes: [{ type: "line", yref: "paper", line: { width: 1, dash: "dot", color: "#888" }, ...first }] });
    });
    show(0);
  });
  return h("div", {}, picture && h("p", {}, picture), end > 0 && h("p", { class: "slide" }, play, slider, where), chain, charts,
    h("details", { open: true }, h("summary", {}, end > 0 ? "Numbers of this moment" : "Numbers"), values));
}

const line = (x, y, name, i, shape = "linear") => ({ x, y, name: plain(name, 60), mode: x.length > FEW ? "lines" : "lines+markers",
  line: { color: COLOURS[i % COLOURS.length], shape, width: 1.6 }, marker: { size: 4 } });

/** [[panel, its names]]. */
function split(names, find) {
  const panels = new Map();
  for (const name of names) panels.set(find(name), [...(panels.get(find(name)) ?? []), name]);
  return [...panels];
}

/** How a decision was denoised: its points over the steps, in the plane where they have two numbers, and what is known of each step. */
function drawChain(at, chain) {
  const panels = split(Object.keys(chain), (name) => name.replace(/^point \d+$/, "points of denoising").replace(/^logp$|.*log_prob$/, "log-probability"));
  if (chain["point 1"] && !chain["point 2"]) panels.unshift(["path", ["point 0", "point 1"]]);
  while (at.children.length > panels.length) at.lastChild.remove();
  panels.forEach(([of, own], k) => {
    const box = at.children[k] ?? at.appendChild(h("div", { class: "chart", role: "img" })), [x, y] = own.map((name) => chain[name]), steps = x.map((_, i) => i);
    box.setAttribute("aria-label", of === "path" ? `path of denoising from ${number(x[0])}, ${number(y[0])} to ${number(x.at(-1))}, ${number(y.at(-1))}` : `${of} over the steps of denoising`);
    const traces = of === "path"
      ? [{ ...line(x, y, "path", 0), text: steps.map(String), hovertemplate: "before step %{text}: %{x:.3g}, %{y:.3g}<extra></extra>", marker: { size: 5, color: steps, colorscale: "Viridis" } },
        { x: x.slice(-1), y: y.slice(-1), mode: "markers", name: "decision", marker: { size: 10, symbol: "x", color: COLOURS[3] } }]
      : own.map((name, i) => line(steps, chain[name], name, i));
    draw(box, traces, { title: { text: plain(of === "path" ? "path of denoising, x: decision" : of, 60) }, showlegend: of !== "path" && own.length > 1, hovermode: of === "path" ? "closest" : "x unified",
      xaxis: { title: { text: of === "path" ? "point 0" : "step of denoising", standoff: 4 } }, yaxis: of === "path" ? { title: { text: "point 1" } } : {} });
  });
}
