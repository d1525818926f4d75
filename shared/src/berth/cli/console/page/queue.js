// The pods that wait: how many in each queue, why, and what would help them.

import { ask, el, fill, podLink, podPath, say, words } from "./dom.js";
import { count, duration, unix } from "./format.js";
import { whatHelps } from "./remedies.js";
import { store } from "./store.js";

const REFRESH_MS = 2000;
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
  const nothing = el("p", { class: "empty", hidden: true }, "No pod waits.");
  const namespace = el("input", { type: "search", placeholder: "namespace", "aria-label": "Namespace", value: kept.namespace,
    onchange: () => { kept.namespace = namespace.value.trim(); again = 0; } });
  const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
    ["Pod", "Queue", "Age", "Again in", "Tries", "Priority", "Why"].map((name) => el("th", { scope: "col", class: NUMBERS.includes(name) ? "number" : "" }, name)))), body));
  fill(place, cards, windows, problem, groups, el("div", { class: "controls" }, el("h2", {}, "Pods that wait"), namespace), nothing, table, note);

  let again = 0;
  let reading = false;
  let drawn = "";
  const opened = new Map();

  async function read() {
    reading = true;
    const wanted = new URLSearchParams();
    if (kept.queue) wanted.set("queue", kept.queue);
    if (kept.namespace) wanted.set("namespace", kept.namespace);
    try {
      const found = await ask(`api/queue?${wanted}`);
      if (!signal.aborted) draw(found);
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      say(problem, error.message);
    } finally {
      reading = false;
      again = performance.now() + REFRESH_MS;
    }
  }

  function draw(found) {
    const now = unix(found.now);
    drawCards(found.queues);
    drawGroups(found);
    const pods = found.pods.slice(0, ROWS);
    nothing.hidden = pods.length > 0;
    table.hidden = !pods.length;
    fill(body, pods.map((pod) => el("tr", {}, el("td", {}, podLink(pod.namespace, pod.name)), el("td", {}, pod.queue),
      el("td", { class: "number" }, duration(Math.max(0, now - unix(pod.since)))),
      el("td", { class: "number" }, pod.tried_again_seconds === undefined || pod.tried_again_seconds === null ? "" : duration(pod.tried_again_seconds)),
      el("td", { class: "number" }, pod.attempts || 0), el("td", { class: "number" }, pod.priority || 0),
      el("td", { class: "why", title: pod.message || "" }, (pod.plugins || []).length ? words(pod.plugins.join(", ")) : pod.message || pod.stage))));
    say(note, found.complete && pods.length === found.pods.length ? "" : `These are the first ${count(pods.length)}; choose a queue or a namespace for others.`);
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
      say(windows, Object.keys(slots).length ? `In flight by profile: ${Object.entries(slots).map(([name, room]) => `${name} ${used[name] || 0} of ${room}`).join(", ")}` : "");
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
    if ([...groups.querySelectorAll("details[open]")].length && groups.contains(document.activeElement)) return;
    fill(groups, el("h2", {}, "Rejected by ", el("span", { class: "muted" }, found.complete ? "" : `of the first ${count(found.pods.length)} pods`)),
      el("ul", { class: "groups" }, sorted.map(([by, pods]) => {
        const bar = el("i");
        bar.style.width = `${(pods.length / most) * 100}%`;
        const inside = el("div", {}, opened.get(by) || el("p", { class: "empty" }, "Asking the watcher..."));
        const details = el("details", { open: opened.has(by) }, el("summary", {}, el("span", { class: "name" }, words(by)), el("span", { class: "bar" }, bar),
          el("span", { class: "number" }, count(pods.length))), inside);
        details.addEventListener("toggle", () => {
          if (!details.open) opened.delete(by);
          else if (!opened.has(by)) help(by, pods, inside);
        });
        return el("li", {}, details);
      })));
  }

  /** One pod stands for the group: the first of a few about which nothing is missing, else the last of them. */
  async function help(by, pods, inside) {
    opened.set(by, el("p", { class: "empty" }, "Asking the watcher..."));
    let made;
    try {
      let pod;
      let found;
      for (pod of [...pods.slice(0, 1), ...pods.slice(1).slice(-EXAMPLES)]) {
        found = await ask(`${podPath(pod.namespace, pod.name)}/queue`);
        if (!found.missing) break;
      }
      const { helping = [] } = found.queued || {};
      made = el("div", { class: "helps" }, el("p", {}, found.message || ""), whatHelps(found, helping),
        el("p", { class: "muted" }, "For example ", podLink(pod.namespace, pod.name), "."));
    } catch (error) {
      made = el("p", { class: "notice bad" }, error.message);
    }
    if (opened.has(by)) opened.set(by, made);
    fill(inside, made);
  }

  const timer = setInterval(() => {
    if (signal.aborted) clearInterval(timer);
    else if (!reading && performance.now() > again && store.bus.connected && !document.hidden) read();
  }, 200);
  read();
}
