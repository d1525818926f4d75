// What of a node is shown as a colour and in words: CPU, memory and pods that are requested, and what is measured: the
// CPU and memory that are used, and bandwidth.

import { cores, duration, memory, percent, perSecond } from "./format.js";

const STALE_SECONDS = 60;
const WIDE = 170; // pixels for a line with a label and both numbers

export const share = (part, whole) => (whole > 0 ? part / whole : null);
const usedShare = (node, resource) => ((node.usage?.[resource] ?? null) === null ? null : share(node.usage[resource], node[resource]));
const rate = (traffic) => Math.max(traffic.receive ?? 0, traffic.transmit ?? 0);

export class Measures {
  /** `now()`: the time from which a sample's age is counted, in Unix seconds. */
  constructor(now) {
    this.now = now;
    this.by = "cpu";
    this.fastest = 1;
    this.kinds = {
      cpu: { label: "CPU", ratio: (node) => share(node.load.cpu, node.cpu), text: (node) => `${cores(node.load.cpu)} of ${cores(node.cpu)} cores` },
      memory: { label: "Memory", ratio: (node) => share(node.load.memory, node.memory), text: (node) => `${memory(node.load.memory)} of ${memory(node.memory)}` },
      pods: { label: "Pods", ratio: (node) => share(node.load.pods, node.pods), text: (node) => `${node.load.pods} of ${node.pods}` },
      "cpu-used": { label: "CPU used", measured: "usage", ratio: (node) => usedShare(node, "cpu"), text: (node) => this.usageText(node, "cpu", cores) },
      "memory-used": { label: "Memory used", measured: "usage", ratio: (node) => usedShare(node, "memory"), text: (node) => this.usageText(node, "memory", memory) },
      bandwidth: { label: "Bandwidth", measured: "traffic", ratio: (node) => this.trafficRatio(node), text: (node) => this.trafficText(node) },
    };
  }

  /** 0 to 1; null where it is unknown. */
  ratio(node) {
    return this.kinds[this.by].ratio(node);
  }

  /** A node in at most so many lines below its name: what its colour means first. `wide`: pixels. */
  says(node, most, wide) {
    const ratio = this.ratio(node);
    const state = node.flags & 2 ? "not ready" : node.flags & 1 ? "cordoned" : "";
    const share = ratio === null ? "" : percent(ratio);
    const joined = (...parts) => parts.filter(Boolean).join(", ");
    const { [this.by]: chosen, ...others } = this.kinds;
    if (most <= 2 || wide < WIDE) return [joined(share, state), chosen.text(node)].filter(Boolean).slice(0, most);
    const measured = Object.values(others).filter((one) => !one.measured || node[one.measured]);
    return [state, `${chosen.label}: ${joined(share, chosen.text(node))}`, ...measured.map(({ label, text }) => `${label}: ${text(node)}`)]
      .filter(Boolean).slice(0, most);
  }

  /** Looks for the busiest node, which is the scale where no capacity is known. Returns whether it is another. */
  scale(nodes) {
    let most = 1;
    for (const node of nodes) if (node.traffic) most = Math.max(most, rate(node.traffic));
    const other = most !== this.fastest;
    this.fastest = most;
    return other;
  }

  usageText(node, resource, form) {
    if ((node.usage?.[resource] ?? null) === null) return "not measured";
    return `${form(node.usage[resource])} of ${form(node[resource])}${resource === "cpu" ? " cores" : ""}, ${this.age(node.usage.sampled)}`;
  }

  age(sampled) {
    const age = this.now() - sampled;
    return `${duration(Math.max(0, age))} old${age > STALE_SECONDS ? " (stale)" : ""}`;
  }

  trafficRatio(node) {
    return node.traffic ? rate(node.traffic) / (node.traffic.capacity || this.fastest) : null;
  }

  trafficText(node) {
    if (!node.traffic) return "not measured";
    const { receive, transmit, capacity, sampled } = node.traffic;
    const one = (amount) => (amount === null ? "?" : perSecond(amount));
    return `in ${one(receive)}, out ${one(transmit)}${capacity ? ` of ${perSecond(capacity)}` : ""}, ${this.age(sampled)}`;
  }

  /** A node in lines, its name first. */
  describe(node) {
    return [node.name, ...(node.zone ? [node.zone] : []), ...Object.values(this.kinds).map((one) => {
      const ratio = one.ratio(node);
      return `${one.label} ${ratio === null ? "" : `${percent(ratio)}, `}${one.text(node)}`;
    }), ...(node.flags & 1 ? ["cordoned"] : []), ...(node.flags & 2 ? ["not ready"] : [])];
  }
}
