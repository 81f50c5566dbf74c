// The list of runs: search, status, order; the newest first.

import { get } from "../api.js";
import { choice, field, fill, h, number } from "../dom.js";
import { every, link, remember } from "../main.js";

export const title = "Runs";
const PAGE = 50;
const HEADS = [["name", "Run"], ["status", "Status"], ["recipe", "Recipe"], ["task", "Task"], ["step", "Step"],
  ["score", "Score"], ["date", "Last written"]];
const STATUSES = [["", "any"], "running", "complete", "failed", "stopped", "unreadable"];

export async function show(main, query, { signal }) {
  const state = { words: query.words || "", status: query.status || "", order: query.order || "date",
    down: query.down !== "false", offset: Number(query.offset) || 0 };
  const body = h("tbody"), foot = h("p", { class: "foot" });
  const search = h("input", { type: "search", value: state.words, placeholder: "name, recipe, task, status",
    oninput: () => change({ words: search.value, offset: 0 }) });
  const heads = HEADS.map(([key, text]) => h("th", { scope: "col" }, h("button", { type: "button", class: "sort",
    onclick: () => change({ order: key, down: state.order === key ? !state.down : key !== "name", offset: 0 }) }, text)));
  main.append(h("h1", {}, title),
    h("form", { class: "tools", onsubmit: (e) => e.preventDefault() },
      field("Search", search), field("Status", choice(STATUSES, state.status, (v) => change({ status: v, offset: 0 })))),
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads)), body)), foot);

  let seen = "";
  async function refresh() {
    const found = await get("runs", { ...state, limit: PAGE }, signal);
    const text = JSON.stringify(found);
    if (text === seen) return;
    seen = text;
    const focused = document.activeElement.closest?.("[data-row]")?.dataset.row;
    fill(body, found.runs.map(row));
    if (focused) body.querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
    HEADS.forEach(([key], i) => heads[i].setAttribute("aria-sort", key !== state.order ? "none" : state.down ? "descending" : "ascending"));
    fill(foot, summary(found), pager(found));
  }
  function change(some) {
    Object.assign(state, some);
    remember({ ...state, down: state.down ? null : "false", offset: state.offset || null });
    refresh().catch((error) => { if (!signal.aborted) throw error; });
  }
  const summary = (found) => h("span", {}, found.total
    ? `${found.total} run${found.total > 1 ? "s" : ""} in ${found.root}/${found.pending ? `, ${found.pending} not read yet` : ""}`
    : `no run${state.words || state.status ? " like this" : ""} in ${found.root}/: shuhari train makes one`);
  const pager = (found) => found.total > PAGE && h("span", { class: "pager" },
    h("button", { type: "button", disabled: !state.offset, onclick: () => change({ offset: Math.max(0, state.offset - PAGE) }) }, "Newer"),
    `${state.offset + 1} to ${Math.min(state.offset + PAGE, found.total)}`,
    h("button", { type: "button", disabled: state.offset + PAGE >= found.total, onclick: () => change({ offset: state.offset + PAGE }) }, "Older"));
  await every(2, signal, refresh);
}

function row(run) {
  return h("tr", { "data-row": run.name, tabindex: 0 },
    h("td", {}, h("a", { href: link("run", { run: run.name }) }, run.name)),
    h("td", {}, h("span", { class: `status ${run.status}`, title: run.note || null }, run.status)),
    h("td", {}, run.recipe), h("td", {}, run.task),
    h("td", { class: "n" }, run.step < 0 ? "–" : run.total ? `${run.step}/${run.total}` : run.step),
    h("td", { class: "n", title: run.score_name }, number(run.score)), h("td", {}, run.date));
}
