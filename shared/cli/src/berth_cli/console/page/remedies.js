// What would help a pod that waits: sentences with what it asks for beside what nodes have, the events below.

import { el, known, nodeLink, refill, words } from "./dom.js";

/** The parts of a card or group; nothing where nothing is known. */
export function whatHelps({ remedies = [], missing = "" }, helping = []) {
  return [
    remedies.length || missing ? el("h3", {}, "What would help") : null,
    remedies.length ? el("ul", { class: "remedies" }, remedies.map((one) => el("li", {}, sentence(one), one.plugin ? [" ", el("span", { class: "muted" }, words(one.plugin))] : null))) : null,
    missing ? el("p", { class: "muted" }, `${missing.charAt(0).toUpperCase()}${missing.slice(1)}.`) : null,
    helping.length ? el("details", { class: "events" }, known(el("summary", {}, "Events after which it is tried again"), "events"), el("ul", { class: "helping" }, helping.map((one) => el("li", {}, one.plugin ? [el("b", {}, words(one.plugin)), ": "] : null,
      one.events.length ? one.events.map((event) => el("span", { class: "event" }, words(event))) : "any event")))) : null,
  ];
}

/** Draws what `make` makes unless `shown` is there already: what is open or has the focus stays so. */
export function drawHelp(place, shown, make) {
  const key = JSON.stringify(shown);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  const wasOpen = Boolean(place.querySelector("details[open]"));
  refill(place, make());
  const events = place.querySelector("details");
  if (events) events.open = wasOpen;
}

/** The sentence of a remedy, in which the names of nodes lead to the nodes. */
export function sentence({ text, examples = [] }) {
  const parts = [];
  let rest = text;
  for (const name of examples) {
    const at = rest.indexOf(name);
    if (at < 0) continue;
    parts.push(rest.slice(0, at), nodeLink(name));
    rest = rest.slice(at + name.length);
  }
  return [...parts, rest];
}
