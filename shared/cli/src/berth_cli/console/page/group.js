// One PodGroup: what it waits for and why, its members, and the nodes on which they are.

import { noNodes } from "./awaited.js";
import { ask, cell, el, fill, nodeLink, podLink, podName, refill, setText, tableOf, words } from "./dom.js";
import { count } from "./format.js";
import { Measures } from "./measures.js";
import { inOrder, MOST_HEADINGS, nodeMap } from "./nodemap.js";
import { capital, headlineOf, sentencesOf } from "./pod.js";
import { drawHelp, whatHelps } from "./remedies.js";
import { store } from "./store.js";
import { drawTrace } from "./trace.js";

const REFRESH_MS = 3000;
const SETTLED_MS = 15_000; // of a group that does not wait
const MEMBERS = 200;
const PART_OF_WINDOW = 0.6;
const OTHERS = "others";
export const PARTIAL_SECONDS = 1; // its Bindings take less

export function groupView(place, signal, namespace, name) {
  const whole = `${namespace}/${name.replace(/^~+/, "")}`;
  const view = `group/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const path = `api/groups/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const verdict = el("div", { "aria-live": "polite" }, el("p", { class: "empty" }, "Reading..."));
  const more = el("div");
  const why = el("section", { class: "card", hidden: true });
  const helps = el("div", { class: "helps" });
  const members = el("section", { class: "card", hidden: true });
  const trace = el("section", { class: "card", hidden: true });
  const measures = new Measures(() => store.now());
  const map = nodeMap(measures, { label: "Nodes", choose: (node) => { if (node) location.hash = `#/node/${encodeURIComponent(node)}`; } }, signal);
  const means = el("p", { class: "muted" });
  const where = el("section", { class: "card" }, el("h2", {}, "Where it is"), means, map.element);
  fill(place, el("section", { class: "verdict" }, el("h1", {}, whole, el("small", { class: "muted" }, " group of pods")), verdict, more), why, where, members, trace);

  let last = null;
  let reading = false;
  let again = 0;
  let laidOut = false;
  let partialAt = null; // when only a part of it was seen to be bound

  async function read() {
    reading = true;
    const [answer, messages] = await Promise.allSettled([ask(path), ask(`${path}/trace`)]);
    reading = false;
    if (signal.aborted) return;
    again = performance.now() + (answer.value && !answer.value.queued && !isPartial(answer.value) ? SETTLED_MS : REFRESH_MS);
    draw(answer, messages.status === "fulfilled" ? messages.value.messages : []);
  }

  function draw(answer, messages) {
    const found = answer.value ?? null;
    const [first, ...rest] = found ? found.sentences : [answer.reason.message];
    const bound = found?.state === "bound" ? `${pods(found.bound)} bound, of which ${count(found.minimum)} ${found.minimum === 1 ? "is" : "are"} needed together` : "";
    const says = [bound, found?.message].filter(Boolean).join("; ") || first;
    const drawn = found ? headlineOf({ outcome: found.state }, whole, says) : el("p", { class: "headline" }, first);
    if (drawn.textContent !== verdict.textContent) fill(verdict, drawn);
    const twins = (found?.twins || []).map((twin) => el("p", {}, "Another group has this name: ", podLink(namespace, twin.name, `${whole} of ${twin.dialect}`), `, ${twin.state}.`));
    refill(more, found ? partial(found) : null, sentencesOf(rest.map(capital)), twins, found?.problem ? el("p", { class: "notice" }, `Which of its pods wait is unknown: ${found.problem}`) : null);
    const isSame = JSON.stringify([last?.members, last?.decision]) === JSON.stringify([found?.members, found?.decision]);
    last = found;
    drawWhy(found);
    if (isSame) return;
    drawMembers(found);
    drawTrace(trace, view, messages);
    laidOut = false;
  }

  /** What happens next to a group of which a part has been bound for longer than its Bindings take, and the rest waits. */
  function partial(found) {
    if (!found.queued || !isPartial(found)) partialAt = null;
    else partialAt ??= performance.now();
    if (partialAt === null || performance.now() - partialAt <= PARTIAL_SECONDS * 1000) return null;
    return el("p", { class: "notice bad" }, `${count(found.bound)} of the minimum of ${count(found.minimum)} ${found.bound === 1 ? "is" : "are"} bound: the others go before groups that have not begun.`);
  }

  /** Why members have no place: what rejects each kind of them. */
  function drawWhy(found) {
    const result = found?.decision?.result;
    const classes = (found?.waiting ? result?.classes || [] : []).filter((one) => (one.rejections || []).length);
    const victims = found?.waiting ? found.decision?.preemption?.victims || [] : [];
    const helping = found?.queued?.helping || [];
    const { remedies = [], missing = "" } = found || {};
    why.hidden = !classes.length && !victims.length && !helping.length && !remedies.length && !missing;
    const body = el("tbody", {}, classes.flatMap((one) => one.rejections.map((rejection, at) => el("tr", {},
      cell("Members", { class: "number" }, at ? "" : one.members), cell("With a place", { class: "number" }, at ? "" : one.placed || 0), cell("For example", {}, at ? "" : podLink(namespace, one.example)),
      cell("Nodes", { class: "number" }, count(rejection.nodes)), cell("Reason", { class: "wide" }, rejection.reason, el("span", { class: "muted" }, " ", words(rejection.plugin)))))));
    drawHelp(helps, [remedies, missing, helping], () => whatHelps({ remedies, missing }, helping));
    refill(why, el("h2", {}, "What it waits for"),
      classes.length ? [el("p", { class: "muted" }, "Why members have no place, after the others were placed", result.domain ? ` in ${result.topology_key} ${result.domain}, the best` : "", ":"),
        tableOf(["Members", "With a place", "For example", "Nodes", "Reason"], body, ["Members", "With a place", "Nodes"])] : null,
      victims.length ? el("p", {}, "Evicted for it: ", victims.flatMap((one, at) => [at ? ", " : "", podLink(one.namespace, one.name)]), ".") : null, helps);
  }

  function drawMembers(found) {
    const all = found?.members || [];
    members.hidden = !all.length;
    const shown = all.slice(0, MEMBERS);
    const body = el("tbody", {}, shown.map((one) => el("tr", {}, cell("Pod", {}, podLink(namespace, one.pod)), cell("Node", {}, one.node ? nodeLink(one.node) : "waits"))));
    refill(members, el("h2", {}, "Members ", el("span", { class: "muted" }, found ? `${count(found.bound)} bound, ${count(waitingIn(found))} waiting, minimum ${count(found.minimum)}` : "")),
      tableOf(["Pod", "Node"], body), shown.length < all.length ? el("p", { class: "muted" }, `and ${count(all.length - shown.length)} more`) : null);
  }

  /** Nodes by the group's domain, its own in one outline; while it has none, those of the best domain. */
  function layOut() {
    laidOut = true;
    const { topology_key: key = "", decision, members: all = [] } = last || {};
    const domain = decision?.result?.domain || "";
    const own = new Set(all.map((one) => one.node).filter(Boolean));
    const nodes = inOrder(store.nodes.values());
    const domains = new Map(nodes.map((node) => [node, key ? labelOf(node, key) : ""]));
    const isFew = new Set(domains.values()).size <= MOST_HEADINGS;
    const chosen = new Set([domain, ...nodes.filter((node) => own.has(node.name)).map((node) => domains.get(node))]);
    const headingOf = (node) => (isFew || chosen.has(domains.get(node)) ? domains.get(node) || `without ${key}` : OTHERS);
    map.layOut(nodes, noNodes(), PART_OF_WINDOW, key ? headingOf : () => "");
    const best = nodes.filter((node) => domain && domains.get(node) === domain).map((node) => node.name);
    map.outline(own.size ? own : new Set(best));
    const by = key ? ` Nodes are in groups by ${key}.` : "";
    setText(means, own.size ? `Outlined: the nodes of its members.${by}` : best.length ? `Outlined: ${key} ${domain}, where most of its members would have a place.${by}` : `None of its pods is on a node.${by}`);
  }

  store.on("decisions", (lines) => {
    if (lines.some((line) => line.pod === name && line.namespace === namespace)) again = 0;
  }, signal);
  store.on("bus", () => { again = 0; }, signal);
  store.on("nodes", () => { laidOut = false; }, signal);
  store.on("figures", () => { laidOut = laidOut && store.nodes.size > 0; }, signal);
  store.on("loads", (changed) => map.tiles.changed(changed), signal);
  new ResizeObserver(() => { laidOut = false; }).observe(where);
  let layoutAt = 0;
  requestAnimationFrame(function frame(now) {
    if (signal.aborted) return;
    if (!laidOut && now - layoutAt > 200) {
      layoutAt = now;
      layOut();
    }
    map.tiles.frame(now);
    requestAnimationFrame(frame);
  });
  const timer = setInterval(() => {
    if (signal.aborted) clearInterval(timer);
    else if (!reading && performance.now() > again && store.bus.connected && !document.hidden) read();
  }, 200);
  read();
  return () => ({ group: podName(namespace, name), ...last });
}

/** The pods that wait; a page of the queue may lack some of them. */
const waitingIn = (found) => Math.max(found.waiting, found.queued?.pod.members?.pending || 0);

const isPartial = (found) => Boolean(found?.bound) && found.bound < found.minimum;

const pods = (number) => `${count(number)} ${number === 1 ? "pod is" : "pods are"}`;

/** The node's value of a label. */
function labelOf(node, key) {
  if (key === "kubernetes.io/hostname") return node.name;
  const start = `${key}=`;
  const at = node.labels.find((number) => store.labels[number]?.startsWith(start));
  return at === undefined ? "" : store.labels[at].slice(start.length);
}
