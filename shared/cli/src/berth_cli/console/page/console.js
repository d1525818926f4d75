// The page: its address says which view is shown, the head what holds for all of them.

import { address } from "./address.js";
import { el, fill, podName, setText } from "./dom.js";
import { count, withoutNumbers } from "./format.js";
import { store } from "./store.js";
import { clusterView } from "./cluster.js";
import { decisionsView } from "./decisions.js";
import { groupView } from "./group.js";
import { podView } from "./pod.js";
import { offerFind, offerLogout, offerSkip } from "./head.js";
import { queueView } from "./queue.js";
import { servicesView } from "./services.js";
import { differenceView, shadowView } from "./shadow.js";

const place = document.getElementById("view");
let leaving = null;
let shown = "";
let documentOf = null; // makes the document of what is shown

function route() {
  const { parts: [kind, ...rest] } = address();
  if (kind === "pod" && rest.length === 2) return { view: "pod", title: rest.join("/"), show: (to, signal) => podView(to, signal, ...rest) };
  if (kind === "group" && rest.length === 2) return { view: "group", title: podName(...rest), show: (to, signal) => groupView(to, signal, ...rest) };
  if (kind === "decisions") return { view: "decisions", title: "Decisions", show: decisionsView };
  if (kind === "shadow" && rest.length === 3) return { view: "shadow", title: rest.slice(1).join("/"), show: (to, signal) => differenceView(to, signal, ...rest) };
  if (kind === "shadow") return { view: "shadow", title: "Shadow", show: shadowView };
  if (kind === "services") return { view: "services", title: "Services", show: servicesView };
  if (kind === "queue") return { view: "queue", title: "Queue", show: queueView };
  return { view: "cluster", title: "Cluster", show: (to, signal) => clusterView(to, signal, kind === "node" ? rest.join("/") : "") };
}

function show() {
  const { view, title, show: start } = route();
  if (view === "cluster" && shown === "cluster") {
    window.dispatchEvent(new CustomEvent("node-chosen"));
    return;
  }
  if (leaving) leaving.abort();
  leaving = new AbortController();
  shown = view;
  document.title = `${title} - berth console`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  place.className = view;
  fill(place);
  documentOf = start(place, leaving.signal);
}

/** What is shown as a JSON file, with where and when it was. */
function save() {
  const at = new Date(store.now() * 1000).toISOString();
  const whole = { view: shown, address: location.href, source: store.bus.source, at, shown: documentOf() };
  const href = URL.createObjectURL(new Blob([JSON.stringify(whole, null, 2)], { type: "application/json" }));
  el("a", { href, download: `berth-${shown}-${at.slice(0, 19).replaceAll(":", "-")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

function head() {
  const link = document.getElementById("link");
  const state = store.link !== "live" ? "lost" : store.bus.connected ? "live" : "away";
  link.dataset.state = state;
  setText(link, { lost: store.refusal ? "refused" : "console away", away: "NATS away", live: "live" }[state]);
  const figures = store.figures;
  const bound = figures ? (figures.series.bound || []).slice(-5).reduce((sum, each) => sum + each, 0) / 5 : 0;
  setText(document.getElementById("rate"), figures ? `${count(bound)} pods/s bound` : "");
  setText(document.getElementById("source"), store.bus.source || "");
  document.body.classList.toggle("stale", state !== "live");
}

function notices() {
  const sentences = [];
  if (store.link === "lost") sentences.push(["bad", `${store.refusal ? `This page is refused: ${store.refusal}` : "The console does not answer"}. ${store.frames ? "What is shown is from before; trying" : "Trying"} again.`]);
  else if (store.frames && !store.bus.connected) sentences.push(["bad", `NATS is not read: ${store.bus.reason}. What is shown is from before; trying again.`]);
  if (store.bus.connected && !store.mirrorIsCurrent) sentences.push(["", `The mirror of the cluster is ${Math.round(store.mirrorAge)} s old: is a watcher running?`]);
  for (const sentence of store.services ? store.services.attention : []) sentences.push(["", sentence]);
  const key = JSON.stringify(sentences);
  const there = document.getElementById("notices");
  if (there.dataset.key === key) return;
  there.dataset.key = key;
  const shown = sentences.slice(0, 6);
  fill(there, shown.map(([kind, text]) => el("p", { class: `notice ${kind}` }, text)),
    sentences.length > 6 ? el("p", { class: "notice" }, `and ${sentences.length - 6} more: `, el("a", { href: "#/services" }, "Services")) : null);
  readOut(shown.map(([, text]) => text));
}

/** Has sentences read out, once: not again because ages and numbers in them are others. */
function readOut(sentences) {
  const there = document.getElementById("alerts");
  const key = JSON.stringify(sentences.map(withoutNumbers));
  if (there.dataset.key === key) return;
  there.dataset.key = key;
  fill(there, sentences.map((text) => el("p", {}, text)));
}

offerFind(document.getElementById("find"));
offerSkip(document.querySelector(".skip"), place);
document.getElementById("save").addEventListener("click", save);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const views = { 1: "cluster", 2: "decisions", 3: "queue", 4: "services", 5: "shadow" };
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("pod").focus();
  } else if (views[event.key]) {
    location.hash = `#/${views[event.key]}`;
  }
});

for (const kind of ["link", "bus", "figures"]) store.on(kind, head);
store.on("shadows", () => {
  document.getElementById("shadows").hidden = !store.shadows.length && !store.differences.length;
});
for (const kind of ["link", "bus", "services", "figures"]) store.on(kind, notices);
window.addEventListener("hashchange", show);
offerLogout(document.getElementById("logout"));
document.addEventListener("visibilitychange", () => store.rest());
store.connect();
head();
show();
