// What stands in a view before there is anything to show: what is awaited, and how to make a pod.

import { el, fill } from "./dom.js";
import { store } from "./store.js";

const ANYBODYS = "default-scheduler"; // a pod that names no scheduler

/** A notice that is shown as long as no Decision is known; `changed(isEmpty)` is called on a change. */
export function awaitedNotice(signal, changed = () => {}) {
  const notice = el("section", { class: "card awaited", hidden: true, role: "status" });
  let drawn = "";
  let wasEmpty = null;

  function draw() {
    const isEmpty = store.bus.connected && !store.decisions.length;
    notice.hidden = !isEmpty;
    if (isEmpty !== wasEmpty) changed(isEmpty);
    wasEmpty = isEmpty;
    if (!isEmpty) return;
    const profiles = profilesOfBerth();
    const isOld = wasDecidedBefore();
    const nodes = store.nodes.size ? "" : store.mirrorAge === null ? "the nodes of the cluster, which a leading watcher writes, and " : "a node, and ";
    const key = `${profiles.join()}${nodes}${isOld}`;
    if (key === drawn) return;
    drawn = key;
    const who = `a pod ${whose(profiles)}`;
    fill(notice, el("h2", {}, isOld ? "No pod has been decided on lately" : "No pod has been decided on yet"),
      isOld ? el("p", {}, "There was no Decision in the time for which the stream DECISIONS keeps them: an hour, unless it is set otherwise.") : null,
      el("p", {}, `Awaited: ${nodes}${who}. This makes ${nodes ? "such a pod" : "one"}:`),
      el("pre", { tabindex: 0 }, commandFor(profiles)),
      el("p", { class: "muted" }, "On the simulated cluster of docker compose, kubectl needs --server http://127.0.0.1:8001 too."));
  }

  for (const kind of ["bus", "services", "nodes", "figures", "decisions"]) store.on(kind, draw, signal);
  draw();
  return notice;
}

/** What stands in place of the nodes while there are none. A mirror has an age once a watcher has written all of it. */
export function noNodes() {
  if (!store.frames) return "Nothing has been read yet.";
  return store.mirrorAge === null ? "No nodes yet: a watcher that leads writes them." : "The cluster has no nodes.";
}

const profilesOfBerth = () => Object.keys(store.services?.window || {}).sort();

/** Whether nodes have pods of berth's: they were decided on, though no Decision is known. Without a leading watcher all pods may be. */
export function wasDecidedBefore() {
  const profiles = profilesOfBerth();
  return [...store.nodes.values()].some(({ load }) => (profiles.length ? profiles.some((name) => load.profiles[name]) : load.pods > 0));
}

function whose(profiles) {
  const named = profiles.filter((name) => name !== ANYBODYS).join(" or ");
  const own = named ? `whose schedulerName is ${named}` : "";
  if (!profiles.includes(ANYBODYS)) return own || "for berth";
  return own ? `${own}, or that names none` : "that names no scheduler";
}

function commandFor(profiles) {
  const run = "kubectl run web-1 --image=nginx";
  if (profiles.includes(ANYBODYS)) return run;
  const overrides = JSON.stringify({ spec: { schedulerName: profiles[0] || "berth" } }).replace(/'/g, "");
  return `${run} --overrides='${overrides}'`;
}
