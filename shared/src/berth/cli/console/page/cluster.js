// Every node as a tile, coloured by what is requested or by its traffic; the chosen node's pods beside it.

import { ask, el, fill, nodeLink, podLink, say } from "./dom.js";
import { clock, cores, count, duration, memory, percent, perSecond } from "./format.js";
import { OUTCOMES, dark, gradient } from "./palette.js";
import { store } from "./store.js";
import { Tiles } from "./tiles.js";

const STALE_SECONDS = 60;
const LATEST = 12;
const order = new Intl.Collator("en", { numeric: true });
const kept = { by: "cpu", text: "", zone: "", profile: "" };

const BY = {
  cpu: { label: "CPU", ratio: (node) => share(node.load.cpu, node.cpu), text: (node) => `${cores(node.load.cpu)} of ${cores(node.cpu)} cores` },
  memory: { label: "Memory", ratio: (node) => share(node.load.memory, node.memory), text: (node) => `${memory(node.load.memory)} of ${memory(node.memory)}` },
  pods: { label: "Pods", ratio: (node) => share(node.load.pods, node.pods), text: (node) => `${node.load.pods} of ${node.pods}` },
  bandwidth: { label: "Bandwidth", ratio: (node) => trafficRatio(node), text: (node) => trafficText(node) },
};

let fastest = 1;

const share = (part, whole) => (whole > 0 ? part / whole : null);
const rate = (traffic) => Math.max(traffic.receive ?? 0, traffic.transmit ?? 0);

function trafficRatio(node) {
  if (!node.traffic) return null;
  return rate(node.traffic) / (node.traffic.capacity || fastest);
}

function trafficText(node) {
  if (!node.traffic) return "not measured";
  const { receive, transmit, capacity, sampled } = node.traffic;
  const one = (amount) => (amount === null ? "?" : perSecond(amount));
  const age = store.now() - sampled;
  return `in ${one(receive)}, out ${one(transmit)}${capacity ? ` of ${perSecond(capacity)}` : ""}, ` +
    `${duration(Math.max(0, age))} old${age > STALE_SECONDS ? " (stale)" : ""}`;
}

export function clusterView(place, signal, chosen) {
  const base = el("canvas", { "aria-hidden": "true" });
  const above = el("canvas", {
    tabindex: 0, role: "application", "aria-label": "Nodes. Arrow keys move, Enter shows a node's pods, Escape closes.", "aria-describedby": "spoken",
  });
  const stack = el("div", { class: "stack" }, base, above);
  const tip = el("div", { class: "tip", hidden: true });
  const spoken = el("p", { id: "spoken", class: "hidden", "aria-live": "polite" });
  const totals = el("p", { class: "totals" });
  const legend = el("div", { class: "legend" }, el("span", {}, "0 %"), el("i"), el("span", {}, "100 %"));
  const nothing = el("p", { class: "empty" }, "No nodes yet: the mirror of the cluster is empty.");
  const panel = el("aside", { "aria-label": "Node" });
  const zones = el("select", { "aria-label": "Zone" });
  const profiles = el("select", { "aria-label": "Profile", title: "Nodes with pods of this profile" });
  const text = el("input", { type: "search", placeholder: "name or label", "aria-label": "Filter by name or label", value: kept.text });
  const by = el("fieldset", { class: "choice" }, el("legend", { class: "hidden" }, "Colour by"),
    Object.entries(BY).map(([key, { label }]) => el("label", {},
      el("input", { type: "radio", name: "by", value: key, checked: kept.by === key, onchange: () => { kept.by = key; tiles.paintAll(); summary(); } }),
      el("span", {}, label))));
  fill(place, el("div", { class: "controls" }, by, text, zones, profiles, legend),
    totals, el("div", { class: "split" }, el("section", { "aria-label": "Nodes" }, nothing, stack, tip, spoken), panel));

  const tiles = new Tiles(base, above, (node) => BY[kept.by].ratio(node));
  tiles.chosen = chosen;
  let laidOut = false;
  let layoutAt = 0;
  let sorted = [];

  function sort() {
    sorted = [...store.nodes.values()].sort((a, b) => order.compare(a.zone, b.zone) || order.compare(a.name, b.name));
    options(zones, "all zones", [...new Set(sorted.map((node) => node.zone).filter(Boolean))], "zone");
    laidOut = false;
  }

  function options(select, all, values, field) {
    const key = values.join("\n");
    if (select.dataset.key === key) return;
    select.dataset.key = key;
    select.hidden = !values.length;
    if (!values.includes(kept[field])) kept[field] = "";
    fill(select, el("option", { value: "" }, all), values.map((value) => el("option", { value, selected: value === kept[field] }, value)));
  }

  function wanted() {
    const terms = kept.text.toLowerCase().split(/\s+/).filter(Boolean).map((term) => {
      const labels = new Set();
      store.labels.forEach((label, at) => { if (label && label.toLowerCase().includes(term)) labels.add(at); });
      return (node) => node.name.toLowerCase().includes(term) || node.labels.some((label) => labels.has(label));
    });
    return sorted.filter((node) => (!kept.zone || node.zone === kept.zone) &&
      (!kept.profile || node.load.profiles[kept.profile]) && terms.every((term) => term(node)));
  }

  function layOut() {
    laidOut = true;
    layoutAt = performance.now();
    const groups = new Map();
    for (const node of wanted()) {
      const zone = node.zone || "(no zone)";
      if (!groups.has(zone)) groups.set(zone, []);
      groups.get(zone).push(node);
    }
    const room = Math.max(260, window.innerHeight - stack.getBoundingClientRect().top - window.scrollY - 24);
    const headed = groups.size > 1 && groups.size <= 24;
    tiles.layOut(headed ? [...groups] : [["", [...groups.values()].flat()]], Math.max(200, stack.parentElement.clientWidth), room);
    nothing.hidden = store.nodes.size > 0 && tiles.order.length > 0;
    say(nothing, store.nodes.size ? "No node matches the filter." : "No nodes yet: the mirror of the cluster is empty.");
    summary();
  }

  function summary() {
    const shown = tiles.order;
    const sum = (of) => shown.reduce((total, node) => total + of(node), 0);
    const parts = [
      `${count(shown.length)}${shown.length === store.nodes.size ? "" : ` of ${count(store.nodes.size)}`} nodes`,
      `${count(sum((node) => node.load.pods))} pods`,
      `CPU ${percent(share(sum((node) => node.load.cpu), sum((node) => node.cpu)) ?? NaN)}`,
      `memory ${percent(share(sum((node) => node.load.memory), sum((node) => node.memory)) ?? NaN)}`,
    ];
    const out = shown.filter((node) => node.flags).length;
    if (out) parts.push(`${count(out)} cordoned or not ready`);
    const sampled = shown.filter((node) => node.traffic).length;
    if (kept.by === "bandwidth") parts.push(sampled ? `${count(sampled)} measured` : "no bandwidth is measured: a metrics collector writes it");
    say(totals, parts.join("  ·  "));
    legend.querySelector("i").style.background = gradient();
    const scale = kept.by === "bandwidth" && shown.every((node) => !node.traffic?.capacity);
    say(legend.lastChild, scale && sampled ? perSecond(fastest) : "100 %");
  }

  function figures() {
    const rates = [...store.nodes.values()].filter((node) => node.traffic).map((node) => rate(node.traffic));
    const most = rates.reduce((a, b) => Math.max(a, b), 1);
    if (most !== fastest) {
      fastest = most;
      if (kept.by === "bandwidth") tiles.changed(store.nodes.values());
    }
    const names = new Set();
    for (const node of store.nodes.values()) for (const name of Object.keys(node.load.profiles)) names.add(name);
    options(profiles, "all profiles", [...names].sort(), "profile");
    if (kept.profile) laidOut = false;
    summary();
  }

  function describe(node) {
    return [node.name, ...(node.zone ? [node.zone] : []), ...Object.values(BY).map((one) => {
      const ratio = one.ratio(node);
      return `${one.label} ${ratio === null ? "" : `${percent(ratio)}, `}${one.text(node)}`;
    }), ...(node.flags & 1 ? ["cordoned"] : []), ...(node.flags & 2 ? ["not ready"] : [])];
  }

  function hover(event) {
    const box = above.getBoundingClientRect();
    const index = tiles.at(event.clientX - box.left, event.clientY - box.top);
    if (index !== tiles.hovered) {
      tiles.hovered = index;
      tiles.moved = true;
    }
    above.style.cursor = index < 0 ? "default" : "pointer";
    showTip(index, event.clientX, event.clientY);
  }

  function showTip(index, x, y) {
    const node = tiles.order[index];
    tip.hidden = !node;
    if (!node) return;
    fill(tip, describe(node).map((line, at) => el(at ? "span" : "b", {}, line)));
    tip.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
  }

  function moveFocus(to) {
    tiles.focus = Math.max(0, Math.min(tiles.order.length - 1, to));
    tiles.moved = true;
    const node = tiles.order[tiles.focus];
    if (!node) return;
    const box = above.getBoundingClientRect();
    const { x, y } = tiles.places.get(node);
    showTip(tiles.focus, box.left + x + tiles.size, box.top + y + tiles.size);
    say(spoken, describe(node).join(", "));
  }

  function choose(name) {
    location.hash = name ? `#/node/${encodeURIComponent(name)}` : "#/cluster";
  }

  above.addEventListener("pointermove", hover);
  above.addEventListener("pointerleave", () => { tiles.hovered = -1; tiles.moved = true; tip.hidden = true; });
  above.addEventListener("click", (event) => {
    const box = above.getBoundingClientRect();
    const node = tiles.order[tiles.at(event.clientX - box.left, event.clientY - box.top)];
    if (node) choose(node.name);
  });
  above.addEventListener("blur", () => { tip.hidden = true; tiles.focus = -1; tiles.moved = true; });
  above.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: tiles.columns, ArrowUp: -tiles.columns };
    const at = tiles.focus < 0 ? Math.max(0, tiles.indexOf(tiles.chosen)) : tiles.focus;
    if (event.key in steps) moveFocus(tiles.focus < 0 ? at : at + steps[event.key]);
    else if (event.key === "Home") moveFocus(0);
    else if (event.key === "End") moveFocus(tiles.order.length - 1);
    else if (event.key === "Enter" && tiles.order[tiles.focus]) choose(tiles.order[tiles.focus].name);
    else if (event.key === "Escape") choose("");
    else return;
    event.preventDefault();
  });
  text.addEventListener("input", () => { kept.text = text.value; laidOut = false; });
  zones.addEventListener("change", () => { kept.zone = zones.value; laidOut = false; });
  profiles.addEventListener("change", () => { kept.profile = profiles.value; laidOut = false; });
  new ResizeObserver(() => { laidOut = false; }).observe(stack.parentElement);
  window.addEventListener("resize", () => { laidOut = false; }, { signal });
  dark.addEventListener("change", () => tiles.paintAll(), { signal });
  store.on("nodes", sort, signal);
  store.on("loads", (changed) => tiles.changed(changed), signal);
  store.on("figures", figures, signal);

  const pods = nodePanel(panel, signal, choose);
  window.addEventListener("node-chosen", () => {
    const [kind, name] = location.hash.replace(/^#\/?/, "").split("/");
    tiles.chosen = kind === "node" ? decodeURIComponent(name || "") : "";
    tiles.moved = true;
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
}

/** Beside the tiles: the chosen node with its pods, else the latest Decisions. */
function nodePanel(panel, signal, choose) {
  let shown = null;
  let again = 0;
  let waiting = false;
  let lastDrawn = "";

  function latest() {
    const lines = store.decisions.slice(-LATEST).reverse();
    const key = lines.map((line) => `${line.at}${line.pod}`).join();
    if (key === lastDrawn) return;
    lastDrawn = key;
    fill(panel, el("h2", {}, "Latest decisions"),
      lines.length ? el("ol", { class: "latest" }, lines.map((line) => el("li", {},
        el("i", { class: "dot", "data-outcome": line.outcome }), podLink(line.namespace, line.pod),
        el("span", { class: "muted" }, line.node ? [`${line.outcome} `, nodeLink(line.node)] : line.outcome))))
        : el("p", { class: "empty" }, "None yet."),
      el("p", { class: "muted" }, "Choose a tile to see a node's pods, and from there why each is on it."));
    colour(panel);
  }

  async function node() {
    const name = shown;
    waiting = true;
    try {
      const document = await ask(`api/nodes/${encodeURIComponent(name)}`);
      if (shown === name) draw(document);
    } catch (error) {
      if (shown === name) fill(panel, heading(name), el("p", { class: "notice bad" }, error.message));
    } finally {
      waiting = false;
      again = performance.now() + 2000;
    }
  }

  const heading = (name) => el("h2", {}, name, el("button", { class: "plain", "aria-label": "Close", title: "Close (Esc)", onclick: () => choose("") }, "\u00d7"));

  function draw(document) {
    const { requested, allocatable, pods, labels, taints } = document;
    const bar = (label, part, whole, form) => el("div", { class: "meter" }, el("span", {}, label), meter(part / whole),
      el("span", { class: "muted" }, `${form(part)} of ${form(whole)}`));
    const live = [...store.nodes.values()].find((one) => one.name === document.node);
    const focused = panel.contains(window.document.activeElement) ? window.document.activeElement.getAttribute("href") : null;
    const scrolled = panel.querySelector(".pods")?.scrollTop || 0;
    fill(panel, heading(document.node),
      document.unschedulable ? el("p", { class: "notice" }, "Cordoned: no new pods.") : null,
      bar("CPU", requested.cpu, allocatable.cpu, cores), bar("Memory", requested.memory, allocatable.memory, memory),
      bar("Pods", requested.pods, allocatable.pods, count),
      live && live.traffic ? el("p", { class: "muted" }, trafficText(live)) : null,
      taints.length ? el("p", { class: "muted" }, "Taints: ", taints.map((one) => `${one.key}${one.value ? `=${one.value}` : ""}:${one.effect}`).join(", ")) : null,
      el("details", {}, el("summary", {}, `${Object.keys(labels).length} labels`),
        el("ul", { class: "labels" }, Object.entries(labels).sort().map(([key, value]) => el("li", {}, `${key}=${value}`)))),
      el("h3", {}, "Pods, the latest first"),
      pods.length ? el("ol", { class: "pods" }, pods.map((pod) => el("li", {}, podLink(pod.namespace, pod.name),
        el("span", { class: "muted" }, `${cores(pod.cpu)} · ${memory(pod.memory)}${pod.bound_at > 0 ? ` · ${clock(pod.bound_at).slice(0, 8)}` : ""}`))))
        : el("p", { class: "empty" }, "None."),
      pods.length && pods.length < requested.pods ? el("p", { class: "muted" }, `and ${requested.pods - pods.length} more`) : null);
    panel.querySelector(".pods")?.scrollTo(0, scrolled);
    if (focused) [...panel.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }

  const timer = setInterval(() => {
    if (signal.aborted) return clearInterval(timer);
    if (!shown) return latest();
    if (!waiting && performance.now() > again && !panel.querySelector("details[open]")) node();
    return undefined;
  }, 400);

  return {
    show(name) {
      shown = name;
      lastDrawn = "";
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
