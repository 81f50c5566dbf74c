// Beds: what methods are measured on. One bed: its card, and its methods, best first.

import { get } from "../api.js";
import { draw } from "../chart.js";
import { choice, field, fill, h, number, table } from "../dom.js";
import { link, remember } from "../main.js";
import { layBands, traceBands } from "../parts/bands.js";

export const title = "Beds";
const READINGS = ["area", "final", "best", "last=3"];

export async function show(main, query, { signal }) {
  if (query.bed) return showBed(main, query, signal);
  main.append(h("h1", {}, title), h("p", {}, "Reading the cards…"));
  const { beds } = await get("beds", {}, signal);
  const rows = beds.map((bed) => h("tr", { "data-row": bed.bed, tabindex: 0 },
    h("td", {}, h("a", { href: link("beds", { bed: bed.bed }) }, bed.bed)), h("td", {}, bed.summary), h("td", { class: "n" }, bed.methods),
    ...(bed.card ? [h("td", {}, bed.metric), ...["start", "end", "control", "mde"].map((k) => h("td", { class: "n" }, number(bed[k]))),
      h("td", { class: "n" }, bed.seeds), h("td", { class: "n" }, bed.run_s === null ? "–" : bed.run_s.toFixed(1))]
      : [h("td", { class: "quiet" }, "no card"), ...Array.from({ length: 6 }, () => h("td", { class: "n" }))])));
  fill(main, h("h1", {}, title), h("p", { class: "quiet" }, "Means over the seeds of a card: the baseline at the start and at the end of its budget, the control, "
    + "which must gain, and the smallest difference of the mean over the budget that looks at 5, 8 and 12 seeds would find (MDE)."),
    table(["Bed", "What it is", "Methods", "Score", "Start", "End", "Control", "MDE", "Seeds", "Seconds a run"], rows, { class: "list" }));
}

async function showBed(main, query, signal) {
  const ask = (metric) => get("beds", { bed: query.bed, metric }, signal);
  const found = await ask(query.metric), body = h("div");
  main.append(h("p", {}, h("a", { href: link("beds") }, "All beds")), h("h1", {}, found.bed), h("p", {}, found.summary), body);
  const update = (now) => {
    const [metric, reading] = now.by.includes(":") ? [now.by.slice(0, now.by.indexOf(":")), now.by.slice(now.by.indexOf(":") + 1)] : [now.by, "final"];
    const change = async (m, r) => {
      remember({ metric: `${m}:${r}` });
      update(await ask(`${m}:${r}`));
    };
    const metrics = Object.entries(now.metrics).map(([name, n]) => [name, `${name} (${n} method${n > 1 ? "s" : ""})`]);
    const readings = READINGS.includes(reading) ? READINGS : [reading, ...READINGS];
    fill(body, h("h2", {}, "Methods, best first"),
      metrics.length ? h("div", { class: "tools" }, field("Metric", choice(metrics, metric, (v) => change(v, reading))), field("Reading", choice(readings, reading, (v) => change(metric, v)))) : null,
      now.methods.length ? methods(now) : h("p", {}, h("span", {}, "Nothing was measured here: "), h("code", {}, `shuhari claim METHOD --bed ${now.bed}`), " does."),
      now.others.length ? h("p", { class: "quiet" }, "Without that number: ", now.others.map((r, i) => [i ? ", " : "", r.claim ? h("a", { href: link("claim", { method: r.method }) }, r.method) : r.method, ` ${r.words}`])) : null,
      h("h2", {}, "Card"), card(now));
  };
  update(found);
}

function methods(now) {
  return table(["Method", `${now.by} less the baseline's`, "95 % interval", "Seeds", "Verdict of its own claim"], now.methods.map((r) =>
    h("tr", { "data-row": r.method, tabindex: 0 }, h("td", {}, r.claim ? h("a", { href: link("claim", { method: r.method }) }, r.method) : r.method),
      h("td", { class: "n" }, number(r.value)), h("td", { class: "n" }, `[${number(r.low)}, ${number(r.high)}]`), h("td", { class: "n" }, r.seeds), h("td", {}, r.words))), { class: "list" });
}

function card(now) {
  if (!now.card.card) return h("p", {}, "No card: ", h("code", {}, `shuhari claim --card ${now.bed}`), " makes one.");
  const budget = Object.entries(now.card.budget).map(([unit, n]) => `${number(n)} ${unit}`).join(", ");
  const chart = h("div", { class: "chart", role: "img", "aria-label": `${now.metric} of the card's arms` });
  if (Object.keys(now.curves).length) queueMicrotask(() => draw(chart, traceBands(now.curves), layBands(now.unit, now.metric)));
  const rows = now.numbers.map((n) => [n.metric, n.random, n.start, n.end, n.control, n.spread, n.mde]);
  return h("div", {}, h("p", {}, `${now.card.seeds} seeds, ${budget} each`, now.card.run_s === null ? "" : `, ${now.card.run_s.toFixed(1)} s a run`),
    Object.keys(now.curves).length ? chart : null,
    table(["Number", "Random", "Start", "End", "Control", "Spread of a pair", "MDE"], rows),
    h("p", { class: "quiet" }, "Random: an untrained policy, as results tell. Spread: the standard deviation of the baseline less its redraw, of the mean over the budget."));
}
