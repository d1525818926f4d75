// Every node as a tile on one canvas. A frame paints only the tiles that changed; what moves (a pod that has just come,
// the pointer, the focus) is on a second canvas above it, which is cleared where it was painted.

import { amounts, ofStyle } from "./palette.js";

const LARGEST = 34;
const SMALLEST = 7;
const HEADING = 20;
const FLASH_MS = 900;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Tiles {
  /** `ratio(node)`: 0 to 1, or null where it is unknown. */
  constructor(base, above, ratio) {
    this.base = base;
    this.above = above;
    this.ratio = ratio;
    this.groups = [];
    this.order = [];
    this.places = new Map();
    this.dirty = new Set();
    this.flashing = new Set();
    this.marks = [];
    this.focus = -1;
    this.hovered = -1;
    this.chosen = "";
    this.size = SMALLEST;
    this.columns = 1;
  }

  /** Lays out groups of nodes: [[heading, nodes]]. */
  layOut(groups, width, height) {
    this.groups = groups;
    const headed = groups.length > 1;
    const gap = headed ? HEADING + 6 : 0;
    const rows = (size) => groups.reduce((sum, [, nodes]) => sum + Math.ceil(nodes.length / Math.max(1, Math.floor(width / size))), 0);
    let size = LARGEST;
    while (size > SMALLEST && rows(size) * size + gap * groups.length > height) size -= 1;
    this.size = size;
    this.columns = Math.max(1, Math.floor(width / size));
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
        const place = { x: (at % this.columns) * size, y: top + Math.floor(at / this.columns) * size, index: this.order.length };
        this.places.set(node, place);
        this.order.push(node);
      });
      top += Math.ceil(nodes.length / this.columns) * size + (headed ? 6 : 0);
    }
    this.resize(width, Math.max(top, size));
    this.focus = Math.min(this.focus, this.order.length - 1);
    this.hovered = -1;
    this.paintAll();
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
    this.ink = { text: ofStyle("--muted"), line: ofStyle("--line"), strong: ofStyle("--text"), accent: ofStyle("--accent"), ground: ofStyle("--bg") };
    const on = this.base.getContext("2d");
    on.clearRect(0, 0, this.width, this.height);
    on.font = "600 12px system-ui, sans-serif";
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
    const gap = this.size >= 9 ? 2 : 1;
    const side = this.size - gap;
    on.clearRect(x, y, this.size, this.size);
    const ratio = this.ratio(node);
    if (ratio === null) {
      on.strokeStyle = this.ink.line;
      on.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    } else {
      on.fillStyle = this.colours[Math.max(0, Math.min(100, Math.round(ratio * 100)))];
      on.fillRect(x, y, side, side);
    }
    if (node.flags) {  // cordoned, or not ready: crossed out
      on.strokeStyle = this.ink.strong;
      on.beginPath();
      on.moveTo(x + 1, y + side - 1);
      on.lineTo(x + side - 1, y + 1);
      if (node.flags & 2) {
        on.moveTo(x + 1, y + 1);
        on.lineTo(x + side - 1, y + side - 1);
      }
      on.stroke();
    }
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
    for (const [x, y, side] of this.marks) on.clearRect(x, y, side, side);
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
    for (const [index, colour] of [[this.hovered, this.ink.strong], [this.focus, this.ink.accent], [this.indexOf(this.chosen), this.ink.accent]]) {
      if (index < 0 || !this.order[index]) continue;
      this.ring(on, this.places.get(this.order[index]), colour);
    }
  }

  /** A ring, and one of the background's colour inside it, so that it is seen on light and on dark tiles. */
  ring(on, { x, y }, colour) {
    const side = this.size - (this.size >= 9 ? 2 : 1);
    const width = this.size >= 14 ? 2 : 1;
    on.lineWidth = width;
    on.strokeStyle = this.ink.ground;
    on.strokeRect(x + 1.5 * width, y + 1.5 * width, side - 3 * width, side - 3 * width);
    on.strokeStyle = colour;
    on.strokeRect(x + width / 2, y + width / 2, side - width, side - width);
    this.marks.push([x - 2, y - 2, this.size + 4]);
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
      const row = Math.floor((y - top) / this.size);
      const column = Math.floor(x / this.size);
      if (row >= 0 && row < rows && column >= 0 && column < this.columns) {
        const index = row * this.columns + column;
        return index < nodes.length ? before + index : -1;
      }
      before += nodes.length;
      top += rows * this.size + (headed ? 6 : 0);
    }
    return -1;
  }
}
