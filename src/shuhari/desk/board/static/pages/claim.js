// One claim: what is said, the verdict, the numbers behind it, and how it came about.

import { get } from "../api.js";
import { draw } from "../chart.js";
import { field, choice, fill, h, number, table } from "../dom.js";
import { every, link, remember } from "../main.js";
import { layBands, traceBands } from "../parts/bands.js";
import { drawEffect, SIGN, tellEffect } from "../parts/effects.js";
import { linkBed } from "../parts/links.js";

export const title = "Claim";

export async function show(main, query, { signal }) {
  if (!query.method) throw new Error("which claim? the address lacks method");
  let seen = "";
  async function refresh() {
    const found = await get("claim", { method: query.method }, signal);
    const text = JSON.stringify(found);
    if (text === seen) return;
    const first = !seen;
    seen = text;
    if (first) render(main, found, query);
    else fill(main.querySelector("#freshness"), found.freshness ?? "being looked at");
  }
  await every(5, signal, refresh);
}

function render(main, found, query) {
  fill(main, h("h1", {}, found.method), found.summary && h("p", {}, found.summary), h("p", {}, found.says), verdict(found), paper(found));
  if (found.curves && Object.keys(found.curves).length) main.append(curves(found, query));
  if (found.checks) main.append(...checks(found), ...history(found), protocol(found));
  if (found.notes?.length) main.append(h("h2", {}, "Notes"), h("ul", {}, found.notes.map((note) => h("li", {}, note))));
  main.append(h("h2", {}, "Measure it"), h("pre", {}, found.command));
}

const entry = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];

function verdict(found) {
  if (!found.checks) return h("p", { class: "quiet" }, "Not measured.");
  return h("section", { class: "card", "aria-label": "Verdict" }, h("p", { class: `verdict ${SIGN[found.verdict] || ""}` }, found.words),
    h("dl", {},
      entry("effect", drawEffect(found), ` ${tellEffect(found)} margins: ${found.effect_text}`),
      entry("bed", linkBed(found.bed)), entry("detectable", `${found.detectable} margins`),
      entry("premise", found.premise ? (found.premise.met ? "met" : `fails: ${found.premise.failing.join("; ")}`) : "–"),
      entry("guard", found.guard ?? "none"), entry("because", found.because ?? "–"),
      found.rivals?.length > 1 ? entry("rivals", found.rivals.map((r) => `${r.name}: ${r.word}${r.aside ? " (set aside: it fails the guard)" : ""}`).join("; ")) : [],
      found.objection ? entry("known against it", found.objection) : [],
      found.gaps?.length ? entry("lacks", found.gaps.join("; ")) : [],
      found.exploratory?.length ? entry("exploratory", found.exploratory.join("; ")) : [],
      entry("state", h("span", { id: "freshness" }, found.freshness ?? "being looked at")),
      entry("result of", found.from === "shuhari" ? "the library" : `${found.from}/claims/${found.method}.json`)));
}

function paper(found) {
  const about = found.paper || {};
  if (!about.title) return null;
  const known = /^\d{4}\.\d{4,5}(v\d+)?$/.test(about.arxiv || "");
  return h("p", {}, `${about.title}${about.year ? ` (${about.year})` : ""}`, about.arxiv && [", ", known
    ? h("a", { href: `https://arxiv.org/abs/${about.arxiv}`, rel: "noreferrer", target: "_blank" }, `arXiv:${about.arxiv}`) : about.arxiv],
  about.changes && h("span", { class: "quiet" }, `. Changes: ${about.changes}`));
}

function curves(found, query) {
  const names = Object.keys(found.curves), wanted = (found.headline.metric || "").split(":")[0];
  let metric = names.includes(query.metric) ? query.metric : names.includes(wanted) ? wanted : names[0];
  const chart = h("div", { class: "chart", role: "img", "aria-label": "Curves of the arms" });
  const redraw = () => draw(chart, traceBands(found.curves[metric]), layBands(found.unit, metric));
  queueMicrotask(redraw);
  return h("section", {}, h("h2", {}, "Curves of the arms"),
    h("div", { class: "tools" }, field("Metric", choice(names, metric, (v) => { metric = v; remember({ metric }); redraw(); }))), chart,
    h("p", { class: "quiet" }, "Means over seeds with a 95 % bootstrap band, which says less than an interval of a test."),
    table(["arm", "differs from the method in", "spent", "diverged"], Object.entries(found.arms).map(([name, arm]) => [name,
      arm.differs.map((text) => h("div", {}, text)), Object.entries(arm.ledger).filter(([k]) => !k.includes("/")).map(([k, v]) => `${number(v)} ${k.replaceAll("_", " ")}`).join(", "),
      arm.diverged.length ? `seeds ${arm.diverged.join(", ")}` : "none"])));
}

function checks(found) {
  const interval = (c) => (c.low === null || c.low === undefined ? "–" : `[${number(c.low)}, ${number(c.high)}]`);
  const name = (c) => (c.other ? `${c.metric} with ${c.other}` : c.metric || c.use || "");
  const rows = found.checks.map((c) => [c.role, name(c), `${c.arm} ${c.direction}, against ${c.factor !== 1 ? `${c.factor} x ` : ""}${c.against}`,
    c.margin, c.effect ?? null, interval(c), c.level ? `${number(100 * c.level)} %` : "–", c.n ?? null,
    h("span", {}, `${c.verdict}${c.why ? ` (${c.why})` : ""}${c.card ? `, by the card of ${c.card}` : ""}`)]);
  const values = found.checks.flatMap((c) => Object.entries(c.values || {}).map(([arm, some]) => [c.role, name(c), arm, some.map(number).join("  ")]));
  return [h("h2", {}, "Checks"), table(["role", "what", "claimed", "margin", "effect", "interval", "level", "pairs", "verdict"], rows),
    h("details", {}, h("summary", {}, "Values of each seed"), table(["role", "what", "arm", "values, by seed"], values))];
}

function history(found) {
  const range = (used) => (used?.length ? `${used[0]} to ${used[1]}` : "–");
  const rows = found.history.map((line) => [line.date, line.verdict, line.seeds, range(line.used), line.try === null ? "older rule" : `${line.try}`, line.commit || "–"]);
  const elsewhere = found.elsewhere.map((r) => [linkBed(r.bed), r.kind === "scale" ? "the same claim" : "exploratory", r.verdict, tellEffect(r), r.seeds]);
  return [h("h2", {}, "History"), table(["date", "verdict", "number of seeds", "seeds", "try", "protocol fixed by commit"], rows),
    elsewhere.length ? h("section", {}, h("h2", {}, "On other beds"), table(["bed", "kind", "verdict", "effect in margins", "seeds"], elsewhere)) : ""];
}

function protocol(found) {
  const sum = Object.entries(found.cpu_s || {}).map(([arm, s]) => `${arm} ${number(s)} s`).join(", ");
  const budget = Object.entries(found.budget || {}).map(([unit, amount]) => `${number(amount)} ${unit}`).join(", ");
  return h("section", {}, h("h2", {}, "Protocol"), h("dl", {},
    entry("budget of each arm", budget || "none: simulated"), entry("looks", `at ${found.looks.join(", ")} seeds`),
    entry("seeds", found.seeds.length ? `${found.seeds.length}: ${found.seeds[0]} to ${found.seeds.at(-1)}` : "–"),
    entry("fixed by", `${found.protocol.hash}, try ${found.protocol.tries}, ${found.protocol.commit ? `commit ${found.protocol.commit}` : found.protocol.why}`),
    entry("tries that could have held", found.tries), sum ? entry("processor time", sum) : [],
    found.model ? entry("policy", `${found.model.use ?? ""} ${found.model.architecture ?? ""}, ${number(found.model.parameters)} parameters`) : []));
}
