// One pod: why it is where it is, or why it waits; its messages; the nodes that were possible, and those that were not.

import { ask, el, fill, nodeLink, podLink, podPath, refill, words } from "./dom.js";
import { devicesOfPod } from "./devices.js";
import { clock, count, duration, unix } from "./format.js";
import { KINDS, OUTCOMES } from "./palette.js";
import { drawHelp, whatHelps } from "./remedies.js";
import { store } from "./store.js";
import { drawTrace } from "./trace.js";

const REFRESH_MS = 3000;
const SETTLED_MS = 30_000; // a pod that does not wait: its Decisions arrive anyway
const SHOWN_NODES = 12;
const SHOWN_REFUSED = 200;
const MEANS = {
  Loss: "the points that one more pod like this one costs there",
  Newcomers: "pods that came there after the ranking; the loss is taken off for each",
};
const NEWCOMERS = "Newcomers"; // beside plugins, since it changes the points
const NO_SCORES = "in all"; // where a ranking names no plugin's points

export function podView(place, signal, namespace, name) {
  const path = podPath(namespace, name);
  const named = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const whole = `${namespace}/${name}`;
  const verdict = el("div", { "aria-live": "polite" }, el("p", { class: "empty" }, "Reading..."));
  const more = el("div");
  const state = el("div");
  const helps = el("div", { class: "helps" });
  const waits = el("section", { class: "card", hidden: true }, el("h2", {}, "What it waits for"), helps, state);
  const devices = el("section", { class: "card", hidden: true });
  const choice = el("section", { class: "card", hidden: true });
  const refused = el("section", { class: "card", hidden: true });
  const trace = el("section", { class: "card", hidden: true });
  const now = el("section", { class: "card now" });
  fill(place, el("section", { class: "verdict" }, el("h1", {}, whole), verdict, more), waits, devices, choice, refused, trace, now);
  asking();

  const answers = {};
  let version = "";
  let reading = false;
  let again = 0;

  async function read() {
    reading = true;
    const [why, messages, queue] = await Promise.allSettled([ask(`${path}/why`), ask(`${path}/trace`), ask(`${path}/queue`)]);
    const isGroup = why.reason?.status === 404 && !queue.value?.queued && await ask(`api/groups/${named}`).then(() => true, () => false);
    reading = false;
    if (signal.aborted) return;
    if (isGroup) {
      location.replace(`#/group/${named}`);
      return;
    }
    Object.assign(answers, { why: why.value ?? null, messages: messages.value?.messages ?? null, queue: queue.value ?? null });
    const queued = queue.status === "fulfilled" && queue.value.queued ? queue.value : why.status === "fulfilled" && why.value.kind === "queued" ? why.value : null;
    const key = JSON.stringify([why.status, why.reason?.message, why.value && { ...why.value, age_seconds: 0, sentences: 0, now: 0 },
      messages.value?.messages?.length, queued && queued.queued && [queued.queued.pod.stage, queued.queued.pod.queue, queued.queued.attempt]]);
    const isBound = why.value?.outcome === "bound";
    again = performance.now() + (!queued && (isBound || queue.status === "fulfilled") ? SETTLED_MS : REFRESH_MS);
    const changed = key !== version;
    version = key;
    headline(why, isBound || queued ? null : queue);
    drawWaits(queued);
    if (!changed) return;
    const found = why.status === "fulfilled" ? why.value : {};
    devices.hidden = !found.given?.length;
    fill(devices, devices.hidden ? null : devicesOfPod(found.given, whole));
    drawCandidates(choice, found, "Nodes that were possible");
    drawRejections(refused, found.rejections || [], found.evaluated || found.nodes || 0);
    drawTrace(trace, `pod/${named}`, messages.status === "fulfilled" ? messages.value.messages : []);
  }

  /** The outcome is read out when it is another; what is below it has ages, and is drawn each time. `queue`: null where it waits or is bound. */
  function headline(why, queue) {
    const found = why.status === "fulfilled" ? why.value : null;
    const [first, ...rest] = found ? found.sentences : [why.reason.message];
    const isUnknown = why.reason?.status === 404 && queue?.status === "fulfilled";
    const drawn = el("div", {}, found ? headlineOf(found, whole, first) : isUnknown ? headlineOf({ outcome: "unknown" }, whole, "berth knows no pod of this name") : el("p", { class: "headline" }, first));
    if (drawn.textContent !== verdict.textContent) fill(verdict, ...drawn.childNodes);
    refill(more, found?.kind === "queued" ? null : sentencesOf(rest), // those are below
      found?.group ? itsGroup(found.group) : null,
      queue ? whetherItWaits(queue, found) : null, isUnknown ? unknown(first) : null);
  }

  /** What is said about a pod that is neither in NATS nor in the queue. */
  function unknown(sentence) {
    const others = [...new Set(store.decisions.filter((line) => line.pod === name && line.namespace !== namespace).map((line) => line.namespace))].slice(0, 5);
    return [el("p", { class: "muted" }, capital(`${sentence}.`)),
      el("p", { class: "muted" }, "Is the name right, and the namespace? A pod of another scheduler, and one that was decided on longer ago than NATS keeps Decisions, is not known here either."),
      others.length ? el("p", {}, "There is ", others.flatMap((each, at) => [at ? ", " : "", podLink(each, name)]), ".") : null];
  }

  const itsGroup = (group) => el("p", {}, "Its group: ", podLink(namespace, group), ".");

  function whetherItWaits(queue, found) {
    if (queue.status === "rejected") return el("p", { class: "notice" }, `Whether it waits is unknown: ${queue.reason.message}`);
    return found ? el("p", { class: "muted" }, "It does not wait any more.") : null;
  }

  function drawWaits(queued) {
    waits.hidden = !queued;
    if (!queued) return;
    const { helping = [] } = queued.queued;
    const [first, ...rest] = queued.sentences;
    const { group = "" } = queued.queued.pod;
    fill(state, group ? itsGroup(group) : null, el("p", { class: "muted" }, `In queue ${queued.queued.pod.queue}, created at ${clock(unix(queued.queued.pod.since)).slice(0, 8)}.`),
      queued.problem ? el("p", { class: "notice bad" }, queued.problem) : null,
      rest.filter((sentence) => !sentence.startsWith("*")).map((sentence) => el("p", { class: "muted" }, capital(sentence.trim()))),
      rest.length ? null : el("p", { class: "muted" }, first));
    drawHelp(helps, [queued.remedies, queued.missing, helping], () => whatHelps(queued, helping));
  }

  function asking() {
    const result = el("div", { "aria-live": "polite" });
    const button = el("button", { onclick: run }, "Ask again now");
    fill(now, el("div", { class: "row" }, button, el("span", { class: "muted" }, "Ranks it on every node, on the present state of the cluster, and binds nothing.")), result);

    async function run() {
      button.disabled = true;
      fill(result, el("p", { class: "empty" }, "Ranking on every node..."));
      const asked = performance.now();
      try {
        const found = await ask(`${path}/now`, { method: "POST" });
        answers.now = found;
        const took = (performance.now() - asked) / 1000;
        const best = found.candidates[0];
        const stands = found.node ? `It is on ${found.node}; ranked now ` : "Ranked now ";
        const answer = found.error ? `it would fail: ${found.error}` : best ? `it would go to ${best.node}.` : `it would wait: ${found.message}`;
        const age = found.view_is_current ? "The data was current. "
          : found.view_age_seconds === null ? "" : `The data was ${duration(found.view_age_seconds)} old. `;
        const table = el("section");
        const groups = el("section");
        const helping = el("section", {}, best ? null : whatHelps(found));
        fill(result, el("p", { class: "headline" }, stands + answer),
          el("p", { class: "muted" }, `${count(found.feasible)} of ${count(found.evaluated)} nodes are possible. ${age}`,
            found.on_the_way ? `${count(found.on_the_way)} ranked pods that are not bound yet are not counted. ` : "", `Asked at ${clock(store.now())}, answered in ${duration(took)}.`),
          found.gated ? el("p", { class: "notice" }, `Gated: ${found.gated.plugin}: ${found.gated.reasons.join(", ")}`) : null,
          found.notes.map((note) => el("p", { class: "notice" }, note)), helping, table, groups);
        drawCandidates(table, found, "Nodes that are possible");
        drawRejections(groups, grouped(found.refused), found.evaluated);
      } catch (error) {
        fill(result, el("p", { class: "notice bad" }, error.message));
      } finally {
        button.disabled = false;
      }
    }
  }

  store.on("decisions", (lines) => {
    if (lines.some((line) => line.pod === name && line.namespace === namespace)) again = 0;
  }, signal);
  store.on("bus", () => { again = 0; }, signal);
  const timer = setInterval(() => {
    if (signal.aborted) clearInterval(timer);
    else if (!reading && performance.now() > again && store.bus.connected && !document.hidden) read();
  }, 200);
  read();
  return () => ({ pod: whole, ...answers });
}

/** What became of a pod: the outcome with the first sentence, the others below. */
export function drawVerdict(place, found, whole, [first, ...rest]) {
  fill(place, headlineOf(found, whole, first), sentencesOf(rest));
}

/** The outcome, and a sentence without the pod's name. */
export function headlineOf({ outcome, node }, whole, sentence) {
  const badge = el("span", { class: "badge" }, outcome === "conflict" ? "ranked again" : outcome || "unknown");
  badge.style.borderColor = OUTCOMES[outcome] || OUTCOMES.gone;
  const says = sentence.startsWith(`${whole} `) ? sentence.slice(whole.length + 1) : sentence;
  return el("p", { class: "headline" }, badge, " ", linked(capital(says), node));
}

export const sentencesOf = (sentences) => sentences.map((sentence) => el("p", { class: "muted" }, sentence.trim()));

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A sentence in which the node's name leads to the node. */
function linked(sentence, node) {
  const at = node ? sentence.indexOf(node) : -1;
  return at < 0 ? sentence : [sentence.slice(0, at), nodeLink(node), sentence.slice(at + node.length)];
}

/** Refused nodes by plugin and reason, the most frequent first. */
function grouped(refused) {
  const groups = new Map();
  for (const one of refused) {
    for (const reason of one.reasons) {
      const key = `${one.plugin}\n${reason}`;
      if (!groups.has(key)) groups.set(key, { plugin: one.plugin, reason, nodes: 0, examples: [] });
      const group = groups.get(key);
      group.nodes += 1;
      if (group.examples.length < SHOWN_REFUSED) group.examples.push(one.node);
    }
  }
  return [...groups.values()].sort((a, b) => b.nodes - a.nodes);
}

const colours = new Map();

/** The same for a plugin wherever it is shown on the page, so that two rankings can be compared. */
function colourOf(plugin) {
  if (plugin === NO_SCORES) return OUTCOMES.gone;
  if (!colours.has(plugin)) colours.set(plugin, KINDS[colours.size % KINDS.length]);
  return colours.get(plugin);
}

/** The badges of candidates: the chosen one of a Decision, else the best; the one behind it; the pod's present node. */
function rolesOf(order, { node, outcome }) {
  const at = order.findIndex((each) => each.node === node);
  const isChosen = Boolean(outcome) && at >= 0;
  const first = isChosen ? at : 0;
  const roles = new Map([[order[first], [isChosen ? "chosen" : "best"]], [order[first + 1], ["runner-up"]]]);
  if (at >= 0 && !isChosen) roles.set(order[at], [...(roles.get(order[at]) || []), "present"]);
  return roles;
}

/** A candidate's points by plugin; what newcomers cost counts like a plugin's. */
function pointsOf({ scores, total, estimate }) {
  const points = new Map(Object.entries(scores).map(([plugin, score]) => [plugin, score.points ?? 0]));
  if (points.size && estimate !== total) points.set(NEWCOMERS, estimate - total);
  return points;
}

/** What separates candidates from the best one with known points, by plugin, the largest differences first, and what is equal on all. */
function compared(shown) {
  const points = new Map(shown.map((each) => [each, pointsOf(each)]));
  const scored = shown.filter((each) => points.get(each).size);
  const [best] = scored.length ? scored : shown;
  const plugins = [...new Set(scored.flatMap((each) => [...points.get(each).keys()]))].sort();
  const of = (each, plugin) => points.get(each).get(plugin) ?? 0;
  const differs = (plugin) => scored.some((each) => of(each, plugin) !== of(best, plugin));
  const largest = (plugin) => Math.max(...scored.map((each) => Math.abs(of(each, plugin) - of(best, plugin))));
  const different = plugins.filter(differs).sort((a, b) => largest(b) - largest(a));
  const parts = new Map(shown.map((each) => [each, scored.includes(each) || each === best
    ? different.map((plugin) => [plugin, of(each, plugin) - of(best, plugin)]).filter(([, part]) => part)
    : [[NO_SCORES, each.estimate - best.estimate]]]));
  return { best, different, parts, equal: plugins.filter((plugin) => !differs(plugin)).map((plugin) => [plugin, of(best, plugin)]).sort((a, b) => b[1] - a[1]) };
}

const tenths = (number) => Math.round(number * 10) / 10;
const signed = (number) => (tenths(number) < 0 ? `\u2212${-tenths(number)}` : tenths(number) ? `+${tenths(number)}` : "0");

/** How a candidate differs from the best one: fewer points of a plugin to the left of a line, more to the right. */
function differenceBar(parts, below, above) {
  const whole = below + above || 1;
  const bar = el("div", { class: "difference", role: "img", "aria-label": parts.map(([plugin, part]) => `${plugin} ${signed(part)}`).join(", ") || "no difference" });
  const axis = el("b");
  axis.style.left = `${(below / whole) * 100}%`;
  const ends = { [-1]: below, 1: below };
  for (const [plugin, part] of parts) {
    const piece = el("i", { title: `${plugin} ${signed(part)}` });
    const from = ends[Math.sign(part)];
    ends[Math.sign(part)] += part;
    piece.style.left = `${(Math.min(from, from + part) / whole) * 100}%`;
    piece.style.width = `${(Math.abs(part) / whole) * 100}%`;
    piece.style.background = colourOf(plugin);
    bar.append(piece);
  }
  bar.append(axis);
  return bar;
}

/** How the nodes that were possible differ from the best of them; the plan of a group has no points. */
export function drawCandidates(place, found, title) {
  const all = found.of_group ? [] : found.candidates || [];
  place.hidden = !all.length;
  if (!all.length) return fill(place);
  const order = [...all].sort((a, b) => b.estimate - a.estimate || a.newcomers - b.newcomers);
  const roles = rolesOf(order, found);
  const plugins = [...new Set(all.flatMap((each) => Object.keys(each.scores)))].sort();
  const shown = order.slice(0, SHOWN_NODES);
  if (found.node && !shown.some((each) => each.node === found.node)) shown.push(...all.filter((each) => each.node === found.node));
  const points = (score) => (score.weight && score.score !== null ? `${score.score} x ${score.weight}` : `${score.points}`);
  const { best, different, parts, equal } = compared(shown);
  const sum = (each, sign) => parts.get(each).reduce((total, [, part]) => total + Math.max(0, sign * part), 0);
  const [below, above] = [-1, 1].map((sign) => Math.max(...shown.map((each) => sum(each, sign))));
  const rows = shown.map((each) => {
    const badges = roles.get(each) || [];
    const arrivals = each.newcomers ? `${each.total} points, less ${each.newcomers} newcomers at ${each.loss} points each` : null;
    return el("li", { class: badges.includes("chosen") ? "chosen" : "" }, el("span", { class: "name" }, nodeLink(each.node), badges.map((badge) => el("em", {}, badge))),
      differenceBar(parts.get(each), below, above),
      el("span", { class: "number apart" }, each === best ? "" : signed(each.estimate - best.estimate)), el("span", { class: "number", title: arrivals }, tenths(each.estimate)));
  });
  const legend = el("ul", { class: "keys" }, [...different, ...([...parts.values()].flat().some(([plugin]) => plugin === NO_SCORES) ? [NO_SCORES] : [])].map((plugin) => {
    const dot = el("i", { class: "dot" });
    dot.style.background = colourOf(plugin);
    return el("li", { title: MEANS[plugin] }, dot, el("span", {}, plugin === NO_SCORES ? "the plugins' points were not kept" : words(plugin)));
  }));
  const table = el("details", {}, el("summary", {}, "Points as a table"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Node", "Total", ...plugins, "Pods", "Loss", "Newcomers"].map((each) => el("th", { scope: "col", title: MEANS[each] }, words(each))))),
    el("tbody", {}, shown.map((each) => el("tr", {}, el("th", { scope: "row" }, each.node), el("td", { class: "number" }, each.total),
      plugins.map((plugin) => el("td", { class: "number" }, each.scores[plugin] ? points(each.scores[plugin]) : "-")),
      [each.pods, each.loss, each.newcomers].map((number) => el("td", { class: "number" }, number))))))),
    el("p", { class: "muted" }, Object.entries(MEANS).map(([name, means]) => `${name}: ${means}.`).join(" ")));
  const details = shown.flatMap((each) => Object.entries(each.details || {}).map(([plugin, explanation]) => el("li", {}, el("b", {}, each.node), ` ${plugin}: ${explanation}`)));
  return fill(place, el("h2", {}, `${title} `, el("span", { class: "muted" }, `${count(found.feasible)} of ${count(found.evaluated)}, the best first`)),
    shown.length < 2 ? null : different.length || shown.some((each) => each.estimate !== best.estimate)
      ? [el("p", { class: "muted" }, `Points apart from ${best === shown[0] ? "the best node" : `${best.node}, the best whose plugins' points were kept`}: fewer to the left of the line, more to the right.`), legend]
      : el("p", { class: "muted" }, "These nodes have the same points of every plugin."),
    el("ol", { class: "candidates" }, rows),
    equal.length ? el("p", { class: "equal" }, shown.length > 1 ? "Equal on all: " : "Points: ", equal.map(([plugin, same]) => el("span", {}, words(plugin), ` ${tenths(same)}`))) : null,
    all.length > shown.length ? el("p", { class: "muted" }, `and ${count(all.length - shown.length)} more`) : null, table,
    details.length ? el("details", {}, el("summary", {}, "The plugins' explanations"), el("ul", {}, details)) : null);
}

/** Refused nodes: a bar for each plugin and reason. */
export function drawRejections(place, rejections, nodes) {
  place.hidden = !rejections.length;
  if (!rejections.length) return fill(place);
  const whole = Math.max(nodes, ...rejections.map((one) => one.nodes), 1);
  return fill(place, el("h2", {}, "Nodes that were refused"), el("ul", { class: "bars rejections" }, rejections.map((one) => {
    const bar = el("i");
    bar.style.width = `${(one.nodes / whole) * 100}%`;
    const examples = (one.examples || []).slice(0, 5).flatMap((name, at) => [at ? ", " : "", nodeLink(name)]);
    return el("li", {}, el("span", { class: "name" }, el("b", {}, words(one.plugin)), ` ${one.reason}`), el("span", { class: "bar" }, bar),
      el("span", { class: "number" }, `${count(one.nodes)} ${one.nodes === 1 ? "node" : "nodes"}`), el("span", { class: "muted examples" }, "such as ", examples));
  })));
}
