// Groups of episodes that a run keeps: a list, a group token by token, two groups side by side.

import { get } from "../api.js";
import { choice, field, fill, h, number } from "../dom.js";
import { every, link, remember } from "../main.js";
import { drawEpisode, longText } from "../parts/episode.js";
import { drawMedia } from "../parts/media.js";
import { colour, joinRanges, legend, nameNumber, orderNumbers } from "../parts/tokens.js";

export const title = "Rollouts";
const PAGE = 50;
const ORDERS = [["worst", "worst sample"], ["score", "mean reward"], ["best", "best sample"], ["length", "length"], ["step", "step"]];
const STATUSES = [["", "any"], "finished", "truncated", "cut", "error"];
const FILTERS = ["step", "problem", "low", "high", "shortest", "longest", "status", "text", "replies", "contrast"];
const SORTS = [["up", "worst first"], ["down", "best first"], ["drawn", "as sampled"]];

export async function show(main, query, { signal }) {
  if (!document.querySelector('link[href="/static/rollouts.css"]'))
    document.head.append(h("link", { rel: "stylesheet", href: "/static/rollouts.css" }));
  const run = query.run || "latest";
  if (query.group) return showGroups(main, { ...query, run }, signal);
  if (query.other && query.problem) {
    const [found] = await findAlike(run, query.problem, query.step, signal);
    if (found) return showGroups(main, { ...query, run, group: found.id }, signal);
  }
  await showList(main, { ...query, run }, signal);
}

const findAlike = async (run, problem, step, signal) =>
  (await get("rollouts", { run, problem, step, order: "step", down: true, limit: 200 }, signal)).groups;

// ---------------------------------------------------------------- the list

async function showList(main, query, signal) {
  const { run } = query;
  const state = { order: query.order || "worst", down: query.down === "true", offset: Number(query.offset) || 0 };
  for (const name of FILTERS) state[name] = query[name] || "";
  let undecided = Object.keys(query).every((name) => name === "run"); // nothing is asked for: groups that teach something, if there are any
  if (undecided) state.contrast = "true";
  const body = h("tbody"), hint = h("p", { class: "quiet" }), foot = h("p", { class: "foot" });
  const set = (name) => (event) => change({ [name]: event.target.value, offset: 0 });
  const bound = (name, label, step = "any") => field(label, h("input", { type: "number", step, value: state[name], onchange: set(name) }));
  const contrast = h("input", { type: "checkbox", checked: state.contrast === "true", onchange: () => change({ contrast: String(contrast.checked), offset: 0 }) });
  const tools = h("input", { type: "checkbox", checked: state.replies === "1", onchange: () => change({ replies: tools.checked ? "1" : "", offset: 0 }) });
  const pair = (...fields) => h("span", { class: "pair" }, fields);
  let asked = 0, seen = "", status = "";
  main.append(h("p", {}, h("a", { href: link("run", { run }) }, run)), h("h1", {}, title),
    h("form", { class: "tools", onsubmit: (e) => e.preventDefault() },
      field("Words in prompt, answers, reasons", h("input", { type: "search", class: "wide", value: state.text, placeholder: "all words; begin* ", oninput: set("text") })),
      field("Order", choice(ORDERS, state.order, (v) => change({ order: v, offset: 0 }))),
      field("First", choice([["false", "lowest"], ["true", "highest"]], String(state.down), (v) => change({ down: v === "true", offset: 0 }))),
      bound("step", "Step", "1"), field("Problem", h("input", { value: state.problem, onchange: set("problem") })),
      pair(bound("low", "Mean reward from"), bound("high", "to")), pair(bound("shortest", "Length from", "1"), bound("longest", "to", "1")),
      field("Ended", choice(STATUSES, state.status, (v) => change({ status: v, offset: 0 }))),
      field("Rewards differ", contrast, "only groups whose samples earned different rewards: where these are compared within the group, it is learnt from these alone"),
      field("Tools or turns", tools, "only groups in which an environment or a tool answered")), hint,
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {},
      [["Problem"], ["Step", "n"], ["Kept as"], ["Samples", "n"], ["Mean reward", "n"], ["Worst to best", "n"], ["Longest", "n"], ["Ended"]].map(([x, kind]) => h("th", { scope: "col", class: kind }, x)))), body)), foot,
    drawMedia(run, signal, query));

  async function refresh() {
    const mine = ++asked;
    const filters = Object.fromEntries(FILTERS.map((name) => [name, state[name]]));
    const found = await get("rollouts", { run, ...filters, order: state.order, down: state.down, offset: state.offset, limit: PAGE }, signal);
    if (mine !== asked || signal.aborted) return;
    status = found.status;
    if (undecided && !found.total && found.kept) { undecided = contrast.checked = false; state.contrast = ""; return refresh(); }
    undecided &&= !found.kept;
    const text = JSON.stringify([found, state]);
    if (text === seen) return;
    seen = text;
    const at = document.activeElement.closest?.("[data-row]")?.dataset.row;
    fill(hint, state.contrast === "true" && found.kept > 0 && ["Groups whose samples earned different rewards; the others have no advantage where rewards are compared within the group. ",
      h("button", { type: "button", onclick: () => contrast.click() }, "Show all groups")]);
    fill(body, found.groups.map((group) => row(group, run, query.colour)));
    if (at) body.querySelector(`[data-row="${CSS.escape(at)}"]`)?.focus();
    fill(foot, summary(found), found.total > PAGE && h("span", { class: "pager" },
      h("button", { type: "button", disabled: !state.offset, onclick: () => change({ offset: Math.max(0, state.offset - PAGE) }) }, "Before"),
      `${state.offset + 1} to ${Math.min(state.offset + PAGE, found.total)}`,
      h("button", { type: "button", disabled: state.offset + PAGE >= found.total, onclick: () => change({ offset: state.offset + PAGE }) }, "After")));
    main.querySelector(".media").open ||= !found.kept && status !== "running";
    for (const part of main.querySelectorAll("form, .scroll")) part.hidden = !found.kept;
  }
  function change(some) {
    Object.assign(state, some);
    remember({ ...state, down: state.down ? "true" : null, offset: state.offset || null, order: state.order === "worst" ? null : state.order });
    const answer = refresh(), mine = asked;
    answer.catch((error) => {
      if (signal.aborted || mine !== asked) return;
      seen = "";
      fill(body);
      fill(foot, h("span", { class: "bad", role: "alert" }, error.message));
    });
  }
  const summary = (found) => h("span", {}, found.total ? `${found.total} of ${found.kept} groups`
    : found.kept ? "no group like this" : status === "running" ? "No group is kept yet: they come here with the steps that sample." : "this run keeps no groups: [store] rollouts says how many a step; below, a controller plays anew");
  await refresh();
  let turn = 0;
  every(3, signal, async () => { if (turn++ && status === "running") await refresh(); });
}

function row(group, run, colour) {
  return h("tr", { "data-row": group.id, tabindex: 0 },
    h("td", {}, h("a", { href: link("rollouts", { run, group: group.id, colour }), title: group.problem ?? "" }, group.prompt || (group.problem ?? group.group))),
    h("td", { class: "n" }, group.step), h("td", {}, group.why), h("td", { class: "n" }, number(group.samples)), h("td", { class: "n" }, number(group.score)),
    h("td", { class: "n" }, group.samples < 2 ? "–" : group.worst === group.best ? "all alike" : `${number(group.worst)} to ${number(group.best)}`),
    h("td", { class: "n" }, number(group.length)), h("td", {}, group.status));
}

// ---------------------------------------------------------------- one group, or two side by side

async function showGroups(main, query, signal) {
  fill(main, h("p", { class: "quiet", role: "status" }, "The group is opened…"));
  const { run } = query, first = await get("group", { run, id: query.group }, signal);
  const groups = [first];
  const same = query.other === run || query.other === first.run;
  const mates = query.other ? (await findAlike(query.other, first.problem.find, null, signal)).filter((g) => !same || g.id !== first.id) : [];
  const mate = mates.find((g) => String(g.id) === query.mate) ?? mates[0];
  if (mate) groups.push(await get("group", { run: query.other, id: mate.id }, signal));

  const ranges = joinRanges(groups.map((g) => g.numbers)), names = orderNumbers(ranges);
  const state = { colour: names.includes(query.colour) ? query.colour : names[0], sort: query.sort || "up" };
  const tokens = groups.some((g) => g.episodes.some((e) => !e.track));
  const columns = h("div", { class: groups.length > 1 ? "columns" : "" }), legends = h("span", {});
  const paintAll = () => { colour(columns, state.colour, ranges); fill(legends, legend(state.colour, ranges)); };
  const fillColumns = () => { fill(columns, groups.map((g) => drawGroup(g, groups.length > 1, state.sort, columns, ranges))); paintAll(); };

  fill(main, h("p", {}, h("a", { href: link("run", { run }) }, run), " / ", h("a", { href: link("rollouts", { run }) }, "Rollouts")),
    h("h1", {}, first.problem.id),
    h("form", { class: "tools stick", onsubmit: (e) => e.preventDefault() },
      tokens && names.length > 0 && field("Colour of tokens", choice(names.map((n) => [n, nameNumber(n)]), state.colour,
        (v) => { state.colour = v; remember({ colour: v }); paintAll(); })),
      field("Samples", choice(SORTS, state.sort, (v) => { state.sort = v; remember({ sort: v }); fillColumns(); })), tokens && legends),
    compare(query, same, mates, mate, signal), tokens && tellMissing(names), columns);
  fillColumns();
  if (first.numbers.advantage && first.numbers.advantage.low === 0 && first.numbers.advantage.high === 0) await pointOn(columns, run, first, signal);
}

/** Where all samples earned the same nothing is learnt: the nearest group in which some did better. */
async function pointOn(columns, run, group, signal) {
  const [next] = (await get("rollouts", { run, contrast: true, order: "worst", limit: 1 }, signal)).groups;
  columns.before(h("p", { class: "card" }, "All samples earned the same reward: no token has an advantage, and nothing was learnt from this group. ",
    next && next.id !== group.id ? h("a", { href: link("rollouts", { run, group: next.id }) }, `A group where rewards differ: ${next.problem}, step ${next.step}`) : null));
}

/** How a run is made to keep the numbers that tokens have none of. */
function tellMissing(names) {
  const entropy = !names.some((name) => name.endsWith("/entropy")), kl = !names.some((name) => name.startsWith("kl/"));
  if (!entropy && !kl) return null;
  return h("details", {}, h("summary", {}, `More colours: ${[entropy && "entropy", kl && "ratio, KL"].filter(Boolean).join(", ")}`),
    h("p", {}, "This run has not kept these numbers: they are kept where models are asked for them before the update. A weight of 0 asks, and leaves training as it is:"),
    entropy && h("pre", {}, "shuhari train … --set transform.entropy_shaping.alpha=0"),
    kl && h("pre", {}, "shuhari train … --set models.reference.init=policy --set transform.kl_in_reward.beta=0"),
    kl && h("p", {}, "The reference are the weights at the start; in a recipe of stages ", h("code", {}, "stage.rl.models.reference.init=policy"), " takes those with which stage rl begins."));
}

function compare(query, same, mates, mate, signal) {
  const box = h("div", { class: "tools" }), go = (some) => { location.hash = link("rollouts", { ...query, ...some }); };
  const details = h("details", { open: Boolean(query.other) }, h("summary", {}, "Compare with another step or run"), box);
  const build = async () => {
    if (box.childElementCount) return;
    const { runs } = await get("runs", { limit: 500 }, signal), names = runs.map((r) => r.name);
    if (!names.includes(query.run)) names.unshift(query.run);
    fill(box, field("Run", choice([["", "none"], ...names.map((n) => [n, n])], query.other || "", (v) => go({ other: v, mate: "" }))),
      mates.length ? field("Step", choice(mates.map((g) => [String(g.id), `${g.step}, ${g.why}, reward ${number(g.score)}`]), mate ? String(mate.id) : "", (v) => go({ mate: v })))
        : query.other ? h("span", {}, same ? "This problem was kept once." : `${query.other} keeps no group of this problem.`) : null);
  };
  details.addEventListener("toggle", () => { if (details.open) build(); });
  if (details.open) build();
  return details;
}

function drawGroup(group, named, sort, root, ranges) {
  const where = { run: group.run, id: group.id }, { problem } = group;
  const worth = (e) => { const all = (e.outcomes ?? Object.values(e.rewards)).filter(Number.isFinite); return all.length ? all.reduce((a, b) => a + b, 0) / all.length : Infinity; };
  const episodes = [...group.episodes];
  if (sort !== "drawn") episodes.sort((a, b) => (sort === "up" ? 1 : -1) * (worth(a) - worth(b)));
  const of = group.samples > 1 ? `${group.samples} samples, mean reward ${number(group.score)}` : `reward ${number(group.score)}`;
  return h("section", {}, named ? h("h2", {}, `${group.run}, step ${group.step}`) : null,
    h("p", { class: "quiet" }, `step ${group.step}, kept as ${group.why || "asked"}, ${of}. `, h("a", { href: link("replay", { run: group.run, step: group.step }) }, "Replay this step")),
    problem.prompt.map((turn, i) => turn.text ? h("div", { class: "asked" }, h("p", { class: "role" }, turn.role || "prompt"), longText(turn, where, `prompt/${i}`)) : null),
    problem.answer ? h("div", { class: "asked" }, h("p", { class: "role" }, "reference answer"), longText(problem.answer, where, "answer")) : null,
    group.weights ? null : h("p", { class: "quiet" }, "The weights of rewards were not kept by this run."),
    episodes.map((episode) => drawEpisode(episode, group, root, ranges)));
}
