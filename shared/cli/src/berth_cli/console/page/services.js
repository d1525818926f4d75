// The services and the streams between them: who leads, what is late, whose configuration or version differs.

import { cell, el, fill, refill, tableOf } from "./dom.js";
import { count, duration, memory } from "./format.js";
import { store } from "./store.js";

const ORDER = ["watcher", "scorer", "binder", "metrics-collector", "shadow"];
const MEANS = {
  PENDING: "pods to be ranked", RANKED: "rankings to be bound", DECISIONS: "what became of pods", dead: "dead letters",
};
const LAG = ["Messages", "To deliver", "Delivered", "Again", "Oldest", "Size"];
const TITLES = {
  "To deliver": "no process has taken them yet", Delivered: "taken, and not settled yet", Again: "delivered more than once", Oldest: "the age of the oldest message",
};

export function servicesView(place, signal) {
  const numbers = el("div", { class: "counters" });
  const attention = el("section", { class: "card" });
  const processes = el("tbody");
  const streams = el("tbody");
  fill(place, numbers, attention, el("div", { class: "controls" }, el("h2", {}, "Processes")),
    tableOf(["Process", "State", "Configuration", "Version", "Figures"], processes),
    el("div", { class: "controls" }, el("h2", {}, "Streams")), tableOf(["Stream", "Consumer", ...LAG], streams, LAG, TITLES));

  function draw() {
    const { services } = store;
    if (!services) return fill(attention, el("p", { class: "empty" }, store.frames ? "The services have not answered yet." : "Nothing has been read yet."));
    counters(services);
    refill(attention, el("h2", {}, services.attention.length ? "Needs attention" : "Nothing needs attention"),
      services.attention.length ? el("ul", { class: "attention" }, services.attention.map((sentence) => el("li", {}, sentence)))
        : el("p", { class: "muted" }, "Every service answers, a watcher and a binder lead, no pod is stuck, and configurations are the same."));
    const place = ({ service }) => (ORDER.indexOf(service) + ORDER.length + 1) % (ORDER.length + 1);
    const rows = [...services.processes].sort((a, b) => place(a) - place(b) || b.leads - a.leads || a.name.localeCompare(b.name));
    const usual = usualOf(rows);
    refill(processes, rows.map((one) => el("tr", { class: one.silent ? "silent" : "" },
      cell("Process", {}, el("i", { class: "dot", "data-state": one.ready ? (one.leads ? "leads" : "ready") : "bad" }), el("b", {}, one.name)),
      cell("State", { class: one.ready ? "" : "problem" }, one.state),
      cell("Configuration", {}, odd(one.configuration, usual.configuration)), cell("Version", {}, odd(one.version, usual.version)),
      cell("Figures", { class: "muted wide" }, one.figures))));
    refill(streams, services.streams.flatMap((stream) => (stream.consumers.length ? stream.consumers : [null]).map((consumer, at) => el("tr", {},
      cell("Stream", {}, el("b", {}, stream.name), el("span", { class: "muted" }, ` ${MEANS[stream.name] || ""}`)), cell("Consumer", {}, consumer ? consumer.name : ""),
      cell("Messages", { class: "number" }, at ? "" : count(stream.messages)),
      cell("To deliver", { class: "number" }, consumer ? count(consumer.undelivered) : ""), cell("Delivered", { class: "number" }, consumer ? count(consumer.unacknowledged) : ""),
      cell("Again", { class: "number" }, consumer ? count(consumer.redelivered) : ""),
      cell("Oldest", { class: stream.is_slow ? "number problem" : "number" }, at || stream.oldest === null ? "" : duration(stream.oldest)),
      cell("Size", { class: "number" }, at ? "" : memory(stream.bytes))))));
    return undefined;
  }

  function counters({ processes: all, streams: kept }) {
    const of = (service) => all.filter((one) => one.service === service);
    const counter = (label, value, bad) => el("div", { class: "counter" }, el("b", { class: bad ? "problem" : "" }, value), el("span", {}, label));
    const leader = (service) => counter(service, of(service).some((one) => one.leads) ? "leads" : "none leads", !of(service).some((one) => one.leads));
    const ready = of("scorer").filter((one) => one.ready).length;
    const lag = (name) => (kept.find((one) => one.name === name)?.consumers || []).reduce((sum, one) => sum + one.undelivered + one.unacknowledged, 0);
    const age = store.mirrorAge;
    fill(numbers, leader("watcher"), leader("binder"),
      counter("scorers ready", ready === of("scorer").length ? count(ready) : `${ready} of ${of("scorer").length}`, !ready || ready < of("scorer").length),
      counter("age of the mirror", age === null ? "-" : duration(age), !store.mirrorIsCurrent),
      counter("to be ranked", count(lag("PENDING"))), counter("to be bound", count(lag("RANKED"))), counter("dead letters", count(store.deadKept), store.deadKept > 0));
  }

  for (const kind of ["services", "bus", "dead"]) store.on(kind, draw, signal);
  draw();
  return () => ({ ...store.services, mirror_age_seconds: store.mirrorAge, dead_letters: store.deadKept });
}

/** What most processes have: another configuration or version is marked. */
function usualOf(rows) {
  const most = (values) => [...new Set(values)].sort((a, b) => values.filter((one) => one === b).length - values.filter((one) => one === a).length)[0];
  const of = (name) => most(rows.map((one) => one[name]).filter(Boolean));
  return { configuration: of("configuration"), version: of("version") };
}

const odd = (value, usual) => (value && value !== usual ? el("b", { class: "problem", title: `others have ${usual}` }, value) : value);
