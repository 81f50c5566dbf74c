// Elements from plain values. Text is always text: nothing here reads HTML, so that what a model wrote stays what it is.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("td", {class: "n", onclick: f}, "text", another element). Attributes of null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function s(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** A number as a table shows it: four digits; a dash where there is none. */
export function number(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x) && Math.abs(x) < 1e7) return String(x);
  return String(Number(x.toPrecision(4)));
}

/** A table: heads, rows of cells (text, numbers, elements). Numbers are set to the right. */
export function table(heads, rows, attributes = {}) {
  const plain = (x) => typeof x === "number" || x === null;
  const isNumber = (row, i) => (row instanceof Element ? row.children[i]?.className === "n" : plain(row[i]));
  const side = (i) => (rows.length && rows.every((row) => isNumber(row, i)) ? "n" : null);
  const cell = (x) => (plain(x) ? h("td", { class: "n" }, number(x)) : h("td", {}, x));
  return h("div", { class: "scroll" }, h("table", attributes,
    h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: side(i) }, head)))),
    h("tbody", {}, rows.map((row) => (row instanceof Element ? row : h("tr", {}, row.map(cell)))))));
}

/** A line of numbers, as large as a word; null where it has less than two. */
export function sparkline(values, label) {
  const points = values.map((y, x) => [x, y]).filter(([, y]) => Number.isFinite(y));
  if (points.length < 2) return null;
  const ys = points.map(([, y]) => y), low = Math.min(...ys), high = Math.max(...ys), right = values.length - 1;
  const at = ([x, y]) => `${((x / right) * 96 + 2).toFixed(1)} ${(22 - ((y - low) / (high - low || 1)) * 20).toFixed(1)}`;
  return s("svg", { class: "spark", viewBox: "0 0 100 24", role: "img", "aria-label": label || "curve" },
    s("path", { d: `M${points.map(at).join("L")}` }));
}

/** A labelled control: field("Search", input). */
export function field(label, control, title) {
  return h("label", { title: title || null }, h("span", {}, label), control);
}

/** A choice of [value, text] pairs, or of texts. */
export function choice(options, value, onchange, attributes = {}) {
  const pairs = options.map((o) => (Array.isArray(o) ? o : [o, o]));
  const select = h("select", { ...attributes, onchange: () => onchange(select.value) },
    pairs.map(([v, text]) => h("option", { value: v, selected: v === value }, text)));
  select.value = value;
  return select;
}

/** Put children into an element in the place of what it had. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}
