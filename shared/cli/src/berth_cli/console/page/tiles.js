// Every node as a tile on one canvas. A frame paints only the tiles that changed; what moves (a pod that has just come,
// the pointer, the focus) is on a second canvas above it, which is cleared where it was painted.

import { amounts, inks, KINDS, ofStyle } from "./palette.js";

const LARGEST = 34; // of tiles without a name
const SMALLEST = 7;
const NAMED = { tallest: 104, least: 30, widest: 230, narrowest: 74 }; // of tiles that carry the node's name
const FLATTEST = 0.6; // of its width is a named tile's height at most
const PADDING = 7;
const HEADING = 20;
const OUTLINE = 3;
const FLASH_MS = 900;
const NAME_FONT = "600 12px system-ui, sans-serif";
const WORDS_FONT = "12px system-ui, sans-serif";
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Tiles {
  /** `ratio(node)`: 0 to 1, or null where it is unknown; `says(node, most, wide)`: lines below its name. */
  constructor(base, above, ratio, says) {
    this.base = base;
    this.above = above;
    this.ratio = ratio;
    this.says = says;
    this.groups = [];
    this.order = [];
    this.places = new Map();
    this.dirty = new Set();
    this.flashing = new Set();
    this.marks = [];
    this.focus = -1;
    this.hovered = -1;
    this.chosen = "";
    this.outlined = new Set(); // names of nodes
    this.tile = { wide: SMALLEST, tall: SMALLEST };
    this.names = null; // of the nodes, as far as they have room
    this.columns = 1;
  }

  /** Lays out groups of nodes: [[heading, nodes]]. */
  layOut(groups, width, height) {
    this.groups = groups;
    const headed = groups.length > 1;
    this.tile = this.largest(groups, width, height);
    const { wide, tall } = this.tile;
    this.columns = Math.max(1, Math.floor(width / wide));
    this.order = [];
    this.places.clear();
    this.headings = [];
    let top = 0;
    for (const [heading, nodes] of groups) {
      if (headed) {
        this.headings.push([heading, nodes.length, top]);
        top += HEADING;
      }
      nodes.forEach((node, at) => {
        const place = { x: (at % this.columns) * wide, y: top + Math.floor(at / this.columns) * tall, index: this.order.length };
        this.places.set(node, place);
        this.order.push(node);
      });
      top += Math.ceil(nodes.length / this.columns) * tall + (headed ? 6 : 0);
    }
    this.resize(width, Math.max(top, tall));
    this.focus = Math.min(this.focus, this.order.length - 1);
    this.hovered = -1;
    this.paintAll();
  }

  /** The largest tiles of which all fit: with names where there is room for them, else squares. */
  largest(groups, width, height) {
    const room = height - (groups.length > 1 ? HEADING + 6 : 0) * groups.length;
    const nodes = groups.flatMap(([, each]) => each);
    const rows = (columns) => groups.reduce((sum, [, each]) => sum + Math.ceil(each.length / columns), 0);
    let named = null;
    for (let columns = 1; width / columns >= NAMED.narrowest; columns += 1) {
      const wide = Math.min(NAMED.widest, Math.floor(width / columns));
      const tall = Math.min(NAMED.tallest, Math.floor(wide * FLATTEST), Math.floor(room / rows(columns)));
      if (tall >= NAMED.least && wide * tall > (named ? named.wide * named.tall : 0)) named = { wide, tall };
    }
    this.names = null;
    if (named && nodes.length) {
      const on = this.base.getContext("2d");
      on.font = NAME_FONT;
      const names = shortNames(nodes.map((node) => node.name));
      this.names = new Map(nodes.map((node, at) => [node, cut(on, names[at], named.wide - 2 * PADDING - 2)]));
      return named;
    }
    let size = LARGEST;
    while (size > SMALLEST && rows(Math.max(1, Math.floor(width / size))) * size > room) size -= 1;
    return { wide: size, tall: size };
  }

  resize(width, height) {
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.above]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.width = width;
    this.height = height;
  }

  paintAll() {
    this.colours = amounts();
    this.inks = inks();
    this.ink = { text: ofStyle("--muted"), line: ofStyle("--line"), strong: ofStyle("--text"), accent: ofStyle("--accent"), ground: ofStyle("--bg") };
    const on = this.base.getContext("2d");
    on.clearRect(0, 0, this.width, this.height);
    on.font = NAME_FONT;
    on.textBaseline = "alphabetic";
    for (const [heading, nodes, top] of this.headings || []) {
      on.fillStyle = this.ink.strong;
      on.fillText(heading, 0, top + 14);
      const past = on.measureText(heading).width + 8;
      on.fillStyle = this.ink.text;
      on.fillText(`${nodes}`, past, top + 14);
    }
    for (const node of this.order) this.paint(on, node);
    this.dirty.clear();
    this.paintAbove(performance.now());
  }

  paint(on, node) {
    const { x, y } = this.places.get(node);
    const { wide, tall } = this.tile;
    const gap = tall >= 9 ? 2 : 1;
    const [right, below] = [wide - gap, tall - gap];
    on.clearRect(x, y, wide, tall);
    const ratio = this.ratio(node);
    const amount = ratio === null ? null : Math.max(0, Math.min(100, Math.round(ratio * 100)));
    if (amount === null) {
      on.strokeStyle = this.ink.line;
      on.strokeRect(x + 0.5, y + 0.5, right - 1, below - 1);
    } else {
      on.fillStyle = this.colours[amount];
      on.fillRect(x, y, right, below);
    }
    const ink = amount === null ? this.ink.text : this.inks[amount];
    const lines = this.names ? Math.max(0, Math.min(5, Math.floor((tall - 24) / 15))) : 0;
    if (node.flags && !lines) {  // cordoned, or not ready: crossed out
      on.strokeStyle = this.names ? ink : this.ink.strong;
      on.beginPath();
      on.moveTo(x + 1, y + below - 1);
      on.lineTo(x + right - 1, y + 1);
      if (node.flags & 2) {
        on.moveTo(x + 1, y + 1);
        on.lineTo(x + right - 1, y + below - 1);
      }
      on.stroke();
    }
    if (!this.names) return;
    on.fillStyle = ink;
    on.font = NAME_FONT;
    on.fillText(this.names.get(node), x + PADDING, y + (lines ? 17 : below / 2 + 4));
    on.font = WORDS_FONT;
    this.says(node, lines, wide).forEach((line, at) => on.fillText(begin(on, line, wide - 2 * PADDING), x + PADDING, y + 33 + 15 * at));
  }

  changed(nodes) {
    for (const node of nodes) {
      if (!this.places.has(node)) continue;
      this.dirty.add(node);
      if (node.arrived) this.flashing.add(node);
    }
  }

  /** One frame. Returns how many tiles it painted. */
  frame(now) {
    const painted = this.dirty.size;
    if (painted) {
      const on = this.base.getContext("2d");
      for (const node of this.dirty) if (this.places.has(node)) this.paint(on, node);
      this.dirty.clear();
    }
    if (this.flashing.size || this.moved) this.paintAbove(now);
    return painted;
  }

  paintAbove(now) {
    this.moved = false;
    const on = this.above.getContext("2d");
    for (const mark of this.marks) on.clearRect(...mark);
    this.marks = [];
    for (const node of this.flashing) {
      const age = now - node.arrived;
      const place = this.places.get(node);
      if (age > FLASH_MS || !place) {
        this.flashing.delete(node);
        continue;
      }
      on.globalAlpha = still.matches ? 0.9 : 1 - Math.max(0, age) / FLASH_MS;
      this.ring(on, place, this.ink.strong);
    }
    on.globalAlpha = 1;
    this.paintOutline(on);
    for (const [index, colour] of [[this.hovered, this.ink.strong], [this.focus, this.ink.accent], [this.indexOf(this.chosen), this.ink.accent]]) {
      if (index < 0 || !this.order[index]) continue;
      this.ring(on, this.places.get(this.order[index]), colour);
    }
  }

  /** One line around the outlined tiles: no line between two of them. */
  paintOutline(on) {
    const { wide, tall } = this.tile;
    const places = this.order.filter((node) => this.outlined.has(node.name)).map((node) => this.places.get(node));
    const there = new Set(places.map(({ x, y }) => `${x},${y}`));
    on.beginPath();
    for (const { x, y } of places) {
      const [left, top, right, below] = [x + 1, y + 1, x + wide - 1, y + tall - 1];
      for (const [nextX, nextY, ...line] of [[x - wide, y, left, y, left, y + tall], [x + wide, y, right, y, right, y + tall],
        [x, y - tall, x, top, x + wide, top], [x, y + tall, x, below, x + wide, below]]) {
        if (there.has(`${nextX},${nextY}`)) continue;
        on.moveTo(line[0], line[1]);
        on.lineTo(line[2], line[3]);
      }
      this.marks.push([x - 3, y - 3, wide + 6, tall + 6]);
    }
    for (const [width, colour] of [[OUTLINE + 2, this.ink.ground], [OUTLINE, KINDS[1]]]) {
      on.lineWidth = width;
      on.strokeStyle = colour;
      on.stroke();
    }
  }

  /** A ring, and one of the background's colour inside it, so that it is seen on light and on dark tiles. */
  ring(on, { x, y }, colour) {
    const { wide, tall } = this.tile;
    const gap = tall >= 9 ? 2 : 1;
    const width = tall >= 14 ? 2 : 1;
    on.lineWidth = width;
    on.strokeStyle = this.ink.ground;
    on.strokeRect(x + 1.5 * width, y + 1.5 * width, wide - gap - 3 * width, tall - gap - 3 * width);
    on.strokeStyle = colour;
    on.strokeRect(x + width / 2, y + width / 2, wide - gap - width, tall - gap - width);
    this.marks.push([x - 2, y - 2, wide + 4, tall + 4]);
  }

  indexOf(name) {
    if (!name) return -1;
    if (this.order[this.chosenAt]?.name !== name) this.chosenAt = this.order.findIndex((node) => node.name === name);
    return this.chosenAt;
  }

  /** The index of the node at a point of the canvas; -1: none. */
  at(x, y) {
    const headed = this.groups.length > 1;
    let top = 0;
    let before = 0;
    for (const [, nodes] of this.groups) {
      if (headed) top += HEADING;
      const rows = Math.ceil(nodes.length / this.columns);
      const row = Math.floor((y - top) / this.tile.tall);
      const column = Math.floor(x / this.tile.wide);
      if (row >= 0 && row < rows && column >= 0 && column < this.columns) {
        const index = row * this.columns + column;
        return index < nodes.length ? before + index : -1;
      }
      before += nodes.length;
      top += rows * this.tile.tall + (headed ? 6 : 0);
    }
    return -1;
  }
}

/** Names without the domain that all of them end with. */
function shortNames(names) {
  const at = names[0].indexOf(".");
  const domain = at < 0 ? "" : names[0].slice(at);
  return domain && names.every((name) => name.endsWith(domain)) ? names.map((name) => name.slice(0, -domain.length) || name) : names;
}

/** A line as far as it fits. */
function begin(on, line, width) {
  if (on.measureText(line).width <= width) return line;
  let to = line.length - 1;
  while (to && on.measureText(`${line.slice(0, to)}\u2026`).width > width) to -= 1;
  return `${line.slice(0, to)}\u2026`;
}

/** A name as far as it fits: its end says more than its beginning. */
function cut(on, name, width) {
  if (on.measureText(name).width <= width) return name;
  let from = 1;
  while (from < name.length - 1 && on.measureText(`\u2026${name.slice(from)}`).width > width) from += 1;
  return `\u2026${name.slice(from)}`;
}
