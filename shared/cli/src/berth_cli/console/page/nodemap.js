// The nodes of one cluster as tiles: laid out by zone, with the numbers beside the pointer, by keyboard too.

import { el, fill, setText } from "./dom.js";
import { count, percent } from "./format.js";
import { share } from "./measures.js";
import { dark } from "./palette.js";
import { Tiles } from "./tiles.js";

const LEAST_HEIGHT = 260;
export const MOST_HEADINGS = 24; // of more groups of nodes none has one
const order = new Intl.Collator("en", { numeric: true });

/** Nodes by zone and name. */
export function inOrder(nodes) {
  return [...nodes].sort((a, b) => order.compare(a.zone, b.zone) || order.compare(a.name, b.name));
}

/** `choose(name)` is called for a tile, with "" to leave it; `pointed(name)` for the one under the pointer. */
export function nodeMap(measures, { label, choose, pointed = () => {} }, signal) {
  const speaking = `spoken-${label}`;
  const base = el("canvas", { "aria-hidden": "true" });
  const above = el("canvas", {
    tabindex: 0, role: "application", "aria-label": `${label}. Arrow keys move, Enter shows a node's pods, Escape closes.`, "aria-describedby": speaking,
  });
  const stack = el("div", { class: "stack" }, base, above);
  const tip = el("div", { class: "tip", hidden: true });
  const spoken = el("p", { id: speaking, class: "hidden", "aria-live": "polite" });
  const nothing = el("p", { class: "empty" });
  const element = el("section", { "aria-label": label }, nothing, stack, tip, spoken);
  const tiles = new Tiles(base, above, (node) => measures.ratio(node), (node, ...room) => measures.says(node, ...room));

  /** Lays out the nodes that are to be seen, in a part of the window's height; `empty` is shown when there are none. */
  function layOut(nodes, empty, part = 1, headingOf = (node) => node.zone || "(no zone)") {
    const groups = new Map();
    for (const node of nodes) {
      const heading = headingOf(node);
      if (!groups.has(heading)) groups.set(heading, []);
      groups.get(heading).push(node);
    }
    const room = Math.max(LEAST_HEIGHT, (window.innerHeight - stack.getBoundingClientRect().top - window.scrollY - 24) * part);
    const headed = groups.size > 1 && groups.size <= MOST_HEADINGS;
    tiles.layOut(headed ? [...groups] : [["", [...groups.values()].flat()]], Math.max(200, stack.parentElement.clientWidth), room);
    nothing.hidden = tiles.order.length > 0;
    setText(nothing, empty);
  }

  function hover(event) {
    const box = above.getBoundingClientRect();
    const index = tiles.at(event.clientX - box.left, event.clientY - box.top);
    above.style.cursor = index < 0 ? "default" : "pointer";
    if (index !== tiles.hovered) pointed(tiles.order[index]?.name || "");
    point(index);
    showTip(index, event.clientX, event.clientY);
  }

  function point(index) {
    if (index === tiles.hovered) return;
    tiles.hovered = index;
    tiles.moved = true;
  }

  function showTip(index, x, y) {
    const node = tiles.order[index];
    tip.hidden = !node;
    if (!node) return;
    fill(tip, measures.describe(node).map((line, at) => el(at ? "span" : "b", {}, line)));
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
    showTip(tiles.focus, box.left + x + tiles.tile.wide, box.top + y + tiles.tile.tall);
    setText(spoken, measures.describe(node).join(", "));
  }

  above.addEventListener("pointermove", hover);
  above.addEventListener("pointerleave", () => { point(-1); pointed(""); tip.hidden = true; });
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
  dark.addEventListener("change", () => tiles.paintAll(), { signal });

  return {
    element, tiles, layOut,
    /** Marks a node, as chosen. */
    mark(name) {
      tiles.chosen = name;
      tiles.moved = true;
    },
    /** Draws one line around the tiles of these nodes. */
    outline(names) {
      tiles.outlined = names;
      tiles.moved = true;
    },
    /** Shows the pointer's ring on a node. */
    point(name) {
      point(tiles.order.findIndex((node) => node.name === name));
    },
  };
}

/** What is on the nodes that are shown, in a line. */
export function totalsOf(shown, all) {
  const sum = (of) => shown.reduce((total, node) => total + of(node), 0);
  const parts = [
    `${count(shown.length)}${shown.length === all ? "" : ` of ${count(all)}`} nodes`,
    `${count(sum((node) => node.load.pods))} pods`,
    `CPU ${percent(share(sum((node) => node.load.cpu), sum((node) => node.cpu)) ?? NaN)}`,
    `memory ${percent(share(sum((node) => node.load.memory), sum((node) => node.memory)) ?? NaN)}`,
  ];
  const out = shown.filter((node) => node.flags).length;
  if (out) parts.push(`${count(out)} cordoned or not ready`);
  return parts;
}
