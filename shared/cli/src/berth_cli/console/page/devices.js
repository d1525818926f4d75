// Devices of a node or a pod: what they are, who has them, and why some are given to no pod.

import { cell, el, nodeLink, podLink, tableOf } from "./dom.js";

const SHOWN = 6; // attributes and capacities of a device

/** The devices of a node, in the order in which they are given. */
export function devicesOfNode({ number, in_use: used, listed }, node) {
  return [el("h3", {}, `Devices, ${used} of ${number} in use`),
    el("ol", { class: "pods devices" }, listed.map((each) => el("li", {},
      el("span", {}, el("bdi", {}, nameOf(each, node)), users(each)), featuresOf(each), ...hindrances(each)))),
    number > listed.length ? el("p", { class: "muted" }, `and ${number - listed.length} more`) : null];
}

/** The devices of a pod, with the claims and requests that they were given to. */
export function devicesOfPod(given, pod) {
  return [el("h2", {}, given.length === 1 ? "Its device" : "Its devices"),
    tableOf(["Device", "Node", "Attributes", "Claim"], el("tbody", {}, given.map((each) => el("tr", {},
      cell("Device", {}, `${each.driver}/${each.pool}/${each.device}`, others(each, pod), ...hindrances(each)),
      cell("Node", {}, each.node ? nodeLink(each.node) : ""),
      cell("Attributes", {}, featuresOf(each)),
      cell("Claim", {}, each.claim || "deleted", el("div", { class: "muted" }, `request ${each.request}`))))))];
}

/** Of a pool that has the node's name, as drivers mostly call it, the device's name is enough. */
const nameOf = ({ pool, device }, node) => (pool === node ? device : `${pool}/${device}`);

function users({ used_by: pods }) {
  return pods.length ? [": ", linked(pods)] : el("span", { class: "muted" }, ": free");
}

function others({ used_by: pods }, pod) {
  const more = pods.filter((each) => each !== pod);
  return more.length ? el("div", { class: "muted" }, "shared with ", linked(more)) : null;
}

/** Users are pods, or claims without one. */
const linked = (users) => users.map((each, at) => {
  const [namespace, name] = each.split("/");
  return [at ? ", " : "", name && !each.includes(" ") ? podLink(namespace, name) : each];
});

function featuresOf({ attributes, capacity }) {
  const all = [...Object.entries(attributes), ...Object.entries(capacity)].map(([name, value]) => `${name} ${value}`);
  if (!all.length) return null;
  return el("span", { class: "muted", title: all.length > SHOWN ? all.join(", ") : null }, all.slice(0, SHOWN).join(", "), all.length > SHOWN ? ", ..." : "");
}

const hindrances = ({ state, taints }) => [state, ...taints.map((each) => `taint ${each}`)].filter(Boolean).map((each) => el("span", { class: "hindrance" }, each));
