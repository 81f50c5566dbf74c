// The charts of a run: they grow while it trains, by what came after the last step, and are drawn once they are seen.

import { get } from "../api.js";
import { COLOURS, draw, plain, smooth } from "../chart.js";
import { fill, h, number } from "../dom.js";

const POINTS = 1000; // of a curve; three times as many are thinned anew
const DASHES = ["solid", "dot", "dash", "dashdot"];

export const nameAxis = (x) => ({ step: "step", wall: "wall time (s)" })[x] ?? x.replace("spent/", "").replaceAll("_", " ");

/** Charts in an element. state: {x, smoothing, more}, which the page changes before it calls `refresh` or `redraw`. pick: which charts. none: what is said where there are none. */
export class Charts {
  constructor(element, run, state, signal, pick = () => true, none = "No number is stored yet.") {
    Object.assign(this, { element, run, state, signal, pick, none, curves: {}, boxes: new Map(), charts: [], stages: [], names: [], axes: [] });
    this.told = null;
    this.seen = new IntersectionObserver((entries) => {
      for (const e of entries) { e.target.visible = e.isIntersecting; if (e.isIntersecting && e.target.stale) this.paint(e.target); }
    }, { rootMargin: "200px" });
    signal.addEventListener("abort", () => this.seen.disconnect());
  }

  /** Ask for what is new; everything anew where `anew`. True where something has come. */
  async refresh(anew = false) {
    const t = anew || !this.told?.whole || this.long ? null : this.told;
    const query = { run: this.run, x: this.state.x, points: POINTS, names: this.wanted, after: t ? t.last : -1, version: t ? t.version : 0 };
    const asked = JSON.stringify([query.x, query.names]);
    const found = await get("curves", query, this.signal);
    if (asked !== JSON.stringify([this.state.x, this.wanted])) return false; // changed meanwhile
    const other = t && found.known !== t.known;
    if (found.fresh) Object.assign(this, { names: found.names, charts: found.charts.filter(this.pick), stages: found.stages, curves: found.curves });
    else for (const [name, c] of Object.entries(found.curves)) {
      const before = (this.curves[name] ??= { x: [], y: [], n: 0, odd: 0 });
      Object.assign(before, { x: before.x.concat(c.x), y: before.y.concat(c.y), n: before.n + c.n, odd: before.odd + c.odd }); // other arrays: plotly sees it
    }
    const grown = found.fresh || Object.values(found.curves).some((c) => c.n);
    this.axes = found.axes;
    this.told = found;
    this.long = Object.values(this.curves).some((c) => c.x.length > 3 * POINTS);
    if (other) return this.refresh(true); // a stage began, or a metric
    if (grown) this.redraw();
    return grown;
  }

  /** What is asked for: nothing in particular until the charts are known. */
  get wanted() {
    const shown = this.charts.flatMap((c) => c.names);
    return shown.length ? [...new Set([...shown, ...this.state.more])].slice(0, 60) : [];
  }

  /** Draw all charts with the state as it is now. */
  redraw() {
    const wanted = [...this.charts, ...this.state.more.map((n) => ({ title: n, names: [n], own: true }))]
      .filter((c) => c.own || c.names.some((n) => this.curves[n]?.n));
    const keys = wanted.map((c) => c.title);
    for (const [key, box] of this.boxes) if (!keys.includes(key)) { box.remove(); this.seen.unobserve(box.plot); this.boxes.delete(key); }
    wanted.forEach((c) => {
      let box = this.boxes.get(c.title);
      if (!box) {
        const plot = h("div", { class: "chart", role: "img" });
        const drop = c.own && h("button", { type: "button", title: `Remove the chart of ${c.title}`, onclick: () => this.onremove?.(c.title) }, "Remove");
        box = h("figure", { class: "curve" }, h("figcaption", {}, h("span", {}, c.title), drop), plot, h("p", { class: "quiet odd" }));
        box.plot = plot;
        this.boxes.set(c.title, box);
        this.element.append(box);
        this.seen.observe(plot);
      }
      box.plot.spec = c;
      box.plot.stale = true;
      if (box.plot.visible) this.paint(box.plot);
    });
    if (!wanted.length) fill(this.element, this.none && h("p", { class: "quiet" }, this.none));
    else this.element.querySelector(":scope > p")?.remove();
  }

  paint(plot) {
    plot.stale = false;
    const { names } = plot.spec, weight = this.state.smoothing, traces = [], said = [];
    let odd = 0;
    names.forEach((name, i) => {
      const c = this.curves[name];
      if (!c?.x.length) { odd += c?.odd || 0; return; }
      odd += c.odd;
      const line = { color: COLOURS[i % COLOURS.length], width: 1.6, dash: DASHES[Math.floor(i / 2) % 4] };
      const mode = c.x.length <= 40 ? "lines+markers" : "lines", base = { x: c.x, type: "scatter", name: plain(name, 60), mode, line, marker: { size: 4 } };
      if (weight > 0) {
        traces.push({ ...base, y: c.y, opacity: 0.25, mode: "lines", line: { ...line, dash: "solid", width: 1 }, showlegend: false, hoverinfo: "skip" });
        traces.push({ ...base, y: smooth(c.y, weight) });
      } else traces.push({ ...base, y: c.y });
      said.push(`${name} ${number(c.y.at(-1))}`);
    });
    plot.setAttribute("aria-label", `${plot.spec.title} against ${nameAxis(this.state.x)}, last: ${said.join(", ") || "no value"}`);
    plot.parentElement.querySelector(".odd").textContent = odd ? `${odd} value${odd > 1 ? "s" : ""} not finite, left out` : "";
    const cuts = this.stages.slice(1).filter((s) => s.x !== null);
    draw(plot, traces, {
      xaxis: { title: { text: plain(nameAxis(this.state.x)), standoff: 4 } }, showlegend: traces.length > 1 && names.length > 1,
      legend: { orientation: "h", y: -0.34, yanchor: "top", font: { size: 10 } }, uirevision: this.state.x, margin: { l: 52, r: 10, t: 16, b: 40 },
      shapes: cuts.map((s) => ({ type: "line", x0: s.x, x1: s.x, y0: 0, y1: 1, yref: "paper", line: { dash: "dot", width: 1, color: "#808890" } })),
      annotations: cuts.slice(0, 8).map((s) => ({ x: s.x, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, font: { size: 10 }, text: plain(s.name, 60) })),
    });
  }
}
