// The pods that wait: how many in each queue, why, and what would help them.

import { ask, el, fill, known, podLink, podPath, refill, setText, words } from "./dom.js";
import { count, duration, unix } from "./format.js";
import { drawHelp, whatHelps } from "./remedies.js";
import { store } from "./store.js";

const REFRESH_MS = 2000;
const HELP_MS = 10_000; // a group that is open is asked about again
const QUEUES = {
  active: "tried next, by priority, then in turns of namespaces",
  backoff: "wait for the end of their back-off",
  unschedulable: "wait for an event that may help",
  gated: "only somebody else releases them",
  "in flight": "with scorers or binder",
};
const ROWS = 200;
const EXAMPLES = 2; // besides the first, the latest ones
const NUMBERS = ["Age", "Again in", "Tries", "Priority"];
const kept = { queue: "", namespace: "" };

export function queueView(place, signal) {
  const cards = el("div", { class: "queues" });
  const windows = el("p", { class: "muted" });
  const problem = el("p", { class: "notice bad", hidden: true });
  const groups = el("section", { class: "card", hidden: true });
  const body = el("tbody");
  const note = el("p", { class: "muted" });
  const nothing = el("p", { class: "empty", hidden: true });
  const namespace = el("input", { type: "search", placeholder: "namespace", "aria-label": "Namespace", value: kept.namespace,
    onchange: () => { kept.namespace = namespace.value.trim(); again = 0; } });
  const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
    ["Pod", "Queue", "Age", "Again in", "Tries", "Priority", "Why"].map((name) => el("th", { scope: "col", class: NUMBERS.includes(name) ? "number" : "" }, name)))), body));
  fill(place, cards, windows, problem, groups, el("div", { class: "controls" }, el("h2", {}, "Pods that wait"), namespace), nothing, table, note);

  let again = 0;
  let reading = false;
  let drawn = "";
  const opened = new Map(); // of the groups that are open, by what rejected them: what would help

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
    const now = unix(found.now);
    drawCards(found.queues);
    drawGroups(found);
    const pods = found.pods.slice(0, ROWS);
    nothing.hidden = pods.length > 0;
    setText(nothing, found.looked_at ? "None of these pods waits." : wanted() ? "No such pod waits." : "No pod waits.");
    table.hidden = !pods.length;
    refill(body, pods.map((pod) => el("tr", {}, el("td", {}, podLink(pod.namespace, pod.name)), el("td", {}, pod.queue),
      el("td", { class: "number" }, duration(Math.max(0, now - unix(pod.since)))),
      el("td", { class: "number" }, pod.tried_again_seconds === undefined || pod.tried_again_seconds === null ? "" : duration(pod.tried_again_seconds)),
      el("td", { class: "number" }, pod.attempts || 0), el("td", { class: "number" }, pod.priority || 0),
      el("td", { class: "why", title: pod.message || "" }, (pod.plugins || []).length ? words(pod.plugins.join(", ")) : pod.message || pod.stage))));
    setText(note, leftOut(found, pods.length));
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
        onclick: () => { kept.queue = kept.queue === name ? "" : name; again = 0; },
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
      const by = (pod.plugins || []).join(", ") || "unknown";
      if (!reasons.has(by)) reasons.set(by, []);
      reasons.get(by).push(pod);
    }
    groups.hidden = !reasons.size;
    const sorted = [...reasons].sort((a, b) => b[1].length - a[1].length).slice(0, 20);
    const most = Math.max(1, ...sorted.map(([, pods]) => pods.length));
    refill(groups, el("h2", {}, "Rejected by ", el("span", { class: "muted" }, found.complete ? "" : `among ${count(found.pods.length)} pods`)),
      el("ul", { class: "groups" }, sorted.map(([by, pods]) => group(by, pods, most))));
    for (const [by, pods] of sorted) {
      const help = opened.get(by);
      if (help && !help.asking && performance.now() - help.at > HELP_MS) askFor(help, pods);
    }
  }

  function group(by, pods, most) {
    const bar = el("i");
    bar.style.width = `${(pods.length / most) * 100}%`;
    const summary = known(el("summary", {}, el("span", { class: "name" }, words(by)), el("span", { class: "bar" }, bar),
      el("span", { class: "number" }, count(pods.length))), by);
    const details = el("details", { open: opened.has(by) }, summary, opened.get(by)?.element);
    details.addEventListener("toggle", () => {
      if (!details.open) opened.delete(by);
      else if (!opened.has(by)) open(by, pods, details);
    });
    return el("li", {}, details);
  }

  function open(by, pods, details) {
    const answer = el("div", {}, el("p", { class: "empty" }, "Asking the watcher..."));
    const age = el("p", { class: "muted age" });
    const help = { element: el("div", { class: "helps" }, answer, age), answer, age, at: null, asking: false };
    opened.set(by, help);
    details.append(help.element);
    askFor(help, pods);
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
      drawHelp(help.answer, [pod.namespace, pod.name, Boolean(queued), message, remedies, missing, helping], () => [
        el("p", {}, queued ? message || "" : "It does not wait any more."), whatHelps(found, helping),
        el("p", { class: "muted" }, "For example ", podLink(pod.namespace, pod.name), ".")]);
    } catch (error) {
      drawHelp(help.answer, error.message, () => el("p", { class: "notice bad" }, error.message));
    }
    help.asking = false;
    help.at = performance.now();
    tellAges();
  }

  function tellAges() {
    for (const { age, at } of opened.values()) {
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
}
