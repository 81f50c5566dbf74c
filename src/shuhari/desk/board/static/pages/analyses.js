// Analyses: what `shuhari analyze` has kept of runs here, and the packaged findings.

import { get } from "../api.js";
import { fill, h, number, table } from "../dom.js";

export const title = "Analyses";

export async function show(main, query, { signal }) {
  main.append(h("h1", {}, title), h("p", {}, "Reading what is kept…"));
  const { kept, findings, problems } = await get("analyses", {}, signal);
  fill(main, h("h1", {}, title), problems.map((text) => h("p", { class: "wrong" }, text)),
    h("h2", {}, "Of your runs"),
    kept.length ? kept.map(showKept) : h("p", {}, "Nothing yet: ", h("code", {}, "shuhari analyze"), " lists the questions, and ", h("code", {}, "shuhari analyze NAME RUN"), " answers one."),
    h("h2", {}, "Packaged findings"),
    h("p", { class: "quiet" }, "The same analyses on small runs of the library's own, three seeds; the null is what the number would be without any effect."),
    findings.map(showFinding));
}

function showKept(one) {
  const rows = Object.entries(one.numbers).map(([name, x]) => [name, x.value, interval(x.low, x.high), x.null, x.says]);
  return h("section", {}, h("h3", {}, `${one.analysis} of ${one.of.join(", ")}`),
    table(["Number", "Value", "95 % interval", "Null", "What it is"], rows),
    one.rows.length ? h("details", {}, h("summary", {}, "Table"), table(one.heads, one.rows)) : null,
    one.notes.map((text) => h("p", { class: "quiet" }, text)),
    one.picture ? h("img", { src: `/api/analysis-picture?id=${encodeURIComponent(one.id)}`, alt: `Picture of ${one.analysis}`, loading: "lazy" }) : null);
}

function showFinding(one) {
  const rows = Object.entries(one.numbers).map(([name, x]) => [name, x.values.map(number).join(", "), x.mean, interval(x.low, x.high),
    x.null.some((v) => v !== null) ? x.null.map(number).join(", ") : "", x.says]);
  return h("section", {}, h("h3", {}, one.name), h("p", {}, one.says),
    table(["Number", "Each seed", "Mean", "95 % interval over seeds", "Null", "What it is"], rows),
    one.null ? h("p", { class: "quiet" }, `Null: ${one.null}`) : null);
}

function interval(low, high) {
  return low === null || high === null ? "–" : `[${number(low)}, ${number(high)}]`;
}
