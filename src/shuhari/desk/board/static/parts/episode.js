// An episode of a group: what it earned and why, and its turns; of a tree, branches as nested lists.

import { get } from "../api.js";
import { h, number } from "../dom.js";
import { drawText, moreText } from "./tokens.js";
import { drawTrack } from "./track.js";

/** {text, left} with a button for more. `part`: its name, as the address `text` knows it. */
export function longText(text, where, part, attributes = {}) {
  const box = h("div", { class: "plain", ...attributes }, text.text);
  return [box, moreText(box, text, (offset) => get("text", { ...where, part, offset }))];
}

function rewards(episode) {
  const names = Object.keys(episode.rewards), trained = episode.outcomes?.length === 1 ? episode.outcomes[0] : null;
  if (!names.length) return h("p", { class: "quiet" }, "not graded");
  if (episode.outcomes?.length > 1) {
    const graded = episode.outcomes.filter(Number.isFinite);
    return h("p", {}, h("strong", {}, `${episode.outcomes.length} leaves, mean trained reward ${number(graded.length ? graded.reduce((a, b) => a + b, 0) / graded.length : null)}`),
      `, weights ${Object.entries(episode.weights).map(([n, w]) => `${n} ${number(w)}`).join(", ")}`);
  }
  if (!episode.weighted) return h("p", {}, names.map((n) => h("span", { class: "fact" }, `${n} ${number(episode.rewards[n])}`)));
  const terms = names.filter((n) => n in episode.weighted);
  const others = names.filter((n) => !(n in episode.weighted));
  const sum = terms.map((n) => `${n} ${number(episode.rewards[n])} × ${number(episode.weights[n])}`).join(" + ");
  return h("p", {}, h("span", { class: "fact" }, h("strong", {}, `trained reward ${trained === null ? "" : number(trained)}`), terms.length ? ` = ${sum}` : ""),
    others.map((n) => h("span", { class: "fact quiet" }, `${n} ${number(episode.rewards[n])} (weight 0)`)));
}

function facts(episode, where) {
  const reasons = Object.entries(episode.reasons), more = few(episode) ? [] : Object.entries(episode.facts);
  if (!reasons.length && !more.length) return null;
  return h("details", { open: reasons.length > 0 }, h("summary", {}, reasons.length ? "Why" : "Facts"), h("dl", {},
    reasons.map(([name, text]) => [h("dt", {}, name), h("dd", {}, longText(text, where, `reason/${episode.index}/${name}`))]),
    more.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(typeof value === "number" ? number(value) : value))])));
}

const few = (episode) => Object.keys(episode.facts).length <= 3; // these stand in the first line
const fact = ([name, value]) => h("span", { class: "fact quiet" }, typeof value === "boolean" ? `${value ? "" : "not "}${name}` : `${name} ${number(value)}`);

/** An episode of a group as an article. `root`: the element whose tokens are coloured together. */
export function drawEpisode(episode, group, root, ranges) {
  const where = { run: group.run, id: group.id }, times = episode.alike.length;
  episode.weights = group.weights;
  const advantage = episode.advantage === null ? null
    : h("span", { class: `fact ${episode.advantage < 0 ? "bad" : episode.advantage > 0 ? "good" : ""}` }, `advantage ${number(episode.advantage)}`);
  return h("article", { class: "card", "aria-label": `sample ${episode.index + 1}` },
    h("p", {}, h("strong", {}, times > 1 ? `${times} alike: samples ${list(episode.alike)}` : `Sample ${episode.index + 1}`), " ",
      h("span", { class: `fact ${episode.status === "error" ? "bad" : "quiet"}` }, episode.status),
      episode.tokens && !episode.track ? h("span", { class: "fact quiet" }, `${episode.tokens} token${episode.tokens > 1 ? "s" : ""}`) : null, advantage,
      few(episode) ? Object.entries(episode.facts).map(fact) : null),
    rewards(episode), facts(episode, where),
    episode.track ? drawTrack(episode.track) : drawSteps(episode, where, root, ranges),
    episode.left ? h("p", { class: "quiet" }, `${episode.left} more steps are not shown.`) : null);
}

function list(indices) {
  const shown = indices.slice(0, 8).map((i) => i + 1).join(", ");
  return indices.length > 8 ? `${shown}, …` : shown;
}

function drawSteps(episode, where, root, ranges) {
  const { steps } = episode, children = steps.map(() => []), roots = [];
  steps.forEach((step, i) => (step.parent === null ? roots : children[step.parent]).push(i));
  const decided = (i) => steps[i].total > 0 && (steps[i].pieces || steps[i].said);
  const ends = new Map(steps.flatMap((_, i) => (children[i].length ? [] : [i])).map((i, k) => [i, k]));
  const turns = steps.filter((_, i) => decided(i)).length, tree = steps.some((_, i) => children[i].length > 1) || roots.length > 1;

  function draw(first) { // a chain is flat; where it forks, a list
    const out = [];
    for (let i = first; ;) {
      if (decided(i)) out.push(drawStep(steps[i], turns > 1));
      const next = children[i];
      if (next.length === 1) { i = next[0]; continue; }
      if (next.length > 1) out.push(h("ul", { class: "tree" }, next.map((j) => h("li", {}, draw(j)))));
      else if (tree && episode.outcomes && !episode.left) out.push(h("p", { class: "leaf" }, `leaf ${ends.get(i) + 1}: trained reward ${number(episode.outcomes[ends.get(i)])}`));
      return out;
    }
  }
  function drawStep(step, several) {
    const part = `${episode.index}/${step.of}`;
    const more = (offset) => get("tokens", { ...where, episode: episode.index, step: step.of, offset, limit: 10000 });
    const longer = (offset) => get("text", { ...where, part: `said/${part}`, offset });
    const label = several || step.role !== "policy"
      ? h("p", { class: "role" }, h("span", { class: "fact" }, step.role), step.leaves > 1 ? h("span", { class: "fact quiet" }, `shared by ${step.leaves} leaves`) : null, several ? summary(step) : null) : null;
    return h("div", { class: "turn" }, label, drawText(step, root, ranges, more, longer),
      step.told ? h("div", { class: "told" }, h("p", { class: "role" }, "environment or tool"), longText(step.told, where, `told/${part}`)) : null);
  }
  return roots.length > 1 ? h("ul", { class: "tree" }, roots.map((i) => h("li", {}, draw(i)))) : roots.length ? h("div", {}, draw(roots[0])) : null;
}

function summary(step) {
  const paid = Object.entries(step.rewards).map(([name, value]) => `${name} ${number(value)}`).join(", ");
  const advantage = step.means.advantage;
  return [paid ? h("span", { class: "fact quiet" }, paid) : null,
    advantage === undefined ? null : h("span", { class: `fact ${advantage < 0 ? "bad" : advantage > 0 ? "good" : "quiet"}` }, `advantage ${number(advantage)}`)];
}
