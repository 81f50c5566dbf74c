// The list of runs: search, status, order; the newest first. Some can be selected: compared, tagged, renamed, deleted.

import { get, hasToken, NO_TOKEN, post } from "../api.js";
import { choice, field, fill, h, number, sparkline } from "../dom.js";
import { every, link, remember, tell } from "../main.js";
import { ask } from "../parts/dialog.js";

export const title = "Runs";
const PAGE = 50;
const HEADS = [["name", "Run"], ["status", "Status"], ["recipe", "Recipe, what differs"], ["task", "Task"], ["step", "Step"],
  ["score", "Score"], ["", "Curve"], ["", "Findings"], ["date", "Last written"], ["", "Tags"], ["", "Note"]];
const STATUSES = [["", "any"], "running", "complete", "failed", "stopped", "unreadable"];

export async function show(main, query, { signal }) {
  const state = { words: query.words || "", status: query.status || "", order: query.order || "date", all: query.all === "true",
    down: query.down !== "false", offset: Number(query.offset) || 0 };
  const chosen = new Map(), rows = new Map(); // name -> its run; name -> {text, tr}
  const body = h("tbody"), foot = h("p", { class: "foot" }), acts = h("div", { class: "acts", role: "toolbar", "aria-label": "Selected runs" });
  const search = h("input", { type: "search", class: "wide", value: state.words, placeholder: "name, recipe, task, tag:x",
    oninput: () => change({ words: search.value, offset: 0 }) });
  const heads = HEADS.map(([key, text]) => h("th", { scope: "col", class: ["step", "score"].includes(key) ? "n" : null }, key ? h("button", { type: "button", class: "sort",
    onclick: () => change({ order: key, down: state.order === key ? !state.down : key !== "name", offset: 0 }) }, text) : text));
  const all = h("input", { type: "checkbox", "aria-label": "Select all runs of this page", onchange: () => {
    for (const box of body.querySelectorAll("input[type=checkbox]")) if (box.checked !== all.checked) box.click();
  } });
  main.append(h("h1", {}, title),
    h("form", { class: "tools", onsubmit: (e) => e.preventDefault() },
      field("Search", search), field("Status", choice(STATUSES, state.status, (v) => change({ status: v, offset: 0 }))),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: state.all, onchange: (e) => change({ all: e.target.checked, offset: 0 }) }), " of claims and studies too")), acts,
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, all), heads)), body)), foot);

  let asked = 0;
  async function refresh() {
    const mine = ++asked, found = await get("runs", { ...state, limit: PAGE }, signal);
    if (mine !== asked) return; // a later question has overtaken this one
    const now = document.activeElement, at = now.closest?.("[data-row]")?.dataset.row;
    let changed = false; // what is selected may be another thing to do now
    const made = found.runs.map((run) => {
      const text = JSON.stringify(run), kept = rows.get(run.name);
      const was = chosen.get(run.name)?.status;
      if (was) chosen.set(run.name, run);
      changed ||= Boolean(was) && was !== run.status;
      if (kept?.text === text) return kept.tr;
      const tr = row(run);
      rows.set(run.name, { text, tr });
      return tr;
    });
    if (made.length !== body.children.length || made.some((tr, i) => tr !== body.children[i])) {
      fill(body, made);
      if (now.isConnected && now !== document.body) now.focus();
      else if (at) body.querySelector(`[data-row="${CSS.escape(at)}"]`)?.focus();
    }
    if (changed) showActs();
    HEADS.forEach(([key], i) => key && heads[i].setAttribute("aria-sort", key !== state.order ? "none" : state.down ? "descending" : "ascending"));
    const told = JSON.stringify([found.total, found.hidden, found.pending, found.left_out, state]);
    if (foot.dataset.told !== told) { foot.dataset.told = told; fill(foot, summary(found), found.left_out && h("span", {}, found.left_out), pager(found)); }
  }
  const again = () => refresh().catch((error) => { if (!signal.aborted) tell(error.message, true); });
  function change(some) {
    Object.assign(state, some);
    remember({ ...state, down: state.down ? null : "false", offset: state.offset || null, all: state.all || null });
    again();
  }
  const summary = (found) => h("span", {}, found.total
    ? `${found.total} run${found.total > 1 ? "s" : ""} in ${found.root}/${found.pending ? `, ${found.pending} not read yet` : ""}${more(found)}`
    : `no run${state.words || state.status ? " like this" : ""} in ${found.root}/: shuhari train makes one${more(found)}`);
  const more = (found) => (found.hidden ? `; ${found.hidden} more were made by claims or studies` : "");
  const pager = (found) => found.total > PAGE && h("span", { class: "pager" },
    h("button", { type: "button", disabled: !state.offset, onclick: () => change({ offset: Math.max(0, state.offset - PAGE) }) }, "Newer"),
    `${state.offset + 1} to ${Math.min(state.offset + PAGE, found.total)}`,
    h("button", { type: "button", disabled: state.offset + PAGE >= found.total, onclick: () => change({ offset: state.offset + PAGE }) }, "Older"));

  function row(run) {
    const box = h("input", { type: "checkbox", "aria-label": `Select ${run.name}`, checked: chosen.has(run.name), onchange: () => {
      if (box.checked) chosen.set(run.name, run); else chosen.delete(run.name);
      showActs();
    } });
    const bad = run.status === "failed" || run.status === "unreadable";
    return h("tr", { "data-row": run.name, tabindex: 0 }, h("td", {}, box),
      h("td", { class: "named" }, h("a", { href: link("run", { run: run.name }) }, run.name)),
      h("td", {}, h("span", { class: `status ${run.status}` }, run.status)),
      h("td", { class: "differs", title: run.changes?.join("\n") || null }, h("span", {}, run.recipe), run.changes?.length > 0 && h("code", {}, run.changes.join(", "))), h("td", {}, run.task),
      h("td", { class: "n" }, run.step < 0 ? "–" : run.total ? `${run.step}/${run.total}` : run.step),
      h("td", { class: "n", title: run.score_name || null }, number(run.score), run.score_of && h("span", { class: "quiet" }, ` ${run.score_of}`)),
      h("td", {}, run.curve && sparkline(run.curve, `${run.score_name}: ${number(run.curve[0])} to ${number(run.curve.at(-1))}`)),
      h("td", {}, tellFindings(run)),
      h("td", { class: "date" }, run.date),
      h("td", {}, run.tags.map((tag) => [h("button", { type: "button", class: "tag", title: `Only runs with the tag ${tag}`,
        onclick: () => { search.value = `tag:${tag}`; change({ words: search.value, offset: 0 }); } }, tag), " "])),
      h("td", { class: bad ? "note bad" : "note quiet", title: run.note || null }, run.note.trim().split("\n")[0]));
  }

  // What `diagnose` finds: alarms first, by name; a dash if it finds nothing, nothing if it was not asked yet.
  function tellFindings(run) {
    if (!run.findings) return null;
    if (!run.findings.length) return h("span", { class: "quiet" }, "–");
    const names = [...run.findings].sort((a, b) => b[2] - a[2]).map(([rule]) => rule), alarm = run.findings.some(([, , a]) => a);
    return h("a", { href: link("run", { run: run.name }), class: alarm ? "bad" : null, title: run.findings.map(([rule, stage]) => `${rule} (stage ${stage})`).join("\n") },
      names.length > 1 ? `${names[0]} +${names.length - 1}` : names[0]);
  }

  function showActs() {
    const names = [...chosen.keys()], busy = [...chosen.values()].filter((r) => r.status === "running");
    const may = (f, why = "") => ({ type: "button", disabled: !hasToken() || Boolean(why), title: hasToken() ? why || null : NO_TOKEN, onclick: f });
    all.checked = names.length > 0 && [...body.querySelectorAll("input[type=checkbox]")].every((b) => b.checked);
    if (!names.length) { fill(acts); return; }
    const arms = names.map((name) => `arm=${encodeURIComponent(name)}`).join("&");
    const held = busy.length ? `${busy[0].name} is being written` : "";
    fill(acts, h("span", {}, `${names.length} selected`), names.length > 1 ? h("a", { href: `#/compare?${arms}` }, "Compare") : h("span", { class: "quiet" }, "Compare: select another"),
      h("button", may(tagThem), "Tag…"), h("button", may(renameIt, names.length > 1 ? "One run at a time" : held), "Rename…"),
      h("button", may(deleteThem, held), "Delete…"),
      h("button", { type: "button", onclick: () => { for (const b of body.querySelectorAll("input:checked")) b.checked = false; chosen.clear(); showActs(); } }, "Clear"),
      !hasToken() && h("span", { class: "quiet" }, NO_TOKEN));
  }
  const list = (names) => h("ul", { class: "names" }, names.map((name) => h("li", {}, name)));
  async function change_(address, query, said) {
    try {
      const found = await post(address, query);
      tell(said(found), Boolean(found.failed && Object.keys(found.failed).length));
    } catch (error) { tell(error.message, true); return false; }
    await again();
    return true;
  }
  async function deleteThem() {
    const names = [...chosen.keys()], n = names.length;
    const yes = await ask(`Delete ${n > 1 ? `${n} runs` : "this run"}?`,
      [h("p", {}, "What the library has written of them is removed for good: metrics, rollouts, checkpoints."), list(names)], "Delete", () => true, true);
    if (!yes) return;
    await change_("delete", { run: names }, (found) => {
      for (const name of found.removed) { chosen.delete(name); rows.delete(name); }
      return [`Deleted: ${found.removed.join(", ") || "nothing"}`, ...Object.entries(found.failed).map(([name, why]) => `${name}: ${why}`),
        ...Object.entries(found.left).map(([name, left]) => `${name}: ${left.join(", ")} stay, which the library has not written`)].join("\n");
    });
    showActs();
  }
  async function renameIt() {
    const [name] = chosen.keys();
    const to = h("input", { type: "text", value: name, required: true, maxlength: 200, autofocus: true, autocomplete: "off", spellcheck: "false" });
    await ask(`Rename ${name}`, [field("New name, up to three names with / between", to)], "Rename", async () => {
      const other = to.value.trim();
      if (!other || other === name) return "Give another name";
      try {
        tell(`Renamed ${name} to ${(await post("rename", { run: name, to: other })).name}`);
      } catch (error) { return error.message; }
      chosen.delete(name); showActs(); again();
      return true;
    });
  }
  async function tagThem() {
    const names = [...chosen.keys()], there = [...new Set([...chosen.values()].flatMap((r) => r.tags))].sort();
    const add = h("input", { type: "text", autofocus: true, autocomplete: "off", spellcheck: "false" });
    const boxes = there.map((tag) => h("label", { class: "check" }, h("input", { type: "checkbox", value: tag }), ` ${tag}`));
    const given = await ask(`Tags of ${names.length > 1 ? `${names.length} runs` : names[0]}`, [names.length > 1 && list(names),
      field("Add, words with spaces between", add), boxes.length > 0 && h("fieldset", {}, h("legend", {}, "Take away"), boxes)], "Save",
      (form) => ({ add: add.value.split(/\s+/).filter(Boolean), remove: [...form.querySelectorAll("input:checked")].map((b) => b.value) }));
    if (given && (given.add.length || given.remove.length)) {
      await change_("tag", { run: names, ...given }, () => `Tags of ${names.join(", ")} are saved`);
      showActs();
    }
  }
  await every(2, signal, refresh);
}
