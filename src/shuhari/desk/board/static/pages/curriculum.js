// What a run asked, how hard it was, and which problems are never solved.

import { get } from "../api.js";
import { COLOURS, draw, plain } from "../chart.js";
import { choice, field, fill, h, number, table } from "../dom.js";
import { every, link, remember, tell } from "../main.js";
import { Charts } from "../parts/curves.js";

export const title = "Curriculum";
const PAGE = 50;
const HEADS = [["problem", "Problem"], ["task", "Task"], ["rate", "Solved"], ["solved", "Right"], ["asked", "Asked"], ["first", "First step"], ["last", "Last step"]];
const ONLY = [["", "all"], ["never", "never solved"], ["always", "always solved"], ["between", "between"]];
const SHARES = [["never", "never solved"], ["between", "sometimes"], ["always", "always"]];
const FILLS = ["rgba(192,80,77,.55)", "rgba(217,151,6,.45)", "rgba(47,158,110,.5)"], PATTERNS = ["/", "", "."];
const percent = (x) => `${(100 * x).toFixed(1)} %`;

export async function show(main, query, { signal }) {
  if (!query.run) throw new Error("which run? #/curriculum?run=NAME");
  const run = query.run, state = { task: query.task || "", words: query.words || "", only: query.only || "", order: query.order || "rate",
    down: query.down === "true", offset: Number(query.offset) || 0 };
  const told = h("div"), solved = h("div", { class: "chart", role: "img" }), shares = h("div", { class: "chart", role: "img" }), rates = h("div", { class: "chart", role: "img" });
  const own = h("div", { class: "charts" }), body = h("tbody"), foot = h("p", { class: "foot" }), tasks = h("span");
  const figure = (name, plot) => h("figure", { class: "curve" }, h("figcaption", {}, name), plot);
  const search = h("input", { type: "search", value: state.words, placeholder: "problem", oninput: () => change({ words: search.value, offset: 0 }) });
  const heads = HEADS.map(([key, text]) => h("th", { scope: "col", class: ["problem", "task"].includes(key) ? null : "n" }, h("button", { type: "button", class: "sort",
    onclick: () => change({ order: key, down: state.order === key ? !state.down : false, offset: 0 }) }, text)));
  main.append(h("h1", {}, "Curriculum of ", h("a", { href: link("run", { run }) }, run)), told,
    h("div", { class: "charts" }, figure("Share of samples that were right, by task", solved), figure("Problems of a step", shares), figure("Problems by the share of right samples", rates)),
    own, h("h2", {}, "Problems"),
    h("form", { class: "tools", onsubmit: (e) => e.preventDefault() }, field("Search", search), tasks, field("Which", choice(ONLY, state.only, (only) => change({ only, offset: 0 })))),
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads)), body)), foot);

  let asked = 0, seen = "", hard = "", named = "";
  async function refresh() {
    const mine = ++asked, found = await get("curriculum", { run, ...state, limit: PAGE }, signal), text = JSON.stringify(found);
    if (mine !== asked || text === seen) return;
    seen = text;
    if (!found) { fill(told, h("p", { class: "quiet" }, "The counts are being read.")); return; }
    showTasks(told, found);
    const names = found.tasks.map((t) => t.task);
    if (named !== names.join("\n")) {
      named = names.join("\n");
      fill(tasks, names.length > 1 && field("Task", choice([["", "all"], ...names], state.task, (task) => change({ task, offset: 0 }))));
    }
    const at = document.activeElement.closest?.("[data-row]")?.dataset.row;
    fill(body, found.problems.map(row));
    if (at) body.querySelector(`[data-row="${CSS.escape(at)}"]`)?.focus();
    HEADS.forEach(([key], i) => heads[i].setAttribute("aria-sort", key !== state.order ? "none" : state.down ? "descending" : "ascending"));
    fill(foot, h("span", {}, `${found.total} problem${found.total === 1 ? "" : "s"}`), found.total > PAGE && h("span", { class: "pager" },
      h("button", { type: "button", disabled: !state.offset, onclick: () => change({ offset: Math.max(0, state.offset - PAGE) }) }, "Back"),
      `${state.offset + 1} to ${Math.min(state.offset + PAGE, found.total)}`,
      h("button", { type: "button", disabled: state.offset + PAGE >= found.total, onclick: () => change({ offset: state.offset + PAGE }) }, "On")));
    const n = found.rates.length;
    rates.setAttribute("aria-label", `problems by share of right samples: ${found.rates.map((c, i) => `${i / n} to ${(i + 1) / n}: ${c}`).join(", ")}`);
    draw(rates, [{ type: "bar", x: found.rates.map((_, i) => (i + 0.5) / n), y: found.rates, width: 0.9 / n, marker: { color: COLOURS[0] } }],
      { margin: { l: 52, r: 10, t: 10, b: 40 }, xaxis: { title: { text: "share right" }, range: [0, 1] }, yaxis: { rangemode: "tozero" }, hovermode: "closest" });
  }
  async function refreshDifficulty() {
    const found = await get("difficulty", { run }, signal), text = JSON.stringify(found);
    if (text === hard || !found) return;
    hard = text;
    const lines = Object.entries(found.solved), x = found.shares.x;
    solved.setAttribute("aria-label", `share of right samples, last: ${lines.map(([task, c]) => `${task} ${percent(c.y.at(-1))}`).join(", ")}`);
    draw(solved, lines.map(([task, c], i) => ({ x: c.x, y: c.y, type: "scatter", mode: c.x.length > 40 ? "lines" : "lines+markers", marker: { size: 4 }, name: plain(task, 60), line: { color: COLOURS[i % COLOURS.length], dash: ["solid", "dot", "dash"][i % 3] } })),
      { margin: { l: 52, r: 10, t: 10, b: 40 }, yaxis: { range: [-0.02, 1.02] }, xaxis: { title: { text: "step", standoff: 4 } }, showlegend: lines.length > 1 });
    shares.setAttribute("aria-label", `problems of the last steps: ${SHARES.map(([key, name]) => `${name} ${percent(found.shares[key].at(-1) ?? 0)}`).join(", ")}`);
    draw(shares, SHARES.map(([key, name], i) => ({ x, y: found.shares[key], type: "scatter", mode: "lines", stackgroup: "one", name, line: { width: 0.5, color: FILLS[i] }, fillcolor: FILLS[i], fillpattern: { shape: PATTERNS[i] } })),
      { margin: { l: 52, r: 10, t: 10, b: 40 }, yaxis: { range: [0, 1] }, xaxis: { title: { text: "step", standoff: 4 } }, legend: { orientation: "h", y: -0.3 } });
  }
  const again = () => refresh().catch((error) => { if (!signal.aborted) tell(error.message, true); });
  function change(some) {
    Object.assign(state, some);
    remember({ ...state, order: state.order === "rate" ? null : state.order, down: state.down || null, offset: state.offset || null });
    again();
  }
  const row = (p) => h("tr", { "data-row": `${p.task}/${p.problem}`, tabindex: 0 },
    h("td", { title: p.kept ? null : "The run keeps no group of it" }, p.find === null || !p.kept ? p.problem : h("a", { href: link("rollouts", { run, problem: p.find }) }, p.problem)), h("td", {}, p.task),
    h("td", { class: "n" }, percent(p.rate)), h("td", { class: "n" }, p.solved), h("td", { class: "n" }, p.asked),
    h("td", { class: "n" }, String(p.first)), h("td", { class: "n" }, String(p.last)));

  const charts = new Charts(own, run, { x: "step", smoothing: 0, more: [] }, signal, (c) => c.title.startsWith("curriculum/"), "");
  await Promise.all([refresh(), refreshDifficulty()]);
  const reported = async () => { await charts.refresh(); own.hidden = !charts.charts.length; };
  reported().catch((error) => { if (!signal.aborted) tell(error.message, true); });
  let turn = 0;
  every(3, signal, async () => { if (turn++) { await refresh(); await refreshDifficulty(); await reported(); } });
}

function showTasks(at, found) {
  const stages = Object.entries(found.curricula);
  const problems = found.tasks.reduce((n, t) => n + t.problems, 0);
  fill(at, stages.length > 0 && h("dl", {}, stages.map(([stage, text]) => [h("dt", {}, `Curriculum, ${stage}`), h("dd", {}, h("code", {}, text))])),
    problems ? table(["Task", "Problems", "Samples", "Right", "Share", "Never solved", "Always solved"],
      found.tasks.map((t) => [t.task, t.problems, t.asked, t.solved, h("span", { class: "end" }, percent(t.solved / (t.asked || 1))), t.never, t.always]))
      : h("p", { class: "quiet" }, "No problem was counted: the run samples none, nothing graded them right or wrong, or it is of an old format."));
}
