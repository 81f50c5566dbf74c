// Sets of runs side by side: chosen by hand or put together by their recipes; curves, last values, differences.

import { download, get, getBlob } from "../api.js";
import { COLOURS, draw, plain } from "../chart.js";
import { choice, field, fill, h, number, table } from "../dom.js";
import { every, link, remember, tell } from "../main.js";
import { layBands, traceBands } from "../parts/bands.js";

export const title = "Compare";
const LIST = 30; // runs that the picker shows at once

export async function show(main, query, { signal }) {
  const state = { arm: [query.arm ?? []].flat(), metric: query.metric || "", x: query.x || "" };
  let arms = state.arm.map((text) => text.split(",").filter(Boolean)), asked = 0, listed = 0, seen = "", last = null;
  const chosen = new Set();
  const result = h("div"), editor = h("div", { class: "arms" }), rows = h("div");
  const search = h("input", { type: "search", class: "wide", placeholder: "name, recipe, task, status", oninput: () => guard(listRuns) });
  const picker = h("details", { class: "card", open: !arms.length }, h("summary", {}, "Choose runs"),
    h("form", { class: "tools", onsubmit: (e) => e.preventDefault() }, field("Search", search),
      button("Arms by recipe", () => guard(groupChosen), "Put the chosen runs into arms, one for each recipe"),
      button("One more arm", addChosen, "Put the chosen runs into one arm"),
      button("Clear the arms", () => setArms([]))), rows, editor);
  main.append(h("h1", {}, title), picker, result);

  const guard = (work) => work().catch((error) => { if (!signal.aborted) tell(error.message, true); });

  async function listRuns() {
    const mine = ++listed, found = await get("runs", { words: search.value, limit: LIST }, signal);
    if (mine !== listed) return;
    const lines = found.runs.map((run) => h("tr", { "data-row": run.name, tabindex: 0 },
      h("td", {}, h("input", { type: "checkbox", "aria-label": `choose ${run.name}`, checked: chosen.has(run.name),
        onchange: (e) => (e.target.checked ? chosen.add(run.name) : chosen.delete(run.name)) })),
      h("td", {}, h("a", { href: link("run", { run: run.name }) }, run.name)), h("td", {}, run.recipe), h("td", {}, run.task),
      h("td", { class: `status ${run.status}` }, run.status), h("td", { class: "n" }, number(run.score), run.score_of && h("span", { class: "quiet" }, ` ${run.score_of}`))));
    const all = h("input", { type: "checkbox", "aria-label": "choose all that are listed", onchange: (e) => {
      for (const run of found.runs) e.target.checked ? chosen.add(run.name) : chosen.delete(run.name);
      guard(listRuns);
    } });
    fill(rows, found.total ? [table([all, "Run", "Recipe", "Task", "Status", "Score"], lines, { class: "list" }),
      found.total > LIST && h("p", { class: "quiet" }, `the last ${LIST} of ${found.total}: search for others`)] : h("p", {}, "no run like this"));
  }
  async function groupChosen() {
    const names = chosen.size ? [...chosen].sort() : arms.flat();
    if (!names.length) return tell("choose runs first: the boxes in the list", true);
    const found = await get("grouped", { run: names }, signal);
    setArms(found.arms.map((text) => text.split(",")));
    if (found.left_out.length) tell(`left out, as another run of the arm has the same seed: ${found.left_out.join(", ")}`);
  }
  function addChosen() {
    if (!chosen.size) return tell("choose runs first: the boxes in the list", true);
    setArms([...arms, [...chosen].sort()]);
    chosen.clear();
    guard(listRuns);
  }
  function setArms(next) {
    arms = next.filter((names) => names.length);
    state.arm = arms.map((names) => names.join(","));
    tell("");
    change({});
    edit();
  }
  function edit() {
    fill(editor, arms.map((names, i) => h("fieldset", {}, h("legend", {}, last?.arms[i]?.label && last.arms.length === arms.length ? `Arm ${i + 1}: ${last.arms[i].label}` : `Arm ${i + 1}`),
      i ? button("Make it the first", () => setArms([names, ...arms.filter((_, k) => k !== i)]), "The others are compared with the first") : h("span", { class: "quiet" }, "the others are compared with it"),
      h("ul", {}, names.map((name) => h("li", {}, h("span", {}, name),
        arms.length > 1 && choice([["", "move to"], ...arms.map((_, k) => [String(k), `arm ${k + 1}`]).filter(([k]) => Number(k) !== i)], "", (to) => move(name, i, Number(to)), { "aria-label": `move ${name} to` }),
        button("Remove", () => move(name, i, null), `remove ${name}`)))))));
  }
  function move(name, from, to) {
    const next = arms.map((names) => [...names]);
    next[from] = next[from].filter((n) => n !== name);
    if (to !== null) next[to].push(name);
    setArms(next);
  }
  function change(some) {
    Object.assign(state, some);
    remember({ arm: state.arm, metric: state.metric || null, x: state.x || null });
    guard(refresh);
  }
  async function refresh() {
    if (!state.arm.length) {
      seen = "";
      return fill(result, h("p", { class: "quiet" }, "No arm is chosen yet. An arm is one or more runs, mostly the seeds of one recipe."));
    }
    const mine = ++asked, found = await get("compare", state, signal).catch((error) => { if (mine === asked) { fill(result); seen = ""; } throw error; });
    const text = JSON.stringify(found);
    if (mine !== asked || text === seen) return;
    seen = text;
    last = found;
    render(result, found, state, change, guard);
    edit();
  }
  edit();
  if (picker.open) await guard(listRuns);
  picker.addEventListener("toggle", () => picker.open && guard(listRuns));
  await every(5, signal, refresh);
}

const button = (text, onclick, title) => h("button", { type: "button", onclick, title: title || null }, text);
const interval = (e) => (e.low === null || e.low === undefined ? "–" : `[${number(e.low)}, ${number(e.high)}]`);

function render(result, found, state, change, guard) {
  const metrics = found.metrics.includes(found.curve) ? found.metrics : [found.curve, ...found.metrics];
  const [kind, given] = splitReading(found.reading), words = Object.entries(found.readings).filter(([name]) => !name.startsWith("at="));
  const readings = [["", "last value"], ...words.map(([name, text]) => [name.replace(/=.*/, "="), `${name}: ${text}`]), ...(kind.startsWith("at=") ? [[kind, kind]] : [])];
  const read = (metric, how) => change({ metric: how ? `${metric}:${how}` : metric });
  const amount = kind.endsWith("=") && h("input", { type: "number", step: "any", value: given, onchange: (e) => e.target.value !== "" && read(found.curve, kind + e.target.value) });
  const curves = h("div", { class: "chart", role: "img", "aria-label": `${found.curve} of the arms` }), finals = h("div", { class: "chart" }), profile = h("div", { class: "chart" });
  const save = async (kind) => {
    const where = await getBlob("plot", { ...state, kind });
    h("a", { href: where, download: `compare.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(where), 1000);
  };
  const rows = found.arms.map((arm, i) => h("tr", {}, h("td", {}, sign(i), ` ${arm.label}`), h("td", { class: "n" }, arm.n), h("td", { class: "n" }, number(arm.value)),
    h("td", { class: "n" }, number(arm.iqm.value)), h("td", { class: "n" }, interval(arm.iqm)), h("td", { class: "n" }, i ? number(arm.difference) : "–"),
    h("td", { class: "n" }, i ? interval(arm) : "–"), h("td", {}, (i && arm.word) || "–"), h("td", { class: "n" }, arm.level ? `${number(100 * arm.level)} %` : "–"), h("td", {}, i ? (arm.paired ? "by seed" : "no") : "–")));
  fill(result,
    h("div", { class: "tools" }, field("Metric", choice(metrics, found.curve, (v) => read(v, found.reading))),
      field("Read by", choice(readings, kind, (v) => read(found.curve, v.endsWith("=") ? v + (v === "last=" ? 5 : 0.5) : v)), "What is compared of each curve: as shuhari compare --metric METRIC:READING"), amount && field("Value", amount), field("Over", choice(found.axes, found.x, (v) => change({ x: v }))),
      button("CSV", () => download("compare.csv", writeTable(found), "text/csv")), button("SVG", () => guard(() => save("svg"))), button("PNG", () => guard(() => save("png")))),
    curves, h("p", { class: "quiet" }, "Means over the runs of an arm, as far as all of them go, with their range."),
    h("h2", {}, found.reading ? `${found.metric} over ${found.x.replace("spent/", "").replaceAll("_", " ")}` : "Last values"),
    table(["Arm", "Runs", "Mean", "Interquartile mean", "Its 95 % bootstrap interval", "Difference from the first", "Its interval", "Is", "Level", "Paired"], rows),
    found.caveats.map((text) => h("p", { class: "warn" }, `Note: ${text}.`)),
    h("div", { class: "charts" }, finals, found.arms.some((s) => s.profile) ? profile : null),
    h("details", {}, h("summary", {}, found.reading ? "The value of each run" : "The last value of each run"), table(["Arm", "Run", "Seed", "Value"],
      found.arms.flatMap((arm) => arm.runs.map((r) => [arm.label, h("a", { href: link("run", { run: r.run }) }, r.run), String(r.seed), r.value])))),
    h("h2", {}, "What differs in the recipes"),
    found.differs.length ? table(["Setting", ...found.arms.map((s) => s.label)], found.differs.map((d) => [h("code", {}, d.setting), ...d.values])) : h("p", {}, "Nothing: the recipes are the same, seeds apart."),
    found.left_out ? h("p", { class: "quiet" }, `and ${found.left_out} more settings`) : null);
  const over = found.x.replace("spent/", "").replaceAll("_", " ");
  const named = Object.fromEntries(found.arms.map((s) => [s.label, s.curve]));
  draw(curves, traceBands(named), layBands(over, found.curve, 380));
  draw(finals, found.arms.map((s, i) => ({ x: s.runs.map(() => i), y: s.runs.map((r) => r.value), text: s.runs.map((r) => plain(`${r.run}, seed ${r.seed}`)), name: plain(s.label), mode: "markers",
    marker: { color: COLOURS[i % COLOURS.length], size: 8, symbol: i }, hovertemplate: "%{text}: %{y:.4g}<extra></extra>" })), {
    title: { text: "Each run" }, hovermode: "closest", showlegend: false, yaxis: { title: { text: plain(found.metric) } },
    xaxis: { tickvals: found.arms.map((_, i) => i), ticktext: found.arms.map((s) => plain(s.label)), range: [-0.5, found.arms.length - 0.5] } });
  if (profile.isConnected)
    draw(profile, found.arms.flatMap((s, i) => (s.profile ? [{ x: found.thresholds, y: s.profile, name: plain(s.label), line: { shape: "hv", color: COLOURS[i % COLOURS.length], dash: ["solid", "dash", "dot", "dashdot"][i % 4] } }] : [])),
      { title: { text: "Performance profile" }, yaxis: { range: [-0.02, 1.02], title: { text: "share of runs above" } } });
}

/** A reading as [kind, number]: `last=5` as ["last=", "5"], `area` as ["area", ""]. */
function splitReading(reading) {
  const [, name, value] = /^(last=|over=|to=)(.*)$/.exec(reading) || [null, reading, ""];
  return [name, value];
}

/** A mark of an arm's colour and number, as the charts have it. */
function sign(i) {
  const mark = h("span", { "aria-hidden": "true" }, "■");
  mark.style.color = COLOURS[i % COLOURS.length];
  return mark;
}

/** Last values and curves as a table of commas: arm, run, seed, x, value; the mean of an arm has no run. */
function writeTable(found) {
  const cell = (x) => (/[",\n\r]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : /^[=+@\t]/.test(String(x)) ? `'${x}` : String(x ?? ""));
  const rows = [["arm", "run", "seed", found.x, found.metric, "low", "high"]];
  for (const arm of found.arms) {
    for (const run of arm.runs) rows.push([arm.label, run.run, run.seed, found.reading || "last", run.value, "", ""]);
    arm.curve.x.forEach((x, i) => rows.push([arm.label, "", "", x, arm.curve.mean[i], arm.curve.low[i], arm.curve.high[i]]));
  }
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
