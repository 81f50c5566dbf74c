// What a checkpoint's policy does, played or drawn on demand: it takes seconds, so behind buttons.

import { get, getBlob, hasToken, NO_TOKEN } from "../api.js";
import { field, fill, h, number } from "../dom.js";
import { drawTrack } from "./track.js";

const KINDS = { played: "Play an episode", samples: "Draw samples", policy: "Policy as a table" };
const WHAT = { played: "an episode is played", samples: "samples are drawn", policy: "the policy is asked" };

/** A part of a page, closed at first, that plays the policy of a run. */
export function drawMedia(run, signal) {
  const out = h("div", { "aria-live": "polite" }), step = h("select", { "aria-label": "checkpoint" }), episode = h("input", { type: "number", min: 0, value: 0 });
  const tools = h("div", { class: "tools" }), details = h("details", { class: "media" }, h("summary", {}, "Play or draw a checkpoint's policy"), tools, out);
  let buttons = [], opened = false;
  details.addEventListener("toggle", async () => {
    if (!details.open || opened) return;
    opened = true;
    try { await open(); } catch (error) { if (!signal.aborted) fill(out, h("p", { class: "warn" }, error.message)); }
  });

  async function open() {
    if (!hasToken()) { fill(out, h("p", { class: "warn" }, NO_TOKEN)); return; }
    fill(out, h("p", { class: "quiet", role: "status" }, "The run's recipe is opened…"));
    const [{ checkpoints }, { kinds, why }] = await Promise.all([get("checkpoints", { run }, signal), get("drawable", { run }, signal)]);
    buttons = kinds.map((kind) => h("button", { type: "button", onclick: () => ask(kind) }, KINDS[kind]));
    fill(step, checkpoints.reverse().map((c) => h("option", { value: c.step }, c.score === null ? String(c.step) : `${c.step}, score ${number(c.score)}`)));
    if (kinds.length) fill(tools, field("Checkpoint of step", step), kinds.includes("played") && field("Held-out episode", episode), buttons);
    fill(out, why && h("p", { class: "quiet" }, why));
  }

  async function ask(kind) {
    const began = Date.now(), busy = h("p", { role: "status" }), query = { run, step: step.value, episode: episode.value };
    const tick = () => { busy.textContent = `The checkpoint is loaded and ${WHAT[kind]}: ${Math.round((Date.now() - began) / 1000)} s`; };
    const timer = setInterval(tick, 1000);
    tick();
    fill(out, busy);
    for (const b of buttons) b.disabled = true;
    try {
      fill(out, await show(kind, query));
    } catch (error) {
      if (!signal.aborted) fill(out, h("p", { class: "warn" }, error.message));
    } finally {
      clearInterval(timer);
      for (const b of buttons) b.disabled = false;
    }
  }
  async function show(kind, query) {
    if (kind === "played") return drawPlayed(await get("played", query, signal));
    if (kind === "policy") return drawPolicy(await get("policy", { run, step: query.step }, signal));
    const source = await getBlob("samples", { run, step: query.step }, signal);
    signal.addEventListener("abort", () => URL.revokeObjectURL(source));
    return h("img", { src: source, alt: "samples of the policy" });
  }
  return details;
}

function drawPlayed(found) {
  const rewards = Object.entries(found.rewards).map(([name, value]) => `${name} ${number(value)}`).join(", ");
  return [h("p", {}, `${found.problem}: ${found.track.moves} steps, ${found.status}, ${rewards || "not graded"}`), drawTrack(found.track, found.frames)];
}

const ARROWS = { up: "↑", right: "→", down: "↓", left: "←" };

/** Probabilities of actions: on the cells of a grid where the task has one, else a row a state. */
function drawPolicy(found) {
  const { names, cells, chances } = found, best = (row) => row.indexOf(Math.max(...row));
  if (!cells) {
    return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["State", ...names].map((x) => h("th", { scope: "col" }, x)))),
      h("tbody", {}, chances.map((row, s) => h("tr", {}, h("th", { scope: "row" }, s), row.map((p, a) => h("td", { class: "n" }, a === best(row) ? h("strong", {}, p.toFixed(2)) : p.toFixed(2))))))));
  }
  let s = 0;
  return [h("div", { class: "scroll" }, h("table", { class: "grid", "aria-label": "policy on the grid" }, h("tbody", {}, cells.map((line) => h("tr", {}, [...line].map((kind) => {
    const row = chances[s++], at = best(row), name = names[at];
    if ("#HG".includes(kind)) return h("td", { class: "quiet" }, { "#": "wall", H: "hole", G: "goal" }[kind]);
    return h("td", { title: names.map((n, i) => `${n} ${row[i].toFixed(3)}`).join(", ") }, h("span", { class: "arrow", "aria-hidden": "true" }, ARROWS[name] ?? ""), `${name} ${row[at].toFixed(2)}${kind === "S" ? " (start)" : ""}`);
  })))))), h("p", { class: "quiet" }, "The likeliest move of each cell with its probability; all of them on hover.")];
}
