// Text token by token, coloured by a number of each; numbers on hover and on focus, arrow keys move between tokens.

import { fill, h, number } from "../dom.js";

const NAMES = { advantage: "advantage", logp: "log-probability at sampling", version: "version of the weights",
  ratio: "ratio: before the update / at sampling" };
const SAID = "said"; // of a step whose pieces are not known

/** What a number is called. */
export function nameNumber(name) {
  if (NAMES[name]) return NAMES[name];
  if (name.startsWith("kl/")) return `log-ratio to ${name.slice(3)} (its mean is the KL)`;
  const [role, what] = name.split("/");
  return what ? `${what.replace("log_prob", "log-probability").replaceAll("_", " ")} of ${role}` : name;
}

/** The numbers that tokens may be coloured by, the most telling first. */
export function orderNumbers(ranges) {
  const rank = (name) => { const at = ["advantage", "logp", "ratio"].indexOf(name); return at < 0 ? (name === "version" ? 9 : 5) : at; };
  return Object.keys(ranges).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/** The ranges of several groups together. */
export function joinRanges(all) {
  const out = {}, falls = (r) => r.origin === r.high && r.low < r.high;
  for (const ranges of all)
    for (const [name, r] of Object.entries(ranges)) {
      const o = out[name] ?? r, low = Math.min(o.low, r.low), high = Math.max(o.high, r.high), signed = o.signed || r.signed;
      const origin = signed ? 0 : name === "ratio" ? 1 : falls(o) || falls(r) ? high : low;
      out[name] = { low, high, signed, origin, middle: (o.middle + r.middle) / 2 };
    }
  return out;
}

const reach = (range) => Math.max(Math.abs(range.high - range.origin), Math.abs(range.low - range.origin)) || 1;
const diverges = (name, range) => range.signed || name === "ratio";

/** How strongly a value is coloured: [0..1, "plus" | "minus" | "more"]. The scale is that of asinh in units of the
 * middle: near the origin linear, far out logarithmic, so that one outlier leaves the colour of the others. */
function weigh(value, name, range) {
  const bend = (distance) => Math.asinh(distance / (range.middle || 1)), way = value < range.origin ? "minus" : "plus";
  return [bend(Math.abs(value - range.origin)) / bend(reach(range)), diverges(name, range) ? way : "more"];
}

function paint(element, value, name, range) {
  element.classList.remove("plus", "minus", "more");
  element.style.removeProperty("--a");
  if (!range || !Number.isFinite(value) || (range.low === range.high && !diverges(name, range))) return;
  const [share, way] = weigh(value, name, range);
  if (share < 0.004 && way !== "more") return;
  element.classList.add(way);
  element.style.setProperty("--a", `${Math.round(8 + 52 * share)}%`);
}

/** Colour all tokens below an element by a number. */
export function colour(root, name, ranges) {
  for (const box of root.querySelectorAll(".tokens")) {
    const numbers = box.step.numbers[name], range = ranges[name];
    if (box.dataset.whole !== undefined) { paint(box, box.step.means[name], name, range); continue; }
    for (let i = 0; i < box.children.length; i++) paint(box.children[i], numbers ? numbers[i] : null, name, range);
  }
  root.named = name;
}

/** What the colours say. */
export function legend(name, ranges) {
  const range = ranges[name];
  if (!range) return h("span", { class: "quiet" }, "no number of its tokens was kept");
  if (range.low === range.high) return h("span", { class: "legend" }, `${nameNumber(name)}: ${number(range.low)} everywhere`);
  if (!diverges(name, range)) {
    const ends = range.origin === range.high ? [range.high, range.low] : [range.low, range.high];
    return h("span", { class: "legend" }, number(ends[0]), h("span", { class: "ramp more", "aria-hidden": "true" }), number(ends[1]));
  }
  const c = range.origin, most = reach(range);
  return h("span", { class: "legend" }, number(c - most), h("span", { class: "ramp both", "aria-hidden": "true" }), number(c + most),
    h("span", { class: "quiet" }, `here ${number(range.low)} to ${number(range.high)}${most > 3 * range.middle ? ", asinh scale" : ""}`),
    h("span", { class: "minus sample" }, `below ${c}: underlined`), h("span", { class: "plus sample" }, `above ${c}`));
}

const tip = h("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });

function describe(token) {
  const box = token.parentElement, { step } = box, i = [...box.children].indexOf(token);
  const rows = Object.entries(step.numbers).filter(([, v]) => Number.isFinite(v[i])).map(([name, v]) => [h("dt", {}, nameNumber(name)), h("dd", {}, number(v[i]))]);
  const given = step.mask[i] ? null : h("p", {}, "given, not drawn by the policy");
  return [h("p", {}, `token ${i + 1} of ${step.total}: `, h("code", {}, JSON.stringify(step.pieces[i]))), given, rows.length ? h("dl", {}, rows) : null];
}

function showTip(token) {
  if (!tip.isConnected) document.body.append(tip);
  fill(tip, describe(token));
  tip.hidden = false;
  const at = token.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${at.bottom + tip.offsetHeight + 8 > innerHeight ? at.top - tip.offsetHeight - 4 : at.bottom + 4}px`;
  token.setAttribute("aria-describedby", "tip");
}

function hideTip() {
  tip.hidden = true;
}
addEventListener("hashchange", hideTip);
addEventListener("scroll", hideTip, { passive: true, capture: true });

const onToken = (act) => (event) => { if (event.target.parentElement === event.currentTarget) act(event.target, event); };

function walk(token, event) {
  const to = { ArrowRight: token.nextElementSibling, ArrowLeft: token.previousElementSibling,
    Home: token.parentElement.firstElementChild, End: token.parentElement.lastElementChild }[event.key];
  if (event.key === "Escape") hideTip();
  if (!to) return;
  event.preventDefault();
  token.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function makeToken(text, drawn, first) {
  const visible = text.includes("\n") ? text.replaceAll("\n", "↵\n") : text;
  return h("span", { class: drawn ? null : "given", tabindex: first ? 0 : -1 }, visible === "" ? "·" : visible);
}

/** The text of a step. `more(offset)` gives further tokens of it; `longer(offset)` further text where pieces are unknown. */
export function drawText(step, root, ranges, more, longer) {
  if (!step.pieces) {
    const box = h("div", { class: "tokens", "data-whole": SAID }, step.said ? step.said.text : "");
    box.step = step;
    const told = Object.keys(step.means).length ? h("p", { class: "quiet" }, "Coloured as a whole, by its mean: the run did not keep the pieces of its text.") : null;
    return [box, step.said ? moreText(box, step.said, longer) : null, told];
  }
  const box = h("div", { class: "tokens", role: "group", "aria-label": `${step.total} tokens, arrow keys move between them`,
    onmouseover: onToken(showTip), onmouseout: hideTip, onfocusin: onToken(showTip), onfocusout: hideTip, onkeydown: onToken(walk) },
    step.pieces.map((text, i) => makeToken(text, step.mask[i], i === 0)));
  box.step = step;
  return [box, step.total > step.pieces.length ? moreTokens(box, step, root, ranges, more) : null];
}

function moreTokens(box, step, root, ranges, more) {
  const say = () => `Show more of ${step.total - step.pieces.length} tokens`;
  const button = h("button", { type: "button", class: "more", onclick: async () => {
    button.disabled = true;
    const found = await more(step.pieces.length);
    box.append(...found.pieces.map((text, i) => makeToken(text, found.mask[i], false)));
    step.pieces.push(...found.pieces);
    step.mask.push(...found.mask);
    for (const [name, values] of Object.entries(found.numbers)) (step.numbers[name] ??= []).push(...values);
    colour(root, root.named, ranges);
    button.disabled = false;
    button.textContent = say();
    if (step.pieces.length >= step.total) button.remove();
  } }, say());
  return button;
}

/** A button for what is left of a text that was cut. */
export function moreText(box, text, more) {
  if (!text.left) return null;
  let { left, next } = text;
  const say = () => `Show more of ${left} characters`;
  const button = h("button", { type: "button", class: "more", onclick: async () => {
    button.disabled = true;
    const found = await more(next);
    ({ left, next } = found);
    box.append(found.text);
    button.disabled = false;
    button.textContent = say();
    if (!left) button.remove();
  } }, say());
  return button;
}
