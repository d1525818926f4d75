// Every node as a tile, coloured by what is requested or measured; the chosen node's pods beside it.

import { address, choices } from "./address.js";
import { awaitedNotice, noNodes, wasDecidedBefore } from "./awaited.js";
import { devicesOfNode } from "./devices.js";
import { ask, el, fill, known, nodeLink, podLink, refill, setText } from "./dom.js";
import { clock, cores, count, memory, percent } from "./format.js";
import { Measures } from "./measures.js";
import { nodeControls } from "./nodecontrols.js";
import { inOrder, nodeMap, totalsOf } from "./nodemap.js";
import { OUTCOMES } from "./palette.js";
import { store } from "./store.js";

const LATEST = 12;
const WORDS = { traffic: "bandwidth", usage: "use" };
const kept = { text: "", zone: "", profile: "", by: "" };
const measures = new Measures(() => store.now());

export function clusterView(place, signal, chosen) {
  const write = choices(kept);
  if (Object.hasOwn(measures.kinds, kept.by)) measures.by = kept.by;
  const sums = el("span");
  const waiting = el("a", { href: "#/queue", class: "waiting", hidden: true });
  const totals = el("p", { class: "totals" }, sums, waiting);
  const panel = el("aside", { "aria-label": "Node" });
  const controls = nodeControls(measures, kept, (what) => {
    write();
    if (what === "nodes") laidOut = false;
    else {
      map.tiles.paintAll();
      summary();
    }
  });
  const map = nodeMap(measures, { label: "Nodes", choose }, signal);
  const { tiles } = map;
  tiles.chosen = chosen;
  fill(place, el("div", { class: "controls" }, controls.parts), totals, awaitedNotice(signal), el("div", { class: "split" }, map.element, panel));

  let laidOut = false;
  let layoutAt = 0;
  let sorted = [];

  function sort() {
    sorted = inOrder(store.nodes.values());
    controls.offerZones(sorted);
    laidOut = false;
  }

  function layOut() {
    laidOut = true;
    layoutAt = performance.now();
    map.layOut(controls.wanted(sorted, store.labels), store.nodes.size ? "No node matches the filter." : noNodes());
    summary();
  }

  function summary() {
    const shown = tiles.order;
    const parts = totalsOf(shown, store.nodes.size);
    const { measured } = measures.kinds[measures.by];
    const sampled = shown.filter((node) => node[measured]).length;
    if (measured) parts.push(sampled ? `${count(sampled)} measured` : `no ${WORDS[measured]} is measured: a metrics collector writes it`);
    setText(sums, store.frames ? parts.join("  \u00b7  ") : "");
    controls.explain(shown);
  }

  /** How many pods wait, as the leading watcher says; nothing while none leads. */
  function queues() {
    const numbers = Object.values(store.services?.queues || {});
    const pods = numbers.reduce((sum, each) => sum + each, 0);
    waiting.hidden = !numbers.length;
    setText(waiting, `${pods ? count(pods) : "no"} ${pods > 1 ? "pods wait" : "pod waits"}`);
  }

  function figures() {
    if (measures.scale(store.nodes.values()) && measures.by === "bandwidth") tiles.changed(store.nodes.values());
    if (controls.offerProfiles(store.nodes.values()) || kept.profile || !store.nodes.size) laidOut = false;
    summary();
  }

  function choose(name) {
    location.hash = name ? `#/node/${encodeURIComponent(name)}` : "#/cluster";
  }

  new ResizeObserver(() => { laidOut = false; }).observe(map.element);
  window.addEventListener("resize", () => { laidOut = false; }, { signal });
  store.on("nodes", sort, signal);
  store.on("loads", (changed) => tiles.changed(changed), signal);
  store.on("figures", figures, signal);
  store.on("services", queues, signal);
  queues();

  const pods = nodePanel(panel, signal, choose);
  window.addEventListener("node-chosen", () => {
    const [kind, name] = address().parts;
    map.mark(kind === "node" ? name || "" : "");
    write();
    pods.show(tiles.chosen);
  }, { signal });

  sort();
  figures();
  pods.show(chosen);
  requestAnimationFrame(function frame(now) {
    if (signal.aborted) return;
    if (!laidOut && now - layoutAt > 200) layOut();  // nodes come in bursts when a cluster starts
    tiles.frame(now);
    requestAnimationFrame(frame);
  });
  return () => ({ nodes: tiles.order.map(({ name, zone, cpu, memory: bytes, pods: allowed, flags, load, traffic, usage }) => ({
    name, zone, cordoned: Boolean(flags & 1), ready: !(flags & 2), allocatable: { cpu, memory: bytes, pods: allowed }, requested: load, traffic, used: usage,
  })), chosen: pods.document() });
}

/** Beside the tiles: the chosen node with its pods, else the latest Decisions. */
function nodePanel(panel, signal, choose) {
  let shown = null;
  let again = 0;
  let waiting = false;
  let lastDrawn = null;
  let drawn = null;

  function latest() {
    const lines = store.decisions.slice(-LATEST).reverse();
    const key = lines.map((line) => `${line.at}${line.pod}`).join() || none();
    if (key === lastDrawn) return;
    lastDrawn = key;
    refill(panel, el("h2", {}, "Latest decisions"),
      lines.length ? el("ol", { class: "latest" }, lines.map((line) => el("li", {},
        el("i", { class: "dot", "data-outcome": line.outcome }), known(podLink(line.namespace, line.pod), `pod ${line.at} ${line.pod}`),
        el("span", { class: "muted" }, line.node ? [`${line.outcome} `, known(nodeLink(line.node), `node ${line.at} ${line.pod}`)] : line.outcome))))
        : el("p", { class: "empty" }, none()),
      el("p", { class: "muted" }, "Choose a tile to see a node's pods, and from there why each is on it."));
    colour(panel);
  }

  function none() {
    if (!store.frames) return "Nothing has been read yet.";
    return wasDecidedBefore() ? "None that NATS still has." : "None yet: the first pods are awaited.";
  }

  async function node() {
    const name = shown;
    waiting = true;
    try {
      const document = await ask(`api/nodes/${encodeURIComponent(name)}`);
      if (shown === name) draw(document);
    } catch (error) {
      if (shown === name) refill(panel, heading(name), el("p", { class: "notice bad" }, error.message));
    } finally {
      waiting = false;
      again = performance.now() + 2000;
    }
  }

  const heading = (name) => el("h2", {}, name, known(el("button", { class: "plain", "aria-label": "Close", title: "Close (Esc)", onclick: () => choose("") }, "\u00d7"), "close"));

  function draw(document) {
    const { requested, allocatable, pods, labels, taints, devices } = document;
    drawn = document;
    const bar = (label, part, whole, form) => el("div", { class: "meter" }, el("span", {}, label), meter(part / whole),
      el("span", { class: "muted" }, `${form(part)} of ${form(whole)}`));
    const live = [...store.nodes.values()].find((one) => one.name === document.node);
    const wasOpen = Boolean(panel.querySelector("details[open]"));
    refill(panel, heading(document.node),
      document.unschedulable ? el("p", { class: "notice" }, "Cordoned: no new pods.") : null,
      bar("CPU", requested.cpu, allocatable.cpu, cores), bar("Memory", requested.memory, allocatable.memory, memory),
      bar("Pods", requested.pods, allocatable.pods, count),
      live && live.usage ? el("p", { class: "muted" }, `Used: CPU ${measures.usageText(live, "cpu", cores)}; memory ${measures.usageText(live, "memory", memory)}`) : null,
      live && live.traffic ? el("p", { class: "muted" }, measures.trafficText(live)) : null,
      taints.length ? el("p", { class: "muted" }, "Taints: ", taints.map((one) => `${one.key}${one.value ? `=${one.value}` : ""}:${one.effect}`).join(", ")) : null,
      el("details", { open: wasOpen }, known(el("summary", {}, `${Object.keys(labels).length} labels`), "labels"),
        el("ul", { class: "labels" }, Object.entries(labels).sort().map(([key, value]) => el("li", {}, `${key}=${value}`)))),
      devices.number ? devicesOfNode(devices, document.node) : null,
      el("h3", {}, "Pods, the latest first"),
      pods.length ? el("ol", { class: "pods" }, pods.map((pod) => el("li", {}, podLink(pod.namespace, pod.name),
        el("span", { class: "muted" }, `${cores(pod.cpu)} · ${memory(pod.memory)}${pod.bound_at > 0 ? ` · ${clock(pod.bound_at).slice(0, 8)}` : ""}`))))
        : el("p", { class: "empty" }, "None."),
      pods.length && pods.length < requested.pods ? el("p", { class: "muted" }, `and ${requested.pods - pods.length} more`) : null);
  }

  const timer = setInterval(() => {
    if (signal.aborted) return clearInterval(timer);
    if (!shown) return latest();
    if (!waiting && performance.now() > again) node();
    return undefined;
  }, 400);

  return {
    document: () => (shown ? drawn : null),
    show(name) {
      shown = name;
      drawn = null;
      lastDrawn = null;
      if (!name) return latest();
      fill(panel, heading(name), el("p", { class: "empty" }, "Reading..."));
      return node();
    },
  };
}

function meter(ratio) {
  const inner = el("i");
  inner.style.width = `${Math.max(0, Math.min(1, ratio || 0)) * 100}%`;
  return el("span", { class: "bar", role: "img", "aria-label": percent(ratio) }, inner);
}

function colour(within) {
  for (const dot of within.querySelectorAll("[data-outcome]")) dot.style.background = OUTCOMES[dot.dataset.outcome] || OUTCOMES.gone;
}
