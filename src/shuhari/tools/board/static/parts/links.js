// Links from what a page shows to claims, beds and comparisons.

import { get } from "../api.js";
import { h } from "../dom.js";
import { link } from "../main.js";

let claimed = null;

/** A link to the claim of a recipe with its verdict, or null where it states none. The methods are asked for once. */
export async function linkClaim(recipe) {
  claimed ??= get("claimed").catch((error) => { claimed = null; throw error; });
  const verdict = (await claimed)[recipe];
  return verdict === undefined ? null : h("a", { href: link("claim", { method: recipe }), title: `claim of ${recipe}` }, `claim: ${verdict}`);
}

/** A link to a bed, or its name alone where it is no recipe of a bed. */
export function linkBed(bed) {
  return bed ? h("a", { href: link("beds", { bed }) }, bed) : "–";
}

/** A link to a comparison of sides, each a list of names of runs. */
export function linkCompare(sides, text = "Compare") {
  return h("a", { href: link("compare", { side: sides.map((names) => names.join(",")) }) }, text);
}
