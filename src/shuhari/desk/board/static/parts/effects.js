// Effects in margins: as text, and as a line on an axis from -4 to 4 margins.

import { number, s } from "../dom.js";

const REACH = 4;
export const SIGN = { holds: "good", "holds at a cost": "good", "holds, small": "good", reversed: "bad", "below margin": "warn" };

/** `0.43 [-0.08, 0.94]`, or a dash where nothing was measured. */
export function tellEffect(row) {
  return row.effect === null ? "–" : `${short(row.effect)} [${short(row.low)}, ${short(row.high)}]`;
}

/** The interval on an axis, 0 and one margin marked; null where nothing was measured. */
export function drawEffect(row) {
  if (row.effect === null) return null;
  const at = (x) => (60 + (Math.max(-REACH, Math.min(REACH, x)) / REACH) * 56).toFixed(1);
  return s("svg", { class: "effect", viewBox: "0 0 120 16", role: "img", "aria-label": `${tellEffect(row)} margins` },
    s("path", { class: "zero", d: `M${at(0)} 0V16` }), s("path", { class: "margin", d: `M${at(1)} 0V16` }),
    s("path", { class: "span", d: `M${at(row.low)} 8H${at(row.high)}` }), beyond(row.effect) || s("circle", { cx: at(row.effect), cy: 8, r: 3 }));
}

/** A triangle for an effect that lies further out. */
function beyond(effect) {
  if (Math.abs(effect) <= REACH) return null;
  return s("path", { class: "beyond", d: effect > 0 ? "M111 3L119 8L111 13Z" : "M9 3L1 8L9 13Z" });
}

function short(x) {
  return number(Number(x.toPrecision(2)));
}
