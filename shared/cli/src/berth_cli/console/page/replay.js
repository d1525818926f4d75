// A recording and what another configuration would have done: two clusters side by side, at any time of the recording.

import { address } from "./address.js";
import { ask, el, fill, nodeLink, podLink, podPath, setText } from "./dom.js";
import { at, Film, SAMPLES, samplesOf } from "./film.js";
import { clock, cores, count, duration, memory } from "./format.js";
import { offerFind, offerLogout, offerSkip } from "./head.js";
import { Measures } from "./measures.js";
import { nodeControls } from "./nodecontrols.js";
import { inOrder, nodeMap, totalsOf } from "./nodemap.js";
import { drawCandidates, drawRejections, drawVerdict } from "./pod.js";
import { Store } from "./store.js";

const WHOLE_MS = 15_000; // in which a recording is played, however long it was
const FASTEST_MS = 60;
const LISTED = 200;
const SETTLED_MS = 150; // after the last move of the slider a node's pods are read anew
const HEIGHT = 0.72; // of the window for the tiles, so that what is chosen is seen below them
const SIDES = ["recorded", "other"];

const signal = new AbortController().signal;
const place = document.getElementById("view");
const kept = { text: "", zone: "", profile: "", by: "" };

offerFind(document.getElementById("find"));
offerLogout(document.getElementById("logout"));
offerSkip(document.querySelector(".skip"), place);
ask("api/film").then(open, (error) => fill(place, el("p", { class: "notice bad" }, error.message)));

function open(found) {
  const { times, title, other_title: otherTitle } = found;
  const last = times.length - 1;
  const titles = { recorded: "Recorded", other: `With ${otherTitle}` };
  const measures = new Measures(() => times[step]);
  let step = last;
  let shown = null;
  let laidOut = false;

  document.title = `${title} and ${otherTitle} - berth replay`;
  setText(document.getElementById("what"), `${title}, recorded from ${clock(times[0])} for ${duration(times[last] - times[0])}, and with ${otherTitle}`);
  fill(document.getElementById("notices"), found.notes.map((note) => el("p", { class: "notice" }, note)));

  // --- the two clusters

  const samples = Object.fromEntries(SAMPLES.map((kind) => [kind, samplesOf(found.recorded, kind)]));
  const controls = nodeControls(measures, kept, (what) => {
    if (what === "nodes") laidOut = false;
    else for (const side of SIDES) clusters[side].map.tiles.paintAll();
    summaries();
  });
  const clusters = Object.fromEntries(SIDES.map((side) => [side, cluster(side)]));

  function cluster(side) {
    const store = new Store();
    const totals = el("p", { class: "totals" });
    const other = SIDES.find((each) => each !== side);
    const map = nodeMap(measures, { label: titles[side], choose: chooseNode, pointed: (name) => clusters[other].map.point(name) }, signal);
    const made = { store, map, totals, film: new Film(found[side], samples), sorted: [],
      element: el("section", { class: "cluster", "data-side": side }, el("h2", {}, titles[side]), totals, map.element) };
    store.on("nodes", () => { made.sorted = inOrder(store.nodes.values()); laidOut = false; });
    store.on("loads", (changed) => map.tiles.changed(changed));
    return made;
  }

  function layOut() {
    laidOut = true;
    controls.offerZones(SIDES.flatMap((side) => clusters[side].sorted));
    for (const { map, sorted, store } of Object.values(clusters)) {
      map.layOut(controls.wanted(sorted, store.labels), store.nodes.size ? "No node matches the filter." : "There was no node yet.", HEIGHT);
    }
    summaries();
  }

  function summaries() {
    for (const { map, store, totals } of Object.values(clusters)) {
      const parts = totalsOf(map.tiles.order, store.nodes.size);
      const { measured } = measures.kinds[measures.by];
      if (measured) parts.push(samples[measured].size ? "samples as recorded" : "no samples were recorded");
      setText(totals, parts.join("  \u00b7  "));
    }
    controls.explain(SIDES.flatMap((side) => clusters[side].map.tiles.order));
  }

  // --- the time

  const slider = el("input", { type: "range", min: 0, max: last, value: last, step: 1, "aria-label": "Time of the recording", oninput: () => { stop(); go(Number(slider.value)); } });
  const time = el("output", { class: "number" });
  const play = el("button", { "aria-pressed": "false", title: "Space", onclick: toggle }, "Play");
  const player = el("div", { class: "player" }, play, slider, time);
  let playing = 0;

  function go(to) {
    step = Math.max(0, Math.min(last, to));
    const all = SIDES.map((side) => clusters[side]);
    for (const { store, film } of all) store.take(film.frame(shown, step));
    shown = step;
    if (controls.offerProfiles(all.flatMap(({ store }) => [...store.nodes.values()])) || kept.profile) laidOut = false;
    if (measures.scale(all.flatMap(({ store }) => [...store.nodes.values()])) && measures.by === "bandwidth") {
      for (const { map, store } of all) map.tiles.changed(store.nodes.values());
    }
    slider.value = String(step);
    const text = `${clock(times[step])}  (+${duration(times[step] - times[0])})`;
    setText(time, text);
    slider.setAttribute("aria-valuetext", text);
    if (laidOut) summaries();
    groups.moved(step);
    detail.moved();
  }

  function toggle() {
    if (playing || !last) return stop();
    if (step === last) go(0);
    playing = setInterval(() => {
      if (step < last) go(step + 1);
      if (step >= last) stop();
    }, Math.max(FASTEST_MS, WHOLE_MS / times.length));
    return state();
  }

  function stop() {
    clearInterval(playing);
    playing = 0;
    state();
  }

  function state() {
    play.setAttribute("aria-pressed", playing ? "true" : "false");
    setText(play, playing ? "Pause" : "Play");
  }

  // --- what is chosen

  const panel = el("section", { class: "chosen", "aria-label": "Chosen", "aria-live": "polite", hidden: true });
  const detail = chosenDetail(panel, { titles, times, step: () => step, mark });
  const list = differences(found, titles);
  const groups = groupRows(found.groups);

  function mark(nodes) {
    for (const side of SIDES) clusters[side].map.mark(nodes[side] || "");
  }

  function chooseNode(name) {
    location.hash = name ? `#/node/${encodeURIComponent(name)}` : "#/";
  }

  fill(place,
    el("div", { class: "controls" }, controls.parts), player,
    el("div", { class: "split" },
      el("div", {}, el("div", { class: "pair" }, SIDES.map((side) => clusters[side].element)), panel, groups.element, measured(found, titles)), list));
  go(last);
  layOut();
  new ResizeObserver(() => { laidOut = false; }).observe(clusters.other.map.element);
  window.addEventListener("resize", () => { laidOut = false; });
  window.addEventListener("hashchange", () => detail.route());
  detail.route();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest("input:not([type=range], [type=radio]), select, textarea");
    if (event.key === " " && !field && !event.target.closest("button, a, summary")) toggle();
    else if (event.key === "/" && !field) document.getElementById("pod").focus();
    else if (event.key === "Escape" && !field) chooseNode("");
    else return;
    event.preventDefault();
  });
  requestAnimationFrame(function frame(now) {
    if (!laidOut) layOut();
    for (const { map } of Object.values(clusters)) map.tiles.frame(now);
    requestAnimationFrame(frame);
  });
}

/** The pods that are not as recorded. */
function differences({ different, more, asked, summary, again }, titles) {
  const body = el("ol", { class: "different" });
  const rest = el("p", { class: "muted" });
  const text = el("input", { type: "search", placeholder: "pod or node", "aria-label": "Filter the pods", oninput: draw });

  function draw() {
    const wanted = text.value.toLowerCase();
    const found = different.filter((each) => `${each.namespace}/${each.name} ${each.kind} ${each.recorded} ${each.other}`.toLowerCase().includes(wanted));
    fill(body, found.slice(0, LISTED).map((each) => el("li", {}, podLink(each.namespace, each.name),
      el("span", { class: "muted" }, `${each.recorded} \u2192 ${each.other}`),
      each.kind === "elsewhere" ? null : el("span", { class: "kind" }, each.kind),
      each.reason ? el("span", { class: "muted reason" }, each.reason) : null)));
    const left = found.length - Math.min(found.length, LISTED) + (wanted ? 0 : more);
    setText(rest, different.length ? `${left ? `and ${count(left)} more: -o json has all` : ""}` : "Every pod is as recorded.");
  }

  draw();
  return el("aside", { "aria-label": "Pods that are not as recorded" }, el("h2", {}, "Not as recorded"),
    el("p", {}, `${count(asked)} pods: ${summary}.`),
    el("p", { class: "muted" }, `With the recorded configuration, placed one after the other: ${again}.`),
    different.length ? text : null, body, rest,
    el("p", { class: "muted" }, `Each pod: where it was recorded \u2192 where it is ${titles.other.replace("With", "with")}.`));
}

/** A row a group, with what is bound of it at the time shown. Both clusters have its pods where they were recorded. */
function groupRows(groups) {
  const cells = groups.map(() => el("td", { class: "number" }));
  const partial = ({ partial_seconds: seconds, is_partial: still }) => (seconds ? el("span", { class: "badge bad" }, `in part for ${duration(seconds)}${still ? ", still" : ""}`) : "");
  const rows = groups.map((group, number) => el("tr", {}, el("th", { scope: "row" }, `${group.namespace}/${group.name}`), cells[number],
    el("td", { class: "number" }, count(group.minimum)), el("td", { class: "number" }, group.whole_seconds === null ? "" : duration(group.whole_seconds)), el("td", {}, partial(group))));
  const element = el("section", { class: "card groups", hidden: !groups.length }, el("h2", {}, "Groups", el("span", { class: "muted" }, "as recorded, in both")), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Group", "Bound", "Minimum", "Whole after", ""].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))));
  const moved = (step) => groups.forEach((group, number) => setText(cells[number], String(at(group.bound, step) ?? 0)));
  return { element, moved };
}

function measured({ measures }, titles) {
  return el("section", { class: "card" }, el("h2", {}, "At the end"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["", "Recorded", "Again", titles.other].map((name) => el("th", { scope: "col", class: name ? "number" : "" }, name)))),
    el("tbody", {}, measures.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", { class: "number" }, cell))))))));
}

/** Below the tiles: the chosen pod with the reasons in both clusters, or the chosen node with its pods. */
function chosenDetail(panel, { titles, times, step, mark }) {
  let chosen = null;
  let drawn = null;
  let waiting = 0;

  const stayAt = (stays) => stays.find((stay) => stay.begin <= step() && (stay.end === null || step() < stay.end));
  const heading = (title) => el("h2", {}, title, el("button", { class: "plain", "aria-label": "Close", title: "Close (Esc)", onclick: () => { location.hash = "#/"; } }, "\u00d7"));

  function route() {
    const [kind, ...rest] = address().parts;
    clearTimeout(waiting);
    drawn = null;
    chosen = kind === "node" && rest.length ? { node: rest.join("/") } : kind === "pod" && rest.length === 2 ? { pod: rest } : null;
    panel.hidden = !chosen;
    mark(chosen?.node ? { recorded: chosen.node, other: chosen.node } : {});
    if (chosen) read(true);
  }

  async function read(isNew) {
    const asked = chosen;
    const [path, title] = asked.pod ? [podPath(...asked.pod), asked.pod.join("/")] : [`api/nodes/${encodeURIComponent(asked.node)}?step=${step()}`, asked.node];
    if (isNew) fill(panel, heading(title), el("p", { class: "empty" }, "Reading..."));
    try {
      const found = await ask(path);
      if (asked !== chosen) return;
      drawn = found;
      fill(panel, heading(title), asked.pod ? pod(found) : node(found));
    } catch (error) {
      if (asked === chosen) fill(panel, heading(title), el("p", { class: "notice bad" }, error.message));
    }
    if (isNew && asked === chosen) panel.scrollIntoView({ block: "nearest" });
    moved();
  }

  /** The slider shows another time. */
  function moved() {
    if (!chosen || !drawn) return;
    if (chosen.node) {
      clearTimeout(waiting);
      if (drawn.step === step()) return;
      waiting = setTimeout(() => read(false), SETTLED_MS);
      return;
    }
    const nodes = {};
    for (const side of SIDES) {
      const { stays } = drawn[side];
      const stay = stayAt(stays);
      nodes[side] = (stay || stays[stays.length - 1])?.node;
      setText(panel.querySelector(`[data-side=${side}] .then`), `At the time shown: ${stay ? `on ${stay.node}` : "on no node"}.`);
    }
    mark(nodes);
  }

  function pod(found) {
    const sides = SIDES.map((side) => {
      const [verdict, candidates, refused] = [el("div", { class: "verdict" }), el("section"), el("section")];
      const { sentences, stays } = found[side];
      drawVerdict(verdict, found[side], found.pod, sentences);
      drawCandidates(candidates, found[side], "Possible");
      drawRejections(refused, found[side].rejections, found[side].evaluated);
      return el("section", { class: "card", "data-side": side }, el("h2", {}, titles[side]), verdict,
        el("p", { class: "muted then" }), stays.length ? el("ul", { class: "muted" }, stays.map((stay) => el("li", {}, nodeLink(stay.node), ` ${span(stay)}`))) : null,
        candidates, refused);
    });
    return [found.difference ? el("p", { class: "headline" }, el("span", { class: "badge" }, found.difference)) : null, el("div", { class: "sides" }, sides)];
  }

  const span = ({ begin, end }) => (begin ? `from ${clock(times[begin])}` : "from the begin") + (end === null ? " on" : ` to ${clock(times[end])}`);

  function node(found) {
    const names = Object.fromEntries(SIDES.map((side) => [side, new Set(found[side].map((each) => `${each.namespace}/${each.name}`))]));
    return el("div", { class: "sides" }, SIDES.map((side, at) => {
      const others = names[SIDES[1 - at]];
      return el("section", { class: "card", "data-side": side }, el("h2", {}, titles[side], el("span", { class: "muted" }, `${count(found[side].length)} pods, the latest first`)),
        found[side].length ? el("ol", { class: "pods" }, found[side].map((each) => el("li", {}, podLink(each.namespace, each.name),
          el("span", { class: "muted" }, `${cores(each.cpu)} \u00b7 ${memory(each.memory)} \u00b7 ${span(each)}`,
            others.has(`${each.namespace}/${each.name}`) ? "" : el("b", {}, " only here")))))
          : el("p", { class: "empty" }, "None at the time shown."));
    }));
  }

  return { route, moved };
}
