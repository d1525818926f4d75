// One pod: why it is where it is, or why it waits; its messages; the nodes that were possible, and those that were not.

import { ask, el, fill, nodeLink, podPath, words } from "./dom.js";
import { clock, count, duration, unix } from "./format.js";
import { KINDS, OUTCOMES, STAGES } from "./palette.js";
import { drawHelp, whatHelps } from "./remedies.js";
import { store } from "./store.js";

const REFRESH_MS = 3000;
const SETTLED_MS = 30_000; // a pod that does not wait: its Decisions arrive anyway
const SHOWN_NODES = 12;
const SHOWN_REFUSED = 200;
const MEANS = {
  Loss: "the points that one more pod like this one costs there",
  Newcomers: "pods that came there after the ranking; the loss is taken off for each",
};

export function podView(place, signal, namespace, name) {
  const path = podPath(namespace, name);
  const whole = `${namespace}/${name}`;
  const verdict = el("div", { "aria-live": "polite" }, el("p", { class: "empty" }, "Reading..."));
  const more = el("div");
  const state = el("div");
  const helps = el("div");
  const waits = el("section", { class: "card", hidden: true }, state, helps);
  const choice = el("section", { class: "card", hidden: true });
  const refused = el("section", { class: "card", hidden: true });
  const trace = el("section", { class: "card", hidden: true });
  const now = el("section", { class: "card now" });
  fill(place, el("section", { class: "verdict" }, el("h1", {}, whole), verdict, more), waits, choice, refused, trace, now);
  asking();

  let version = "";
  let reading = false;
  let again = 0;

  async function read() {
    reading = true;
    const [why, messages, queue] = await Promise.allSettled([ask(`${path}/why`), ask(`${path}/trace`), ask(`${path}/queue`)]);
    reading = false;
    if (signal.aborted) return;
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
    drawCandidates(choice, found, "Nodes that were possible");
    drawRejections(refused, found.rejections || [], found.evaluated || found.nodes || 0);
    drawTrace(messages.status === "fulfilled" ? messages.value.messages : []);
  }

  /** The outcome is read out when it is another; what is below it has ages, and is drawn each time. `queue`: null where it waits or is bound. */
  function headline(why, queue) {
    const found = why.status === "fulfilled" ? why.value : null;
    const [first, ...rest] = found ? found.sentences : [why.reason.message];
    const drawn = el("div", {}, found ? headlineOf(found, whole, first) : el("p", { class: "headline" }, first));
    if (drawn.textContent !== verdict.textContent) fill(verdict, ...drawn.childNodes);
    fill(more, found?.kind === "queued" ? null : sentencesOf(rest), // those are below
      queue ? whetherItWaits(queue, found) : null);
  }

  function whetherItWaits(queue, found) {
    if (queue.status === "rejected") return el("p", { class: "notice" }, `Whether it waits is unknown: ${queue.reason.message}`);
    return found ? el("p", { class: "muted" }, "It does not wait any more.") : null;
  }

  function drawWaits(queued) {
    waits.hidden = !queued;
    if (!queued) return;
    const { helping = [] } = queued.queued;
    const [first, ...rest] = queued.sentences;
    fill(state, el("h2", {}, "What it waits for"),
      el("p", {}, `In queue ${queued.queued.pod.queue}, created at ${clock(unix(queued.queued.pod.since)).slice(0, 8)}.`),
      queued.problem ? el("p", { class: "notice bad" }, queued.problem) : null,
      rest.filter((sentence) => !sentence.startsWith("*")).map((sentence) => el("p", { class: "muted" }, capital(sentence.trim()))),
      rest.length ? null : el("p", { class: "muted" }, first));
    drawHelp(helps, [queued.remedies, queued.missing, helping], () => whatHelps(queued, helping));
  }

  function drawTrace(messages) {
    trace.hidden = !messages.length;
    if (!messages.length) return;
    const at = messages.map((message) => unix(message.at));
    const span = at[at.length - 1] - at[0];
    const bar = el("div", { class: "strip", role: "img", "aria-label": `${duration(span)} from the first message to the last` });
    messages.forEach((message, i) => {
      if (!i) return;
      const piece = el("i", { title: `${message.stage}: +${duration(message.since_seconds)}` });
      piece.style.background = colourOfMessage(message);
      piece.style.flexGrow = String(1000 * Math.max(0.01, message.since_seconds / (span || 1)));
      bar.append(piece);
    });
    fill(trace, el("h2", {}, "Its messages ", el("span", { class: "muted" }, `${duration(span)} from the first to the last`)), messages.length > 1 ? bar : null,
      el("ol", { class: "trace" }, messages.map((message) => {
        const dot = el("i", { class: "dot" });
        dot.style.background = colourOfMessage(message);
        const line = [el("time", {}, clock(unix(message.at))), el("span", { class: "since" }, message.since_seconds === null ? "" : `+${duration(message.since_seconds)}`),
          dot, el("b", {}, message.stage), el("span", {}, message.text)];
        return el("li", {}, message.message
          ? el("details", {}, el("summary", {}, line), el("p", { class: "muted" }, message.subject), el("pre", { tabindex: 0 }, JSON.stringify(message.message, null, 2)))
          : el("div", { class: "line", title: "restored from the Decision: the message itself was settled" }, line));
      })));
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
}

/** What became of a pod: the outcome with the first sentence, the others below. */
export function drawVerdict(place, found, whole, [first, ...rest]) {
  fill(place, headlineOf(found, whole, first), sentencesOf(rest));
}

/** The outcome, and a sentence without the pod's name. */
function headlineOf({ outcome, node }, whole, sentence) {
  const badge = el("span", { class: "badge" }, outcome === "conflict" ? "ranked again" : outcome || "unknown");
  badge.style.borderColor = OUTCOMES[outcome] || OUTCOMES.gone;
  const says = sentence.startsWith(`${whole} `) ? sentence.slice(whole.length + 1) : sentence;
  return el("p", { class: "headline" }, badge, " ", linked(capital(says), node));
}

const sentencesOf = (sentences) => sentences.map((sentence) => el("p", { class: "muted" }, sentence.trim()));

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A Decision has the colour of its outcome, other messages that of their stage. */
function colourOfMessage({ stage, message }) {
  if (stage === "dead") return OUTCOMES.error;
  if (stage === "decision") return OUTCOMES[message?.outcome] || STAGES.decided;
  return stage === "ranked" ? STAGES.ranked : STAGES.waited;
}

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

/** The points of each plugin as one bar a node. */
export function drawCandidates(place, found, title) {
  const all = found.candidates || [];
  place.hidden = !all.length;
  if (!all.length) return fill(place);
  const order = [...all].sort((a, b) => b.estimate - a.estimate || a.newcomers - b.newcomers);
  const roles = rolesOf(order, found);
  const plugins = [...new Set(all.flatMap((each) => Object.keys(each.scores)))].sort();
  const most = Math.max(1, ...all.map((each) => each.total));
  const shown = order.slice(0, SHOWN_NODES);
  if (found.node && !shown.some((each) => each.node === found.node)) shown.push(...all.filter((each) => each.node === found.node));
  const points = (score) => (score.weight && score.score !== null ? `${score.score} x ${score.weight}` : `${score.points}`);
  const rows = shown.map((each) => {
    const badges = roles.get(each) || [];
    const bar = el("div", { class: "stack-bar", role: "img", "aria-label": plugins.map((plugin) => `${plugin} ${each.scores[plugin]?.points ?? 0}`).join(", ") });
    for (const plugin of plugins) {
      const score = each.scores[plugin];
      if (!score || !score.points) continue;
      const piece = el("i", { title: `${plugin} ${points(score)}` });
      piece.style.background = colourOf(plugin);
      piece.style.width = `${Math.max(0, score.points / most) * 100}%`;
      bar.append(piece);
    }
    const arrivals = each.newcomers ? ` (${each.total} ${(each.loss < 0) === (each.newcomers < 0) ? "-" : "+"} ${Math.abs(each.loss)} x ${Math.abs(each.newcomers)})` : "";
    return el("li", { class: badges.includes("chosen") ? "chosen" : "" }, el("span", { class: "name" }, nodeLink(each.node), badges.map((badge) => el("em", {}, badge))), bar,
      el("span", { class: "number" }, `${Math.round(each.estimate * 10) / 10}${arrivals}`));
  });
  const legend = el("ul", { class: "keys" }, plugins.map((plugin) => {
    const dot = el("i", { class: "dot" });
    dot.style.background = colourOf(plugin);
    return el("li", {}, dot, el("span", {}, words(plugin)));
  }));
  const table = el("details", {}, el("summary", {}, "Points as a table"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Node", "Total", ...plugins, "Pods", "Loss", "Newcomers"].map((each) => el("th", { scope: "col", title: MEANS[each] }, words(each))))),
    el("tbody", {}, shown.map((each) => el("tr", {}, el("th", { scope: "row" }, each.node), el("td", { class: "number" }, each.total),
      plugins.map((plugin) => el("td", { class: "number" }, each.scores[plugin] ? points(each.scores[plugin]) : "-")),
      [each.pods, each.loss, each.newcomers].map((number) => el("td", { class: "number" }, number))))))),
    el("p", { class: "muted" }, Object.entries(MEANS).map(([name, means]) => `${name}: ${means}.`).join(" ")));
  const details = shown.flatMap((each) => Object.entries(each.details || {}).map(([plugin, explanation]) => el("li", {}, el("b", {}, each.node), ` ${plugin}: ${explanation}`)));
  return fill(place, el("h2", {}, `${title} `, el("span", { class: "muted" }, `${count(found.feasible)} of ${count(found.evaluated)}, the best first; points of each plugin`)),
    legend, el("ol", { class: "candidates" }, rows),
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
      el("span", { class: "number" }, `${count(one.nodes)} nodes`), el("span", { class: "muted examples" }, "such as ", examples));
  })));
}
