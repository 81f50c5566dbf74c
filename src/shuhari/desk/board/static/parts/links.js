// Links from what a page shows to beds.

import { h } from "../dom.js";
import { link } from "../main.js";

/** A link to a bed, or its name alone where it is no recipe of a bed. */
export function linkBed(bed) {
  return bed ? h("a", { href: link("beds", { bed }) }, bed) : "–";
}
