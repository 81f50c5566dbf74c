// The scoreboard: every method that states a claim, its verdict, its effect in margins.

import { get, getBlob } from "../api.js";
import { choice, field, fill, h } from "../dom.js";
import { every, link, remember, tell } from "../main.js";
import { drawEffect, SIGN, tellEffect } from "../parts/effects.js";
import { linkBed } from "../parts/links.js";

export const title = "Claims";
const HEADS = [["method", "Method"], ["year", "Year"], ["verdict", "Verdict"], ["effect", "Effect in margins"],
  ["seeds", "Seeds"], ["bed", "Bed"], [null, "What the paper says, as it is measured"]];

export async function show(main, query, { signal }) {
  const state = { words: query.words || "", family: query.family || "", verdict: query.verdict || "",
    order: query.order || "verdict", down: query.down === "true", view: query.view || "list" };
  const body = h("tbody"), chance = h("p", { class: "quiet" }), count = h("p", { class: "foot" }, "Reading the results…"), tools = h("form", { class: "tools", onsubmit: (e) => e.preventDefault() });
  const search = h("input", { type: "search", class: "wide", value: state.words, placeholder: "method, title, bed, year", oninput: () => change({ words: search.value }) });
  const heads = HEADS.map(([key, text]) => h("th", { scope: "col" }, key ? h("button", { type: "button", class: "sort",
    onclick: () => change({ order: key, down: state.order === key ? !state.down : ["effect", "year", "seeds"].includes(key) }) }, text) : text));
  const list = h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, heads)), body));
  const picture = h("div", { class: "scroll" });
  const views = h("div", { class: "views", role: "group", "aria-label": "View" }, ["list", "picture"].map((name) => h("button",
    { type: "button", "data-view": name, onclick: () => change({ view: name }) }, name === "list" ? "List" : "Picture")));
  main.append(h("h1", {}, title), tools, chance, list, picture, count);

  let asked = 0, seen = "", built = "", drawn = "", shown = null;
  async function refresh() {
    const { view, ...query } = state, mine = ++asked;
    const found = await get("claims", query, signal);
    if (mine !== asked) return;
    const text = JSON.stringify([found, state]);
    if (text !== seen) render(found);
    seen = text;
    if (view === "picture") await drawAll();
  }
  function render(found) {
    const options = JSON.stringify([found.families, found.verdicts]);
    if (options !== built) {
      const entries = (counts) => [["", "all"], ...Object.entries(counts).map(([k, n]) => [k, `${k} (${n})`])];
      fill(tools, field("Search", search), field("Family", choice(entries(found.families), state.family, (v) => change({ family: v }))),
        field("Verdict", choice(entries(found.verdicts), state.verdict, (v) => change({ verdict: v }))), views);
      built = options;
    }
    const focused = document.activeElement.closest?.("[data-row]")?.dataset.row;
    fill(body, found.claims.map(row));
    if (focused) body.querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
    HEADS.forEach(([key], i) => key && heads[i].setAttribute("aria-sort", key !== state.order ? "none" : state.down ? "descending" : "ascending"));
    for (const button of views.children) button.setAttribute("aria-pressed", button.dataset.view === state.view);
    list.hidden = state.view !== "list";
    picture.hidden = !list.hidden;
    fill(chance, found.chance);
    fill(count, h("span", {}, `${found.total} of ${Object.values(found.families).reduce((a, b) => a + b, 0)} claims`),
      found.pending && h("span", {}, "which were measured on an earlier version of the code is being looked at"), found.problems.map((p) => h("span", { class: "bad" }, p)));
  }
  async function drawAll() {
    const asked = { words: state.words, family: state.family, verdict: state.verdict }, key = JSON.stringify(asked);
    if (key === drawn) return;
    const where = await getBlob("effects", asked, signal);
    drawn = key;
    if (shown) URL.revokeObjectURL(shown);
    shown = where;
    fill(picture, h("img", { src: where, class: "picture", alt: "Effects and intervals of the claims in margins; the list has the same numbers" }),
      h("p", {}, h("a", { href: where, download: "effects.svg" }, "Save as SVG")));
  }
  function change(some) {
    Object.assign(state, some);
    remember({ ...state, down: state.down || null, view: state.view === "list" ? null : state.view, order: state.order === "verdict" ? null : state.order });
    refresh().catch((error) => { if (!signal.aborted) tell(error.message, true); });
  }
  await every(10, signal, refresh);
}

function row(claim) {
  return h("tr", { "data-row": claim.method, tabindex: 0 },
    h("td", {}, h("a", { href: link("claim", { method: claim.method }), title: claim.title || null }, claim.method)),
    h("td", { class: "n" }, claim.year ?? "–"),
    h("td", { class: SIGN[claim.verdict] || null }, claim.words),
    h("td", { class: "n" }, drawEffect(claim), h("div", {}, tellEffect(claim))),
    h("td", { class: "n" }, claim.seeds ?? "–"), h("td", {}, linkBed(claim.bed)), h("td", {}, claim.says));
}
