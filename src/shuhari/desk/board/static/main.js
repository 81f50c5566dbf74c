// The frame: which page is shown, keys, theme. A page is a module of pages/ with `title` and `show(main, query, context)`.

import { hasToken, NO_ANSWER, takeToken } from "./api.js";
import { fill, h } from "./dom.js";

const PAGES = { runs: "Runs", compare: "Compare", claims: "Claims", beds: "Beds", analyses: "Analyses" };
const OTHERS = ["run", "rollouts", "replay", "curriculum", "claim"]; // which need to be told of what
// a letter for each page: the first of its key that no page before it has
const LETTERS = Object.keys(PAGES).reduce((taken, page) => ({ ...taken, [[...page].find((c) => !(c in taken))]: page }), {});
const main = document.getElementById("main"), message = document.getElementById("message");
const KEYS = [["?", "these keys"], ["t", "light or dark"], ["/", "search"], ["j k", "next and previous row"],
  ["Enter", "open the row"], ["x", "select the row"], ["g and a letter", "go to a page: " + Object.entries(LETTERS).map(([k, page]) => `${k} ${PAGES[page]}`).join(", ")]];
let current = null, going = false;

/** #/page?query -> [page, query]; what is given several times is a list. */
function read() {
  const [page, query] = location.hash.replace(/^#\/?/, "").split("?");
  const words = new URLSearchParams(query || ""), all = (key) => words.getAll(key);
  return [page || "runs", Object.fromEntries([...words.keys()].map((key) => [key, all(key).length > 1 ? all(key) : all(key)[0]]))];
}

/** The address of a page; a list is given several times. */
export function link(page, query = {}) {
  const there = ([, v]) => v !== null && v !== undefined && v !== "";
  const words = new URLSearchParams(Object.entries(query).flatMap(([k, v]) => (Array.isArray(v) ? v : [v]).map((one) => [k, one])).filter(there));
  return `#/${page}${words.size ? `?${words}` : ""}`;
}

/** Change the query of the page that is shown, without another entry in the history. */
export function remember(query) {
  const [page, before] = read();
  history.replaceState(null, "", link(page, { ...before, ...query }));
}

/** Tell what happened, or what went wrong. */
export function tell(text, wrong = false) {
  message.hidden = !text;
  message.textContent = text;
  message.classList.toggle("wrong", wrong);
}

async function route() {
  takeToken(); // the printed address may be pasted into a page that is open
  document.body.dataset.token = hasToken();
  const [name, query] = read();
  if (current) current.abort();
  const here = (current = new AbortController());
  document.body.dataset.ready = "";
  tell("");
  for (const a of document.querySelectorAll("nav a"))
    a.getAttribute("href") === `#/${name}` ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current");
  try {
    if (!(Object.hasOwn(PAGES, name) || OTHERS.includes(name))) throw new Error(`there is no page ${name}; there are ${[...Object.keys(PAGES), ...OTHERS].join(", ")}`);
    const page = await import(`./pages/${name}.js`).catch((error) => { throw new Error(`page ${name} could not be loaded. ${error instanceof TypeError ? NO_ANSWER : error.message}`); });
    if (here.signal.aborted) return;
    document.title = `${page.title}${query.run ? ` ${query.run}` : ""} – shuhari board`;
    fill(main);
    await page.show(main, query, { signal: here.signal });
  } catch (error) {
    if (here.signal.aborted) return;
    here.abort(); // what the page still asks is for nobody
    tell(error.message, true);
    fill(main, h("p", {}, "This page could not be shown."), h("p", { class: "foot" }, Object.entries(PAGES).map(([page, title]) => h("a", { href: link(page) }, title))));
  }
  document.body.dataset.ready = name;
}

/** Do something now and every `seconds` while the page is shown; what goes wrong is told once. */
export function every(seconds, signal, work) {
  let failed = "";
  const again = async () => {
    if (signal.aborted) return;
    try {
      if (!document.hidden) await work();
      if (failed) tell((failed = ""));
    } catch (error) {
      if (signal.aborted) return;
      if (error.message !== failed) tell((failed = error.message), true);
    }
    if (!signal.aborted) setTimeout(again, seconds * 1000);
  };
  return again();
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
  dispatchEvent(new Event("theme"));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("shuhari-theme", theme);
}

function showKeys() {
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Move the focus by one among the rows of the page that open something. */
function move(by) {
  const rows = [...main.querySelectorAll("[data-row]")].filter((r) => r.offsetParent !== null);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement.closest("[data-row]"));
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))].focus();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select, textarea, [contenteditable]");
  if (typing) { if (event.key === "Escape") { event.preventDefault(); event.target.blur(); } return; } // a search would be emptied, and its list not
  if (going) {
    going = false;
    if (event.key in LETTERS) location.hash = link(LETTERS[event.key]);
    return;
  }
  const row = document.activeElement.closest("[data-row]");
  const act = {
    "?": showKeys, t: toggleTheme, j: () => move(1), k: () => move(-1), g: () => { going = true; },
    "/": () => main.querySelector("input[type=search]")?.focus(),
    x: () => row?.querySelector("input[type=checkbox]")?.click(),
    Enter: row && row === document.activeElement && (() => row.querySelector("a")?.click()), // else of a link or a button
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

if (localStorage.getItem("shuhari-theme")) setTheme(localStorage.getItem("shuhari-theme"));
document.querySelector("nav").append(...Object.entries(PAGES).map(([page, title]) => h("a", { href: `#/${page}` }, title)));
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showKeys);
addEventListener("hashchange", route);
route();
