// Shadows: how often another configuration would have chosen as the live one, the last differences, and one of them whole.

import { choices } from "./address.js";
import { ask, cell, el, fill, isGroup, known, nodeLink, podLink, podName, refill, tableOf, words } from "./dom.js";
import { clock, count, percent } from "./format.js";
import { KINDS } from "./palette.js";
import { drawCandidates, drawRejections } from "./pod.js";
import { store } from "./store.js";

const REDRAW_MS = 500;
const ROWS = 100;
const RESULTS = {
  equal: ["as live", "the same node, or the same reason for none", KINDS[2]],
  node: ["other node", "both find nodes, and another is best; of a group: members elsewhere", KINDS[0]],
  refused: ["refused", "only live finds a node", KINDS[5]],
  feasible: ["feasible", "only the shadow finds a node", KINDS[4]],
  preemption: ["evictions", "neither finds a node; they would evict elsewhere", KINDS[3]],
  error: ["error", "the shadow could not rank the pod", KINDS[8]],
};
const SKIPPED = {
  busy: "more came than it ranks", missed: "not received", profile: "not in its profiles", extenders: "extenders would be asked",
  live: "the live ranking failed or was behind", undecided: "no Decision followed",
};
const NUMBERS = ["Points apart", "Place"];
const kept = { shadow: "" };

const wordOf = (result) => (RESULTS[result] || [result])[0];
const elsewhere = (one) => (one.elsewhere ? ` ${count(one.elsewhere)} members elsewhere` : "");
const where = (one, found, key) => (!found ? "none" : isGroup(one.pod) ? words(found) : known(nodeLink(found), `${key} ${keyOf(one)}`));
const keyOf = (one) => `${one.at} ${one.shadow} ${one.pod}`;
const linkOf = (one) => `#/shadow/${[one.shadow, one.namespace, one.pod].map(encodeURIComponent).join("/")}`;

export function shadowView(place, signal) {
  const write = choices(kept);
  const cards = el("div", { class: "shadows" });
  const choice = el("select", { "aria-label": "Shadow", onchange: () => { kept.shadow = choice.value; write(); draw(); }, onblur: () => draw() }); // not refilled while it is used
  const body = el("tbody");
  const nothing = el("p", { class: "empty" }, "No difference has arrived since this console was started.");
  const table = tableOf(["Time", "Pod", "Shadow", "Difference", "Live", "Shadow's node", ...NUMBERS], body, NUMBERS);
  fill(place, cards, el("div", { class: "controls" }, el("h2", {}, "Last differences"), choice), nothing, table);

  function draw() {
    fill(cards, store.shadows.length ? store.shadows.map(card) : el("p", { class: "empty" }, "No shadow answers. ", el("code", {}, "berth up --shadow NAME=FILE"), " starts one."));
    const names = [...new Set([...store.shadows.map((one) => one.figures.name), ...store.differences.map((one) => one.shadow)])].sort();
    const key = JSON.stringify(names);
    if (choice.dataset.key !== key && !choice.matches(":focus")) {
      choice.dataset.key = key;
      fill(choice, el("option", { value: "" }, "all shadows"), names.map((name) => el("option", { value: name, selected: kept.shadow === name }, name)));
    }
    const shown = store.differences.filter((one) => !kept.shadow || one.shadow === kept.shadow).slice(0, ROWS);
    nothing.hidden = shown.length > 0;
    table.hidden = !shown.length;
    refill(body, shown.map((one) => el("tr", {}, cell("Time", { class: "time" }, clock(one.at)),
      cell("Pod", {}, known(el("a", { href: linkOf(one) }, podName(one.namespace, one.pod)), `pod ${keyOf(one)}`)), cell("Shadow", {}, one.shadow),
      cell("Difference", {}, wordOf(one.result), el("span", { class: "muted" }, elsewhere(one)), one.refused ? el("span", { class: "muted" }, " refused by ", words(one.refused)) : null),
      cell("Live", {}, where(one, one.live, "live")),
      cell("Shadow's node", {}, where(one, one.own, "own")),
      cell("Points apart", { class: "number" }, one.apart ?? "-"), cell("Place", { class: "number" }, one.place ?? "-"))));
  }

  let due = true;
  store.on("shadows", () => { due = true; }, signal);
  const timer = setInterval(() => {
    if (signal.aborted) clearInterval(timer);
    else if (due && !document.hidden) {
      due = false;
      draw();
    }
  }, REDRAW_MS);
  due = false;
  draw();
  return () => ({ shadows: store.shadows, differences: store.differences.filter((one) => !kept.shadow || one.shadow === kept.shadow) });
}

function card({ process, readiness, figures }) {
  const results = figures.results || {};
  const skipped = Object.entries(figures.skipped || {});
  const compared = figures.compared || 0;
  const equal = compared ? percent((results.equal || 0) / compared) : "-";
  const strip = el("div", { class: "strip", role: "img", "aria-label": Object.keys(RESULTS).filter((name) => results[name]).map((name) => `${wordOf(name)} ${results[name]}`).join(", ") });
  for (const [name, [, , colour]] of Object.entries(RESULTS)) {
    if (!results[name]) continue;
    const piece = el("i", { title: `${wordOf(name)} ${count(results[name])}` });
    piece.style.background = colour;
    piece.style.flexGrow = String(results[name]);
    strip.append(piece);
  }
  const rows = Object.entries(RESULTS).filter(([name]) => results[name]).map(([name, [word, means, colour]]) => {
    const dot = el("i", { class: "dot" });
    dot.style.background = colour;
    return [el("dt", {}, dot, word, el("small", { class: "muted" }, ` ${means}`)), el("dd", { class: "number" }, count(results[name]))];
  });
  const by = [["Refuses the live node", figures.refused_by], ["Places what live refuses by", figures.placed_against]].filter(([, counts]) => counts && Object.keys(counts).length);
  return el("section", { class: "card shadow" }, el("h2", {}, figures.name, el("span", { class: "muted" }, readiness === "ok" ? process : readiness)),
    el("p", { class: "headline" }, el("b", {}, equal), ` of ${count(compared)} pods as live`),
    compared ? strip : null, el("dl", {}, rows),
    figures.points_apart ? el("p", { class: "muted" }, `Where another node is best, the live one has ${figures.points_apart} points less on average, by the shadow's scores.`) : null,
    by.map(([title, counts]) => el("p", {}, `${title}: `, Object.entries(counts).sort((a, b) => b[1] - a[1]).slice(0, 8).flatMap(([plugin, pods], at) => [at ? ", " : "", words(plugin), ` ${count(pods)}`]))),
    skipped.length ? el("p", { class: "muted" }, "Not compared: ", skipped.map(([name, pods]) => `${count(pods)} (${SKIPPED[name] || name})`).join(", "), ".") : null);
}

/** One difference: both rankings side by side. */
export function differenceView(place, signal, shadow, namespace, name) {
  const head = el("section", { class: "verdict", "aria-live": "polite" }, el("h1", {}, podName(namespace, name)), el("p", { class: "empty" }, "Reading..."));
  const sides = el("div", { class: "sides" });
  fill(place, head, sides);

  let answer = null;
  ask(`api/shadows/${[shadow, namespace, name].map(encodeURIComponent).join("/")}`).then((found) => {
    if (signal.aborted) return;
    answer = found;
    const apart = found.points_apart === null ? "" : ` By the shadow's scores the live node is in place ${found.place}, ${count(found.points_apart)} points behind.`;
    const refused = found.refused_by ? ` The shadow refuses ${isGroup(name) ? "the group" : "the live node"}: ${found.refused_by}: ${found.reason}.` : "";
    fill(head, el("h1", {}, podName(namespace, name)),
      el("p", { class: "headline" }, el("span", { class: "badge" }, wordOf(found.result)), ` ${(RESULTS[found.result] || ["", ""])[1]}.${found.elsewhere ? `${elsewhere(found)}.` : ""}${apart}${refused}`),
      el("p", { class: "muted" }, "Decided: ", found.live.outcome || "not yet", found.live.node ? [" on ", nodeLink(found.live.node)] : null, ". ",
        podLink(namespace, name, "Why, and its messages"), " · ", el("a", { href: "#/shadow" }, "all differences")));
    fill(sides, side("Live", found.live), side(`Shadow ${found.shadow}`, found.own));
  }, (error) => {
    if (!signal.aborted) fill(head, el("h1", {}, podName(namespace, name)), el("p", { class: "notice" }, error.message), el("p", {}, podLink(namespace, name, "The pod")));
  });
  return () => answer;
}

function side(title, ranking) {
  const candidates = el("section");
  const refused = el("section");
  drawCandidates(candidates, ranking, "Possible");
  drawRejections(refused, ranking.rejections, ranking.evaluated);
  const best = ranking.candidates[0];
  return el("section", { class: "card" }, el("h2", {}, title, el("span", { class: "muted" }, `configuration ${ranking.config || "unknown"}`)),
    el("p", { class: "headline" }, best ? ["Best: ", nodeLink(best.node)] : ranking.error || ranking.message || "No node"),
    ranking.preempts_on ? el("p", {}, "Would evict on ", nodeLink(ranking.preempts_on), ".") : null, candidates, refused);
}
