// What a run has kept, used once more: its rollouts under another grader, the update of a step under other settings.

import { get, hasToken, NO_TOKEN, post } from "../api.js";
import { draw } from "../chart.js";
import { choice, field, fill, h, number, table } from "../dom.js";
import { link, remember } from "../main.js";

export const title = "Replay";
const OWN = "", FILE = "file:", LISTED = 30;
const AFTER = { kl: "KL(before || after)", ratio_min: "ratio after, min", ratio_max: "ratio after, max", gap: "|log pi before - stored|" };

export async function show(main, query, { signal }) {
  if (!query.run) throw new Error("which run? #/replay?run=NAME");
  if (!document.querySelector('link[href="/static/replay.css"]'))
    document.head.append(h("link", { rel: "stylesheet", href: "/static/replay.css" }));
  const { run } = query, room = h("div", { class: "replay" }, h("p", { class: "quiet", role: "status" }, "The run is opened…"));
  main.append(h("p", {}, h("a", { href: link("run", { run }) }, run), " / ", h("a", { href: link("rollouts", { run }) }, "Rollouts")), h("h1", {}, title), room);
  const told = await get("replay", { run }, signal);
  if (signal.aborted) return;
  const { steps } = told, last = steps.at(-1);
  if (!steps.length) {
    fill(room, h("p", {}, "This run keeps no groups of episodes, so there is nothing to grade or to learn from once more. "),
      h("p", { class: "quiet" }, "[store] rollouts says how many groups of a step are kept, and [store] groups = [\"all\"] keeps every one; lanes of environments form none."));
    return;
  }
  fill(room, h("p", { class: "quiet" }, `Groups of ${steps.length === 1 ? `step ${last}` : `${steps.length} steps, ${steps[0]} to ${last},`} are kept. Nothing of the run changes by what is asked here. One question at a time, in a process of its own; leaving the page ends it.`),
    hasToken() ? null : h("p", { class: "warn" }, NO_TOKEN));
  showRegrade(room, query, told, signal);
  showWhatIf(room, query, told, signal);
}

// ---------------------------------------------------------------- forms

/** Rows key = value with suggestions. `texts`: key=value, as they are at first; `suggest()`: key -> value as it is. */
function settingRows(id, texts, suggest, changed) {
  const rows = h("div", { class: "rows" }), list = h("datalist", { id });
  const fillList = () => fill(list, Object.entries(suggest()).map(([key, value]) => h("option", { value: key, label: value === "" ? null : `now ${value}` })));
  const pairs = () => [...rows.children].map((row) => [...row.querySelectorAll("input")].map((x) => x.value.trim())).filter(([key]) => key);
  const read = () => pairs().filter(([, value]) => value).map(([key, value]) => `${key}=${value}`);
  const ask = () => { // an error for a key without a value, whose field shows the present one
    const bare = pairs().find(([, value]) => !value);
    if (bare) throw new Error(`${bare[0]} has no value`);
    return read();
  };
  const add = (text = "") => {
    const at = text.indexOf("="), value = h("input", { class: "value", "aria-label": "Value", placeholder: "value", value: at < 0 ? "" : text.slice(at + 1), onchange: () => changed() });
    const key = h("input", { class: "key", list: id, "aria-label": "Setting", placeholder: "setting", spellcheck: "false", autocomplete: "off", value: at < 0 ? text : text.slice(0, at),
      onchange: () => { hint(); changed(); } });
    const hint = () => { value.placeholder = suggest()[key.value] || "value"; };
    const row = h("div", {}, key, " = ", value, h("button", { type: "button", "aria-label": "Remove this setting", onclick: () => { row.remove(); if (!rows.childElementCount) add(); changed(); } }, "Remove"));
    hint();
    rows.append(row);
    return key;
  };
  for (const text of texts.length ? texts : [""]) add(text);
  fillList();
  const more = h("button", { type: "button", onclick: () => add().focus() }, "Another setting");
  return { element: h("fieldset", {}, h("legend", {}, "Settings"), rows, list, more), read, ask, fillList, set: (key) => { const free = [...rows.querySelectorAll(".key")].find((x) => !x.value); const at = free ?? add(); at.value = key; at.dispatchEvent(new Event("change")); at.parentElement.querySelector(".value").focus(); } };
}

/** A button that asks, says how long it takes, and can be stopped. `ask(signal)` gives what `tell` shows below. */
function job(text, signal, ask, tell) {
  const state = h("span", { role: "status" }), out = h("div"), stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  let running = null;
  const go = h("button", { type: "submit", disabled: !hasToken(), title: hasToken() ? null : NO_TOKEN }, text);
  signal.addEventListener("abort", () => running?.abort());
  async function start() {
    if (running || !hasToken()) return;
    fill(out);
    const mine = (running = new AbortController()), began = Date.now();
    const count = () => { state.textContent = `being done, ${Math.round((Date.now() - began) / 1000)} s: the run is opened and its models are loaded, which takes seconds`; };
    const clock = setInterval(count, 1000);
    go.disabled = true; stop.hidden = false; state.className = ""; count();
    try {
      const found = await ask(mine.signal);
      if (signal.aborted) return;
      state.textContent = `done in ${Math.round((Date.now() - began) / 1000)} s`;
      fill(out, tell(found));
      out.dispatchEvent(new CustomEvent("told", { detail: found }));
    } catch (error) {
      state.className = mine.signal.aborted ? "quiet" : "bad";
      state.textContent = mine.signal.aborted ? "stopped" : error.message;
    } finally {
      clearInterval(clock);
      running = null; go.disabled = false; stop.hidden = true;
    }
  }
  return { bar: h("div", { class: "job" }, go, stop, state), out, start };
}

const submits = (start) => ({ onsubmit: (e) => { e.preventDefault(); start(); } });
const lines = (text) => (text || "").split("\n").filter(Boolean);
const bound = (label, value, steps, onchange) => field(label, h("input", { type: "number", step: 1, min: steps[0], max: steps.at(-1), value: value ?? "", onchange }));
const heads = (names) => names.map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
const grid = (names, rows, attributes = {}) => h("div", { class: "scroll" }, h("table", attributes, h("thead", {}, h("tr", {}, heads(names))), h("tbody", {}, rows)));
const n = (x) => h("td", { class: "n" }, number(x));
const groupLink = (run, g) => h("a", { href: link("rollouts", g.id === null || g.id === undefined ? { run, step: g.step } : { run, group: g.id }) }, `${g.group}, step ${g.step}`);

// ---------------------------------------------------------------- regrade

function showRegrade(room, query, told, signal) {
  const { run, local, folder, steps, rewards } = told, state = { grader: query.grader ?? OWN, file: query.file || "", name: query.name || "", weight: query.weight || "" };
  let graders = [];
  const about = h("div"), file = h("input", { class: "file", value: state.file, placeholder: "rewards.py:function", spellcheck: "false", onchange: changed });
  const name = h("input", { value: state.name, placeholder: "as the grader", spellcheck: "false", onchange: changed });
  const weight = h("input", { type: "number", step: "any", value: state.weight, placeholder: "as it is", onchange: changed });
  const fileField = field(`File below ${folder}`, file), nameField = field("Called", name, "A name of the run puts the grader in the place of its own"), weightField = field("Weight in the trained reward", weight);
  const first = bound("From step", query.first ?? query.step, steps, changed), end = bound("to", query.last ?? query.step, steps, changed), at = (label) => label.querySelector("input").value;
  const grader = h("select", { onchange: () => { state.grader = grader.value; changed(); } });
  const called = () => name.value.trim() || (state.grader === FILE ? file.value.split(":").at(-1) : state.grader);
  const suggest = () => {
    const known = Object.fromEntries(Object.entries(told.settings).filter(([key]) => key.includes("reward.")));
    for (const [own, use] of state.grader === OWN ? Object.entries(rewards) : [[called(), state.grader]]) {
      known[`reward.weights.${own}`] ??= "";
      for (const s of graders.find((g) => g.name === use)?.settings ?? []) if (s.name !== "name") known[`reward.${own}.${s.name}`] = s.required ? "" : String(s.default);
    }
    return known;
  };
  const rows = settingRows("grader-settings", lines(query.gradersets), suggest, changed);

  function changed() {
    remember({ grader: state.grader, file: file.value, name: name.value, weight: weight.value, first: at(first), last: at(end), gradersets: rows.read().join("\n") });
    fileField.hidden = state.grader !== FILE;
    nameField.hidden = weightField.hidden = state.grader === OWN;
    rows.fillList();
    describe();
  }
  function describe() {
    const one = graders.find((g) => g.name === state.grader);
    const own = Object.entries(rewards).map(([k, use]) => (k === use ? k : `${k} (${use})`)).join(", ");
    fill(about, one ? h("details", {}, h("summary", {}, one.doc.split("\n\n")[0].replaceAll("\n", " ")), one.doc.includes("\n\n") ? h("p", {}, one.doc.split("\n\n").slice(1).join("\n\n")) : null,
      table(["Setting", "What it takes", "Default", ""], one.settings.filter((s) => s.name !== "name").map((s) => [s.name, s.bounds || s.type, s.required ? "(required)" : number(s.default),
        h("button", { type: "button", onclick: () => rows.set(`reward.${called()}.${s.name}`) }, "Set")])))
      : state.grader === OWN ? h("p", { class: "quiet" }, own ? `The run's own: ${own}. With other settings or weights.` : "The run has no grader beside its task's own grades, which stay as they are; their weights may be others.")
        : h("p", { class: "quiet" }, "A function as [reward.<name>] use may name it: f(completions, **columns) gives a number each, or None for no grade. It is run on this machine."));
  }
  const fillGraders = () => {
    const options = [[OWN, "the run's own, other settings"], ...graders.map((g) => [g.name, g.name]), ...(local ? [[FILE, "a function of a file"]] : [])];
    if (!options.some(([value]) => value === state.grader)) options.push([state.grader, state.grader]);
    fill(grader, options.map(([value, text]) => h("option", { value }, text)));
    grader.value = state.grader;
  };
  const work = job("Grade anew", signal, (stop) => {
    const own = state.grader === OWN, settings = rows.ask();
    if (!own && weight.value !== "") settings.push(`reward.weights.${called()}=${weight.value}`);
    return post("regrade", { run, settings, limit: 100, ...(own ? {} : { grader: state.grader === FILE ? file.value.trim() : state.grader, name: name.value.trim() }),
      ...(at(first) === "" ? {} : { first: at(first) }), ...(at(end) === "" ? {} : { last: at(end) }) }, stop);
  }, tellRegraded);
  room.append(h("section", {}, h("h2", {}, "Regrade"), h("p", { class: "quiet" }, "Grades the kept episodes with another grader, and says what would have changed."),
    h("form", submits(work.start), h("div", { class: "tools" }, field("Grader", grader), fileField, nameField, weightField, first, end), about, rows.element, work.bar), work.out));
  fillGraders(); changed();
  get("graders", {}, signal).then((found) => { graders = found; fillGraders(); changed(); }, (error) => { if (!signal.aborted) fill(about, h("p", { class: "bad" }, error.message)); });
}

function tellRegraded(found) {
  const { run, advantage: a, mixed } = found, used = Object.entries(found.graders).map(([k, use]) => (k === use ? k : `${k} (${use})`));
  const row = (name, entry, trained) => h("tr", { class: entry.changed || entry.lost || entry.gained ? "differs" : null }, h("td", {}, trained ? h("strong", {}, name) : name),
    n(entry.old?.mean), n(entry.new?.mean), n(entry.changed), n(entry.old?.ungraded), n(entry.new?.ungraded), n(entry.lost), n(entry.gained));
  const groups = (list, total) => list.length ? [": ", list.map((g, i) => [i ? "; " : "", groupLink(run, g)]), total > list.length ? `; and ${total - list.length} more` : ""] : null;
  const unweighted = Object.keys(found.graders).filter((k) => k in found.rewards && !found.weights.new[k]);
  const problems = [...new Set(found.problems)], changes = merge(found.changes, (c) => [c.step, c.group, c.text, c.old, c.new, c.rewards]).slice(0, LISTED);
  return [
    h("p", {}, `${found.groups} groups of ${found.steps.length === 1 ? `step ${found.steps[0]}` : `${found.steps.length} steps, ${found.steps[0]} to ${found.steps.at(-1)}`}, ${found.episodes} episodes, graded anew by ${used.join(", ") || "nobody: only weights differ"}.`),
    found.whole ? null : h("p", { class: "quiet" }, "The run keeps some groups of a step, as a rule the best, the worst and a random one: shares are of these."),
    found.failed ? h("p", { class: "bad", role: "alert" }, `${found.failed} times a grader failed: those episodes are ungraded, and none counts as 0.`, problems.map((text) => h("pre", {}, text))) : null,
    unweighted.length ? h("p", { class: "quiet" }, `${unweighted.join(", ")} has no weight in the trained reward: give it one above.`) : null,
    grid([["Reward"], ["Mean before", "n"], ["after", "n"], ["Changed", "n"], ["Ungraded before", "n"], ["after", "n"], ["Newly ungraded", "n"], ["Newly graded", "n"]],
      [...Object.entries(found.rewards).map(([k, entry]) => row(k, entry, false)), row("trained reward", found.reward, true)]),
    h("h3", {}, "What it would have taught"),
    h("ul", {}, h("li", {}, `Group advantage: of ${a.compared} episodes ${a.other_sign} would have the other sign, ${a.gained} one where they had none, ${a.lost} none where they had one.`),
      h("li", {}, `Groups with different outcomes: ${mixed.old} of ${found.groups} before, ${mixed.new} after.`),
      h("li", {}, `${count(found.mixed_now, "group becomes", "groups become")} mixed and would teach`, groups(found.to_mixed, found.mixed_now), "."), h("li", {}, `${count(found.alike_now, "group becomes", "groups become")} all alike and would teach nothing`, groups(found.to_alike, found.alike_now), ".")),
    h("h3", {}, "Episodes that change most"),
    found.changed > found.changes.length ? h("p", { class: "quiet" }, `${found.changes.length} of ${found.changed} that change.`) : null,
    found.changes.length ? grid([["Group"], ["Episode", "n"], ["Trained reward", "n"], ["Rewards"], ["Text"]], changes.map(([c, alike]) => h("tr", { "data-row": `${c.group}/${c.episode}`, tabindex: 0 },
      h("td", {}, groupLink(run, c)), n(c.episode + 1), h("td", { class: "n" }, arrow(c.old, c.new)), h("td", {}, Object.entries(c.rewards).map(([k, [old, now]]) => h("div", {}, `${k} `, arrow(old, now)))), h("td", { class: "said" }, c.text, times(alike)))), { class: "list" })
      : h("p", { class: "quiet" }, "None has another grade."),
  ];
}

/** Episodes that are alike once: [[the first, how many], ...]. */
function merge(episodes, told) {
  const seen = new Map();
  for (const e of episodes) {
    const key = JSON.stringify(told(e)), [one, count] = seen.get(key) ?? [e, 0];
    seen.set(key, [one, count + 1]);
  }
  return [...seen.values()];
}
const times = (count) => count > 1 && h("span", { class: "quiet" }, ` (${count} alike)`);
const count = (k, one, many) => `${k} ${k === 1 ? one : many}`;

const arrow = (old, now) => `${number(old)} → ${number(now)}`;

// ---------------------------------------------------------------- what if

function showWhatIf(room, query, told, signal) {
  const { run, steps } = told, step = bound("Step", query.step ?? told.again.at(-1) ?? steps.at(-1), steps, changed), at = () => step.querySelector("input").value;
  const rows = settingRows("update-settings", lines(query.sets), () => told.settings, changed);
  const lacks = h("p", { class: "warn" });
  function changed() {
    remember({ step: at(), sets: rows.read().join("\n") });
    check();
  }
  function check() { // before it is asked: it takes seconds to say so
    const { again } = told, lost = at() !== "" && !again.includes(Number(at()));
    const those = again.length > 8 ? `${again.length} steps, ${again[0]} to ${again.at(-1)}` : again.length ? `step ${again.join(", ")}` : "no step that is kept";
    fill(lacks, lost && (steps.includes(Number(at())) ? `No checkpoint before step ${at()} is kept, from which its update could be made again; of ${those} there is one. [store] every and keep say which are kept.` : `No group of step ${at()} is kept.`));
  }
  const work = job("Make the update again", signal, (stop) => post("what-if", { run, step: at(), settings: rows.ask() }, stop), tellUpdates);
  work.out.addEventListener("told", ({ detail }) => { const chart = work.out.querySelector(".chart"); if (chart) scatter(chart, detail.points); });
  room.append(h("section", {}, h("h2", {}, "What if"), h("p", { class: "quiet" }, `Makes the update of a step again from its kept groups and the last checkpoint before it, and beside it the same update with other settings. Suggested are settings of stage ${told.stage}.`),
    h("form", submits(work.start), h("div", { class: "tools" }, step), lacks, rows.element, work.bar), work.out));
  check();
}

const numbersOf = (side) => ({ ...side.numbers, ...Object.fromEntries(Object.entries(side.advantage).filter(([k]) => k !== "decisions").map(([k, x]) => [`advantage, ${k}`, x])),
  ...Object.fromEntries(Object.entries(side.after).map(([k, x]) => [AFTER[k] ?? k, x])) });
// Not the same, beyond what rounding makes of one update on one machine.
const differ = (a, b) => a !== b && !(Number.isFinite(a) && Number.isFinite(b) && Math.abs(a - b) <= Math.max(1e-8, 1e-4 * Math.max(Math.abs(a), Math.abs(b))));

function tellUpdates(found) {
  const { batch, weights, changed } = found, before = numbersOf(found.configured), after = changed ? numbersOf(changed) : {};
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const settings = Object.entries(found.settings).map(([k, x]) => h("code", {}, `${k} = ${typeof x === "object" ? JSON.stringify(x) : x} `));
  const cosine = (x) => (x === null ? "none (one of both is 0)" : number(x));
  return [
    h("p", {}, `Step ${found.step} of stage ${found.stage}: ${batch.groups} of ${batch.of ?? "an unknown number of"} groups, ${batch.episodes} episodes; weights: ${weights.step ? `the checkpoint of step ${weights.step}` : "what the run began with"}. `, changed ? ["With ", settings] : "As configured; a setting above adds a second update."),
    found.notes.length ? h("div", { class: "card" }, h("p", { class: "warn" }, "To be known of this"), h("ul", {}, found.notes.map((text) => h("li", {}, text)))) : null,
    grid([["Number"], ["As configured", "n"], ...(changed ? [["With the settings", "n"], ["Difference", "n"]] : []), ["The run reported", "n"]], names.map((k) => {
      const other = changed && differ(before[k], after[k]);
      const by = other && Number.isFinite(before[k]) && Number.isFinite(after[k]) ? after[k] - before[k] : null;
      return h("tr", { class: other ? "differs" : null }, h("td", {}, k), n(before[k]), changed ? [n(after[k]), h("td", { class: "n" }, by === null ? (other ? "in one alone" : "same") : `${by > 0 ? "+" : "−"}${number(Math.abs(by))}`)] : null, n(found.reported[k]));
    }), { class: "update" }),
    changed && Object.keys(found.cosine).length ? h("ul", {}, Object.entries(found.cosine).map(([part, c]) => h("li", {}, `Cosine of both updates, ${part}: of the gradients ${cosine(c.gradient)}, of how the weights moved ${cosine(c.moved)}`))) : null,
    h("h3", {}, "Advantages by episode"),
    found.points.length ? h("div", { class: "chart", role: "img", "aria-label": "advantage of each episode with the settings over that as configured" }) : null,
    h("p", { class: "quiet" }, `${Math.min(found.groups.length, found.all.groups)} of ${found.all.groups} groups${changed ? ", those first whose advantages differ" : ""}.`),
    found.groups.map((g, i) => groupOf(found.run, g, Boolean(changed), i === 0)),
  ];
}

function groupOf(run, g, two, open) {
  const sides = two ? [["Reward", "n"], ["with settings", "n"], ["Advantage", "n"], ["with settings", "n"]] : [["Reward", "n"], ["Advantage", "n"]];
  const other = (e) => two && (differ(...e.advantage) || differ(...e.reward)), many = g.episodes.filter(other).length;
  return h("details", { open }, h("summary", {}, `${g.problem}`, two ? `: ${many ? `${many} of ${g.episodes.length} episodes differ` : "no episode differs"}` : "", g.of > g.episodes.length ? `, the first ${g.episodes.length} of ${g.of}` : ""),
    h("p", {}, groupLink(run, g)),
    grid([["Text"], ...sides], merge(g.episodes, (e) => e).map(([e, alike]) => h("tr", { class: other(e) ? "differs" : null }, h("td", { class: "said" }, e.text, times(alike)), e.reward.map(n), e.advantage.map(n)))));
}

function scatter(element, points) {
  const known = points.filter((p) => p.every(Number.isFinite)), all = known.flat();
  if (!known.length) { element.remove(); return; }
  const ends = [Math.min(...all), Math.max(...all)];
  draw(element, [
    { x: ends, y: ends, mode: "lines", name: "no difference", line: { dash: "dot", width: 1 }, hoverinfo: "skip" },
    { x: known.map((p) => p[0]), y: known.map((p) => p[1]), mode: "markers", type: "scatter", name: "episodes", marker: { size: 7, opacity: 0.6 } },
  ], { title: { text: "Advantage: with the settings over as configured", font: { size: 13 } }, height: 320, hovermode: "closest", xaxis: { title: { text: "as configured" } }, yaxis: { title: { text: "with the settings" } } });
}
