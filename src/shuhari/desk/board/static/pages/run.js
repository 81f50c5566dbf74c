// One run: what it is, how it stands, its curves, what is wrong with it, its recipe.

import { get, getBlob } from "../api.js";
import { choice, field, fill, h, number, table } from "../dom.js";
import { every, link, remember, tell } from "../main.js";
import { Charts, nameAxis } from "../parts/curves.js";

export const title = "Run";

export async function show(main, query, { signal }) {
  if (!query.run) throw new Error("which run? #/run?run=NAME");
  const run = query.run, first = await get("run", { run }, signal); // before anything is shown: it may not be there
  const state = { x: query.x || "step", smoothing: Number(query.smoothing) || 0, more: (query.more || "").split("\n").filter(Boolean) };
  const head = h("div"), facts = h("div", { class: "card" }), wrong = h("section", { "aria-label": "Diagnosis" });
  const grid = h("div", { class: "charts" }), reading = h("span", { class: "quiet", role: "status" }), tools = h("form", { class: "tools", onsubmit: (e) => e.preventDefault() });
  const events = h("section"), profile = h("section"), recipe = h("section");
  main.append(head, facts, wrong, h("h2", {}, "Curves"), tools, reading, grid, events, profile, recipe);
  const charts = new Charts(grid, run, state, signal);
  charts.onremove = (name) => change({ more: state.more.filter((n) => n !== name) });

  function change(some, ask = false) {
    Object.assign(state, some);
    remember({ x: state.x === "step" ? null : state.x, smoothing: state.smoothing || null, more: state.more.join("\n") || null });
    if (ask) charts.refresh(true).catch((error) => { if (!signal.aborted) tell(error.message, true); });
    else charts.redraw();
  }

  let axes = "", known = "";
  const over = h("span"), list = h("datalist", { id: "metrics" });
  const amount = h("output", { for: "smoothing" }, String(state.smoothing));
  const slider = h("input", { id: "smoothing", type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing,
    oninput: () => { amount.textContent = slider.value; change({ smoothing: Number(slider.value) }); } });
  const search = h("input", { type: "search", list: "metrics", placeholder: "add a metric", onchange: () => {
    if (!charts.names.includes(search.value)) return;
    const name = search.value;
    search.value = "";
    if (!state.more.includes(name)) change({ more: [...state.more, name] }, true);
  } });
  tools.append(over, h("label", {}, h("span", {}, "Smoothing ", amount), slider), field("Metric", search, "Name of a stored metric"), list,
    ...[["CSV", "csv", {}, "csv"], ["PNG", "picture", { kind: "png" }, "png"], ["SVG", "picture", { kind: "svg" }, "svg"]].map(([text, view, more, end]) =>
      h("button", { type: "button", title: `Save ${text === "CSV" ? "all metrics" : "the picture"} of the run`, onclick: () => save(view, { run, ...more }, end) }, text)));

  async function save(view, asked, end) {
    try {
      const at = await getBlob(view, asked, signal);
      h("a", { href: at, download: `${run.replaceAll("/", "-")}.${end}` }).click();
      setTimeout(() => URL.revokeObjectURL(at), 10_000);
    } catch (error) { if (!signal.aborted) tell(error.message, true); }
  }

  function controls() {
    if (axes !== charts.axes.join("\n")) {
      axes = charts.axes.join("\n");
      fill(over, field("Over", choice(charts.axes.map((a) => [a, nameAxis(a)]), state.x, (x) => change({ x }, true))));
    }
    if (known !== charts.names.join("\n")) {
      known = charts.names.join("\n");
      fill(list, charts.names.map((name) => h("option", { value: name })));
    }
    reading.textContent = charts.told.whole ? "" : `Steps are being read: ${charts.told.read} stand for all of them so far.`;
  }

  let seen = "", status = "", step = null, news = null, claims = [];
  function showNews(found) {
    const text = JSON.stringify([(news = found), claims]);
    status = found.status;
    if (text === seen) return;
    seen = text;
    const focused = head.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    showFacts(head, facts, found, run, claims);
    if (focused) [...head.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
    if (found.step !== step) {
      step = found.step;
      profileOf(found).catch(fails(profile));
    }
  }
  let judged = "", asked = 0, profiled = false;
  async function refreshFindings() {
    if (Date.now() < asked) return;
    const [found, happened] = await Promise.all([get("findings", { run }, signal), get("events", { run }, signal)]);
    asked = Date.now() + (found ? 8000 : 0);
    const text = JSON.stringify([found, happened]);
    if (text === judged) return;
    judged = text;
    const open = wrong.contains(document.activeElement) || events.contains(document.activeElement);
    if (open && found && wrong.childElementCount > 1) { judged = ""; return; } // not under the hands of its reader
    showFindings(wrong, found);
    showEvents(events, happened, run);
  }
  async function profileOf(found) {
    if (profiled) return;
    profiled = found.has.profile;
    showProfile(profile, profiled ? await get("profile", { run }, signal) : null);
  }
  const fails = (at) => (error) => { if (!signal.aborted) fill(at, h("p", { class: "bad" }, error.message)); };

  showNews(first);
  await charts.refresh().then(() => state.more.length && charts.refresh(true)).then(controls).catch(fails(reading));
  refreshFindings().catch(fails(wrong));
  get("claimed", { run }, signal).then((found) => { claims = found; showNews(news); }, () => {}); // a recipe that cannot be read is told at the top
  get("recipe", { run }, signal).then((found) => showRecipe(recipe, found), fails(recipe));
  let turn = 0;
  every(2, signal, async () => {
    if (turn++ === 0) return;
    const quiet = status !== "running" && charts.told?.whole;
    if (quiet && turn % 5) return; // somebody may go on with it
    showNews(await get("run", { run }, signal));
    await charts.refresh();
    controls();
    await refreshFindings();
  });
}

const named = (text) => text.replaceAll("_", " ");

function showFacts(head, facts, run, name, claims) {
  const pages = [["rollouts", "Rollouts"], run.has.curriculum && ["curriculum", "Curriculum"], ["replay", "Replay"]].filter(Boolean);
  fill(head, h("h1", {}, run.name, " ", h("span", { class: `status ${run.status}` }, run.status)),
    run.summary && h("p", { class: "quiet" }, run.summary),
    run.note && h("pre", { class: "bad" }, run.note), run.fault && h("p", { class: "bad" }, run.fault),
    h("p", { class: "foot" }, pages.map(([page, text]) => h("a", { href: link(page, { run: name }) }, text)), run.tags.map((tag) => h("span", { class: "tag" }, tag))));
  const entry = (term, value) => value !== null && value !== undefined && value !== "" && [h("dt", {}, term), h("dd", {}, value)];
  const share = run.total ? ` of ${run.total}` : "";
  const made = Object.entries(run.made_with).map(([k, v]) => `${k} ${v}`).join(", ");
  const spent = Object.entries(run.spent).map(([k, v]) => `${named(k)} ${number(v)}`).join(", ");
  const old = facts.querySelector("details")?.open;
  fill(facts, h("div", { class: "halves" }, h("dl", {}, entry("Recipe", run.recipe),
    entry("Claims", claims.length ? claims.map((c, i) => [i > 0 && ", ", h("a", { href: link("claim", { method: c.method }) }, c.method), `: ${c.words}`]) : null), entry("Task", run.task), entry("Seed", String(run.seed)),
    entry("Step", run.step < 0 ? "none yet" : [`${run.step}${share} `, run.total > 0 && h("progress", { max: run.total, value: Math.min(run.step, run.total), "aria-label": "steps" })]),
    entry("Time in steps", run.seconds === null ? null : duration(run.seconds)), entry("Began from", run.init), entry("Folder", h("code", {}, run.path)),
    Object.entries(run.data).map(([place, card]) => entry(`Data ${place}`, describe(card)))),
    run.ends.rows.length ? table(run.ends.heads, run.ends.rows.map((row) => h("tr", {}, row.map((x, i) => h("td", { class: i ? "n" : null }, i ? number(x) : x))))) : h("p", { class: "quiet" }, run.status !== "running" ? "No held-out score was measured before or after." : "Held-out scores before and after come with its end.")),
    (made || spent) && h("details", { open: old }, h("summary", {}, "Made with, and spent"), h("dl", {}, entry("Spent", spent), entry("Made with", made))));
}

function duration(seconds) {
  const s = Math.round(seconds);
  return s < 90 ? `${number(seconds)} s` : s < 5400 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

function describe(card) {
  if (!card || typeof card !== "object") return String(card).slice(0, 500);
  const flat = (value, at) => (value && typeof value === "object" ? Object.entries(value).flatMap(([k, v]) => flat(v, at ? `${at} ${k}` : k)) : [`${at} ${number(value)}`]);
  return flat(card, "").slice(0, 40).join(", ").slice(0, 1000);
}

function showFindings(at, found) {
  if (!found) { fill(at, h("h2", {}, "Diagnosis"), h("p", { class: "quiet" }, "The steps are being read.")); return; }
  const cards = [...found.findings].sort((a, b) => b.alarm - a.alarm).map((f) => h("div", { class: "card" },
    h("p", {}, h("strong", { class: f.alarm ? "bad" : "warn" }, f.alarm ? "Alarm: " : "Finding: "), f.what,
      f.raised !== null && f.raised !== undefined && h("span", { class: "quiet" }, ` Raised at step ${f.raised}.`)),
    h("p", { class: "quiet" }, f.seen), h("p", {}, f.helps),
    f.shown.length > 0 && h("p", {}, "Rollouts: ", f.shown.map((s, i) => [i > 0 && ", ", h("a", { href: link("rollouts", s.query) }, s.text)]))));
  const alarms = found.findings.filter((f) => f.alarm).length;
  fill(at, h("h2", {}, "Diagnosis", found.findings.length > 0 && ` (${found.findings.length}${alarms ? `, ${alarms} of them alarms` : ""})`),
    cards.length ? cards : h("p", { class: `sentence ${found.sure ? "good" : "warn"}` }, found.healthy || "no step is stored yet"));
}

function showEvents(at, found, run) {
  const kinds = Object.entries(found.kinds);
  if (!kinds.length) { fill(at); return; }
  const open = [...at.querySelectorAll("details")].map((d) => d.open);
  fill(at, h("h2", {}, "Events"), h("p", { class: "quiet" }, kinds.map(([kind, n]) => `${n} of kind ${kind}`).join(", ")),
    found.problems.length > 0 && h("details", { open: open.length ? open[0] : found.problems.length <= 10 }, h("summary", {}, `Problems (${found.total})`),
      table(["Problem", "Times", "First", "Last"], found.problems.map((p) => [h("pre", {}, p.text), p.count, step(run, p.first), step(run, p.last)]))),
    found.events.length > 0 && h("details", { open: open[1] }, h("summary", {}, `Others (${found.events.length})`),
      table(["Step", "Kind", "Data"], found.events.map((e) => [e.step, e.kind, e.data]))));
}

const step = (run, n) => h("a", { href: link("rollouts", { run, step: n }) }, String(n));

function showProfile(at, found) {
  if (!found) {
    fill(at, h("h2", {}, "Profile"), h("p", { class: "quiet" }, "Not profiled. ", h("code", {}, "shuhari train … --profile"),
      " measures where the time of a step goes, phase by phase (sampling, grading, the update), and shows it here."));
    return;
  }
  const shares = found.rows.map((row) => [row[0].trim(), Number.parseFloat(row[2]) || 0]).filter(([, share]) => share > 0);
  fill(at, h("h2", {}, "Profile"), found.lines.map((line) => h("p", { class: "quiet" }, line)),
    h("div", { class: "bar", role: "img", "aria-label": `shares of time: ${shares.map(([n, s]) => `${n} ${s} %`).join(", ")}` },
      shares.map(([name, share], i) => {
        const part = h("span", { class: `part part${i % 6}`, title: `${name}: ${share} %` }, share > 6 ? name : "");
        part.style.flexGrow = share;
        return part;
      })),
    table(found.heads, found.rows.map((row) => row.map((x, i) => (i ? x : h("span", { class: "tree" }, x))))));
}

function showRecipe(at, found) {
  const changes = (p) => (p.problem ? h("p", { class: "bad" }, p.problem) : p.changes.length
    ? table(["Setting", "Here", "There"], p.changes.map((c) => [h("code", { title: c.says || null }, c.path), h("code", {}, c.here), h("code", {}, c.there)]))
    : h("p", { class: "quiet" }, "Nothing differs."));
  fill(at, h("h2", {}, "Recipe"),
    found.parents.length ? found.parents.map((p, i) => h("details", { open: i === 0 && p.changes.length > 0 && p.changes.length <= 30 },
      h("summary", {}, "What differs from ", h("code", {}, p.name), ` (${p.how}): ${p.problem ? "cannot be told" : `${p.changes.length} setting${p.changes.length === 1 ? "" : "s"}`}`), changes(p)))
      : h("p", { class: "quiet" }, "No recipe of the library has its name, so that there is none to compare it with."),
    h("details", {}, h("summary", {}, "The recipe as it was resolved"), h("pre", {}, found.text, found.cut && "\n…")));
}
