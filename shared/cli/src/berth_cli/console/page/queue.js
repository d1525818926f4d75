// The pods that wait: how many in each queue, why, and what would help them.

import { choices } from "./address.js";
import { ask, cell, el, fill, known, podLink, podPath, refill, setText, tableOf, words } from "./dom.js";
import { count, duration, unix } from "./format.js";
import { PARTIAL_SECONDS } from "./group.js";
import { drawHelp, sentence, whatHelps } from "./remedies.js";
import { store } from "./store.js";

const REFRESH_MS = 2000;
const HELP_MS = 10_000; // a group that is open is asked about again
const FIRST_MS = 30_000; // one that is closed, for its first sentence
const MOST_ASKED = 6; // groups that are asked about while they are closed
const QUEUES = {
  active: "tried next, by priority, then in turns of namespaces",
  backoff: "wait for the end of their back-off",
  unschedulable: "wait for an event that may help",
  gated: "wait for somebody else to release them",
  "with group": "wait with their PodGroup, until all of it fits or its members have come",
  "in flight": "with scorers or binder",
};
const ROWS = 200;
const EXAMPLES = 2; // besides the first, the latest ones
const NUMBERS = ["Age", "Again in", "Tries", "Priority"];
const kept = { queue: "", namespace: "" };

export function queueView(place, signal) {
  const write = choices(kept);
  const cards = el("div", { class: "queues" });
  const windows = el("p", { class: "muted" });
  const problem = el("p", { class: "notice bad", hidden: true });
  const groups = el("section", { class: "card", hidden: true });
  const body = el("tbody");
  const note = el("p", { class: "muted" });
  const nothing = el("p", { class: "empty", hidden: true });
  const namespace = el("input", { type: "search", placeholder: "namespace", "aria-label": "Namespace", value: kept.namespace,
    onchange: () => { kept.namespace = namespace.value.trim(); write(); again = 0; } });
  const table = tableOf(["Pod", "Why", "Queue", ...NUMBERS], body, NUMBERS);
  fill(place, cards, windows, problem, groups, el("div", { class: "controls" }, el("h2", {}, "Pods that wait"), namespace), nothing, table, note);

  let again = 0;
  let reading = false;
  let drawn = "";
  let last = null;
  let listed = []; // the groups
  const helps = new Map(); // what would help a group, by what rejected it
  const opened = new Set(); // of the groups
  const partials = new Map(); // since when a part of a PodGroup is bound, by its uid

  function wanted() {
    return new URLSearchParams(Object.entries(kept).filter(([, value]) => value)).toString();
  }

  async function read() {
    reading = true;
    again = Infinity;
    const asked = wanted();
    try {
      const found = await ask(`api/queue?${asked}`);
      if (!signal.aborted && asked === wanted()) draw(found);
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      setText(problem, error.message);
    } finally {
      reading = false;
      again = Math.min(again, performance.now() + REFRESH_MS); // at once if another list was chosen meanwhile
    }
  }

  function draw(found) {
    last = found;
    const now = unix(found.now);
    drawCards(found.queues);
    drawGroups(found);
    const pods = found.pods.slice(0, ROWS);
    nothing.hidden = pods.length > 0;
    setText(nothing, found.looked_at ? "None of these pods waits." : wanted() ? "No such pod waits." : "No pod waits.");
    table.hidden = !pods.length;
    refill(body, pods.map((pod) => el("tr", {}, cell("Pod", {}, podLink(pod.namespace, pod.name, pod.members && `${pod.namespace}/${pod.members.name} (group, ${pod.members.pending || 0} ${pod.members.pending === 1 ? "pod" : "pods"})`), partialFor(pod)),
      cell("Why", { class: "wide" }, pod.message || pod.stage, (pod.plugins || []).length ? el("span", { class: "muted" }, " ", words(pod.plugins.join(", "))) : null),
      cell("Queue", {}, pod.queue, pod.members ? el("span", { class: "muted" }, " its pods: with group") : null), cell("Age", { class: "number" }, duration(Math.max(0, now - unix(pod.since)))),
      cell("Again in", { class: "number" }, pod.tried_again_seconds === undefined || pod.tried_again_seconds === null ? "" : duration(pod.tried_again_seconds)),
      cell("Tries", { class: "number" }, pod.attempts || 0), cell("Priority", { class: "number" }, pod.priority || 0))));
    setText(note, leftOut(found, pods.length));
  }

  /** Marks a group of which a part has been bound for longer than its Bindings take. */
  function partialFor({ uid, members }) {
    const { bound = 0, minimum = 0 } = members || {};
    if (!bound || bound >= minimum) return partials.delete(uid) && null;
    if (!partials.has(uid)) partials.set(uid, performance.now());
    const seconds = (performance.now() - partials.get(uid)) / 1000;
    return seconds > PARTIAL_SECONDS ? el("em", { class: "partial" }, `${bound} of ${minimum} bound`) : null;
  }

  /** Which pods the table may lack. */
  function leftOut({ pods, looked_at: lookedAt }, shown) {
    const command = ["berth queue", kept.queue ? `--queue "${kept.queue}"` : "", kept.namespace ? `-n ${kept.namespace}` : ""];
    return [
      shown < pods.length ? `These are the first ${count(shown)}; choose a queue or a namespace for others.` : "",
      lookedAt ? `Only the first ${count(lookedAt)} pods of all queues were looked at: ${command.filter(Boolean).join(" ")} looks at all of them.` : "",
    ].filter(Boolean).join(" ");
  }

  function drawCards(queues) {
    const numbers = { ...queues };
    const flight = store.services ? Object.values(store.services.in_flight).reduce((sum, each) => sum + each, 0) : null;
    if (flight !== null) numbers["in flight"] = flight;
    const key = JSON.stringify([numbers, kept.queue]);
    if (key !== drawn) {
      drawn = key;
      const focused = cards.contains(document.activeElement) ? document.activeElement.dataset.queue : null;
      fill(cards, Object.entries(QUEUES).filter(([name]) => name in numbers).map(([name, means]) => el("button", {
        class: "lane", "data-queue": name, "aria-pressed": kept.queue === name ? "true" : "false",
        onclick: () => { kept.queue = kept.queue === name ? "" : name; write(); again = 0; },
      }, el("b", {}, count(numbers[name])), el("span", {}, name), el("small", {}, means))));
      if (focused) cards.querySelector(`[data-queue="${focused}"]`)?.focus();
    }
    if (store.services) {
      const { in_flight: used, window: slots } = store.services;
      setText(windows, Object.keys(slots).length ? `In flight by profile: ${Object.entries(slots).map(([name, room]) => `${name} ${used[name] || 0} of ${room}`).join(", ")}` : "");
    }
  }

  /** Unschedulable pods by what rejected them. */
  function drawGroups(found) {
    const reasons = new Map();
    for (const pod of found.pods) {
      if (pod.queue !== "unschedulable" && pod.queue !== "gated") continue;
      if (pod.members || pod.stage === "grouped") continue; // what would help one of its pods may not help all
      const by = (pod.plugins || []).join(", ") || "unknown";
      if (!reasons.has(by)) reasons.set(by, []);
      reasons.get(by).push(pod);
    }
    groups.hidden = !reasons.size;
    const sorted = [...reasons].sort((a, b) => b[1].length - a[1].length).slice(0, 20);
    for (const by of helps.keys()) if (!reasons.has(by)) helps.delete(by);
    refill(groups, el("h2", {}, "What would help first ", el("span", { class: "muted" }, found.complete ? "" : `among ${count(found.pods.length)} pods`)),
      el("ul", { class: "groups" }, sorted.map(([by, pods]) => group(by, pods))));
    listed = sorted;
    askNext();
  }

  /** One group after the other; those that are open first. */
  function askNext() {
    if (signal.aborted || [...helps.values()].some((help) => help.asking)) return;
    const isDue = ([by]) => {
      const { at } = helps.get(by);
      return at === null || performance.now() - at > (opened.has(by) ? HELP_MS : FIRST_MS);
    };
    const next = listed.filter(([by], at) => opened.has(by) || at < MOST_ASKED).sort(([a], [b]) => opened.has(b) - opened.has(a)).find(isDue);
    if (next) askFor(helps.get(next[0]), next[1]);
  }

  /** Pods that the same plugins reject: the first sentence of what would help, below it all of them. */
  function group(by, pods) {
    if (!helps.has(by)) {
      const answer = el("div", {}, el("p", { class: "empty" }, "Asking the watcher..."));
      const age = el("p", { class: "muted age" });
      helps.set(by, { element: el("div", { class: "helps" }, answer, age), says: el("span", { class: "says" }), answer, age, at: null, asking: false });
    }
    const help = helps.get(by);
    if (help.at === null) setText(help.says, pods[0].message || pods[0].stage);
    const summary = known(el("summary", {}, el("span", { class: "number" }, count(pods.length), el("small", {}, pods.length === 1 ? " pod" : " pods")),
      el("span", {}, help.says, el("small", { class: "muted" }, words(by)))), by);
    const details = el("details", { open: opened.has(by) }, summary, help.element);
    details.addEventListener("toggle", () => {
      if (details.open) opened.add(by);
      else opened.delete(by);
      askNext();
    });
    return el("li", {}, details);
  }

  /** One pod stands for the group: the first of a few about which nothing is missing, else the last of them. */
  async function askFor(help, pods) {
    help.asking = true;
    try {
      let pod;
      let found;
      for (pod of [...pods.slice(0, 1), ...pods.slice(1).slice(-EXAMPLES)]) {
        found = await ask(`${podPath(pod.namespace, pod.name)}/queue`);
        if (found.queued && !found.missing) break;
      }
      const { message, remedies, missing, queued } = found;
      const helping = queued?.helping || [];
      fill(help.says, remedies?.length ? sentence(remedies[0]) : message || missing || "It does not wait any more.");
      drawHelp(help.answer, [pod.namespace, pod.name, Boolean(queued), message, remedies, missing, helping], () => [
        el("p", {}, queued ? message || "" : "It does not wait any more."), whatHelps(found, helping),
        el("p", { class: "muted" }, "For example ", podLink(pod.namespace, pod.name), ".")]);
    } catch (error) {
      drawHelp(help.answer, error.message, () => el("p", { class: "notice bad" }, error.message));
    }
    help.asking = false;
    help.at = performance.now();
    tellAges();
    askNext();
  }

  function tellAges() {
    for (const { age, at } of helps.values()) {
      const seconds = Math.floor((performance.now() - at) / 1000);
      if (at !== null) setText(age, `Asked ${seconds < 60 ? `${seconds} s` : duration(seconds)} ago.`);
    }
  }

  const timer = setInterval(() => {
    if (signal.aborted) return clearInterval(timer);
    tellAges();
    if (!reading && performance.now() > again && store.bus.connected && !document.hidden) read();
    return undefined;
  }, 200);
  read();
  return () => last;
}
