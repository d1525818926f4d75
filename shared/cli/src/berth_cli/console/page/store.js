// What the console has sent: everything once, then what changed. Views read it and are notified of the kind of change.

const SILENCE_MS = 25_000;
const HIDDEN_MS = 20_000;
const TRY_MS = 2000;
const KEPT = 1000;
const DIFFERENCES = 512;

export const decisionOf = ([at, namespace, pod, profile, outcome, node, text, created, asked, ranked, tries]) =>
  ({ at, namespace, pod, profile, outcome, node, text, created, asked, ranked, tries });

export class Store extends EventTarget {
  constructor() {
    super();
    this.nodes = new Map();
    this.labels = [];
    this.decisions = [];
    this.dead = [];
    this.deadKept = 0;
    this.leftOut = 0;
    this.figures = null;
    this.longer = []; // figures of longer times
    this.services = null;
    this.shadows = [];
    this.differences = [];
    this.bus = { connected: false, reason: "connecting" };
    this.mirrorAge = null;
    this.mirrorIsCurrent = true;
    this.link = "connecting";
    this.refusal = ""; // why the console serves no stream to this page
    this.frames = 0;
    this.isResting = false;
    this.clockOffset = 0;
    this.lastHeard = performance.now();
  }

  /** NATS's clock, in Unix seconds. */
  now() {
    return Date.now() / 1000 + this.clockOffset;
  }

  /** One stream, whatever there was before. */
  connect() {
    this.leave();
    const source = new EventSource("api/stream");
    this.source = source;
    source.onmessage = (event) => this.take(JSON.parse(event.data));
    source.onerror = () => {
      this.setLink("lost");
      if (source.readyState === EventSource.CLOSED) this.trying = setTimeout(() => this.tryAgain(), TRY_MS);
    };
    source.onopen = () => {
      this.refusal = "";
      this.setLink("live");
    };
    this.watching = setInterval(() => this.watch(), 5000);
  }

  leave() {
    clearTimeout(this.trying);
    clearInterval(this.watching);
    if (!this.source) return;
    this.source.close();
    this.source.onmessage = this.source.onerror = this.source.onopen = null;
  }

  /** A page that nobody sees takes no frames: a browser has six connections to a console, of which each page takes one. */
  rest() {
    clearTimeout(this.resting);
    if (document.hidden) {
      this.resting = setTimeout(() => {
        this.leave();
        this.isResting = true;
      }, HIDDEN_MS);
    } else if (this.isResting) {
      this.isResting = false;
      this.connect();
    }
  }

  /** The browser has given up: the console refused, and says here why. Perhaps the person has to log in again. */
  async tryAgain() {
    const source = this.source;
    let refusal = "";
    try {
      const answer = await fetch("api/room");
      if (answer.status === 401) return location.reload();
      if (answer.status === 503) refusal = (await answer.json()).error || "";
    } catch {
      // not there yet, or what answers is not the console
    }
    if (this.isResting || this.source !== source) return undefined; // left, or begun anew meanwhile
    this.refusal = refusal;
    this.notify("link");
    if (!refusal) return this.connect();
    this.trying = setTimeout(() => this.tryAgain(), TRY_MS);
    return undefined;
  }

  /** Nothing at all for long, not even what is sent every second: the connection is dead though nothing says so. */
  watch() {
    if (this.link === "live" && performance.now() - this.lastHeard > SILENCE_MS) {
      this.setLink("lost");
      this.connect();
    }
  }

  setLink(link) {
    if (this.link === link) return;
    this.link = link;
    if (link === "live") this.lastHeard = performance.now();
    this.notify("link");
  }

  notify(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }

  on(kind, listener, signal) {
    this.addEventListener(kind, (event) => listener(event.detail), { signal });
  }

  take(frame) {
    this.frames += 1;
    this.lastHeard = performance.now();
    this.setLink("live");
    if (frame.now) this.clockOffset = frame.now - Date.now() / 1000;
    if (frame.whole) this.clear();
    this.takeNodes(frame);
    this.takeDecisions(frame);
    if (frame.bus) {
      this.bus = { connected: false, reason: "", ...frame.bus };
      this.notify("bus");
    }
    if (frame.services) {
      this.services = frame.services;
      this.notify("services");
    }
    this.takeShadows(frame);
    if (frame.longer) this.longer = frame.longer;
    if (frame.figures) {
      this.figures = frame.figures;
      this.mirrorAge = frame.mirror_age ?? null;
      this.mirrorIsCurrent = frame.mirror_is_current ?? true;
      this.notify("figures");
    }
  }

  clear() {
    this.nodes.clear();
    this.labels = [];
    this.decisions = [];
    this.dead = [];
    this.differences = [];
    this.leftOut = 0;
  }

  takeShadows(frame) {
    if (frame.shadows) this.shadows = frame.shadows;
    for (const [at, shadow, namespace, pod, profile, result, live, own, apart, place, refused, outcome, node, elsewhere] of frame.differences || [])
      this.differences.unshift({ at, shadow, namespace, pod, profile, result, live, own, apart, place, refused, outcome, node, elsewhere });
    this.differences.length = Math.min(this.differences.length, DIFFERENCES);
    if (frame.whole || frame.shadows || frame.differences) this.notify("shadows");
  }

  takeNodes(frame) {
    (frame.labels || []).forEach((text, at) => { this.labels[(frame.labels_from || 0) + at] = text; });
    const changed = new Set();
    let others = Boolean(frame.whole);
    for (const row of frame.gone || []) others = this.nodes.delete(row) || others;
    for (const [row, name, zone, cpu, memory, pods, flags, labels] of frame.nodes || []) {
      const before = this.nodes.get(row);
      const same = before && before.name === name;
      const node = same ? before : { row, name, load: { pods: 0, cpu: 0, memory: 0, profiles: {} }, traffic: null, usage: null, arrived: 0 };
      others = others || !same || node.zone !== zone || node.flags !== flags || String(node.labels) !== String(labels);
      Object.assign(node, { zone, cpu, memory, pods, flags, labels });
      this.nodes.set(row, node);
      changed.add(node);
    }
    const at = performance.now();
    for (const [row, pods, cpu, memory, profiles] of frame.loads || []) {
      const node = this.nodes.get(row);
      if (!node) continue;
      if (!frame.whole && !frame.jumped && pods > node.load.pods) node.arrived = at;
      node.load = { pods, cpu, memory, profiles };
      changed.add(node);
    }
    for (const [row, receive, transmit, capacity, sampled] of frame.traffic || []) {
      const node = this.nodes.get(row);
      if (!node) continue;
      node.traffic = sampled === null ? null : { receive, transmit, capacity, sampled };
      changed.add(node);
    }
    for (const [row, cpu, memory, sampled] of frame.usage || []) {
      const node = this.nodes.get(row);
      if (!node) continue;
      node.usage = sampled === null ? null : { cpu, memory, sampled };
      changed.add(node);
    }
    if (others) this.notify("nodes");
    if (changed.size) this.notify("loads", changed);
  }

  takeDecisions(frame) {
    const lines = (frame.decisions || []).map(decisionOf);
    this.leftOut += frame.left_out || 0;
    for (const [at, subject, service, reason, sequence] of frame.dead || []) this.dead.unshift({ at, subject, service, reason, sequence });
    this.dead.length = Math.min(this.dead.length, 50);
    if (frame.dead_kept) {
      this.deadKept = frame.dead_kept.letters;
      this.dead = this.dead.filter(({ sequence }) => sequence >= frame.dead_kept.first);
    }
    if (lines.length || frame.whole) {
      this.decisions.push(...lines);
      if (this.decisions.length > KEPT) this.decisions.splice(0, this.decisions.length - KEPT);
      this.notify("decisions", lines);
    }
    if (frame.dead || frame.dead_kept || frame.whole) this.notify("dead");
  }
}

export const store = new Store();
