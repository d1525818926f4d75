// Decisions as they come. The rows are made once and written anew, so that a thousand a second cost no more than ten.

import { address, choices, linkTo, timeOf, timeText } from "./address.js";
import { awaitedNotice } from "./awaited.js";
import { ask, cell, el, fill, known, nodeLink, podLink, podName, refill, setText, tableOf } from "./dom.js";
import { clock, count, day, duration, percent } from "./format.js";
import { OUTCOMES, STAGES, dark, ofStyle } from "./palette.js";
import { decisionOf, store } from "./store.js";

const ROWS = 60;
const REDRAW_MS = 250;
const ORDER = ["bound", "waiting", "preempting", "unschedulable", "conflict", "error", "gone"];
const OTHERS = "(others)"; // profiles that are counted together: no Decision has that one
const MEANS = { conflict: "conflict (ranked again)" };
const SPANS = [["", "1 min", "the last minute"], ["900", "15 min", "the last 15 minutes"], ["3600", "1 h", "the last hour"]]; // seconds
const NUMBERS = ["Ranked in", "Bound in"];
const kept = { span: "", from: "", to: "", outcome: "", profile: "", text: "" };

export function decisionsView(place, signal) {
  if (!address().chosen.has("from")) kept.from = kept.to = ""; // a time is shown only by a link to it
  const keep = choices(kept);
  if (!SPANS.some(([span]) => span === kept.span)) kept.span = "";
  const [from, to] = [timeOf(kept.from), timeOf(kept.to)];
  let past = to > from ? { decisions: [], figures: null } : null; // what was at the time of the address
  let paused = null;
  let drawnAt = 0;
  let drawn = null;
  const counters = el("div", { class: "counters" });
  const history = el("canvas", { class: "history", role: "img" });
  const axis = el("p", { class: "axis muted" }, el("span"), el("span"));
  const peak = el("p", { class: "muted" });
  const holding = el("button", { class: "plain", title: "An address that shows this time to others, as long as NATS keeps its Decisions", onclick: () => { const { begin, seconds } = shown(); hold(begin, Math.ceil(Math.min(begin + seconds, store.now()))); } }, "Hold this time");
  const spans = el("fieldset", { class: "choice" }, el("legend", { class: "hidden" }, "Time"), SPANS.map(([value, label]) => el("label", {},
    el("input", { type: "radio", name: "span", value, checked: kept.span === value, onchange: () => { kept.span = value; keep(); figures(); } }), el("span", {}, label))));
  const then = el("section", { class: "card row then", hidden: !past });
  const strip = el("div", { class: "stages" });
  const names = el("div", { class: "names" });
  const dead = el("section", { class: "card", hidden: true });
  const pause = el("button", { "aria-pressed": "false", title: "Space", onclick: toggle }, "Pause");
  const state = el("span", { class: "muted", role: "status" });
  const outcome = chooser("Outcome", "all outcomes", "outcome");
  const profile = chooser("Profile", "all profiles", "profile");
  const text = el("input", { type: "search", placeholder: "pod, node or reason", "aria-label": "Filter", value: kept.text,
    oninput: () => { kept.text = text.value; keep(); drawn = null; } });
  const rows = Array.from({ length: ROWS }, makeRow);
  const body = el("tbody", {}, rows.map((row) => row.line));
  const table = tableOf(["Time", "Pod", "Outcome", "Node", ...NUMBERS, "Why"], body, NUMBERS);
  table.firstChild.classList.add("lines");
  const quiet = [  // as long as there is nothing to show
    counters,
    el("div", { class: "cards" },
      el("section", { class: "card" }, el("div", { class: "row" }, past ? el("h2", {}, "That time") : spans, past ? null : holding), peak, history, axis),
      el("section", { class: "card" }, el("h2", {}, "From created to bound"), strip),
      el("section", { class: "card" }, el("h2", {}, "By profile and namespace"), names)),
    el("div", { class: "controls" }, pause, outcome, profile, text, state),
    table,
  ];
  const notice = past ? null : awaitedNotice(signal, (isEmpty) => {
    for (const part of quiet) part.hidden = isEmpty;
    if (!isEmpty) figures();
  });
  pause.hidden = Boolean(past);
  history.addEventListener("click", (event) => {
    const found = shown();
    const bar = Math.floor((event.offsetX / history.clientWidth) * (found.seconds / found.step));
    hold(found.begin + (bar - 2) * found.step, found.begin + (bar + 3) * found.step);
  });
  fill(place, notice, then, quiet.slice(0, 2), past ? null : dead, quiet.slice(2));

  function hold(begin, end) {
    location.hash = linkTo("decisions", { ...kept, span: "", from: timeText(begin), to: timeText(end) });
  }

  /** The figures of the time that is chosen. */
  function shown() {
    if (past) return past.figures;
    return kept.span ? store.longer.find(({ seconds }) => String(seconds) === kept.span) : store.figures;
  }

  async function readPast() {
    const move = (by) => linkTo("decisions", { ...kept, from: timeText(from + by), to: timeText(to + by) });
    const says = el("span", {}, "Reading...");
    fill(then, el("b", {}, `${day(from)} ${clock(from).slice(0, 8)} to ${clock(to).slice(0, 8)}`), says,
      el("a", { href: move(from - to) }, "Earlier"), el("a", { href: move(to - from) }, "Later"), el("a", { href: linkTo("decisions", { ...kept, from: "", to: "" }) }, "Back to now"));
    try {
      const found = await ask(`api/decisions?from=${from}&to=${to}`);
      if (signal.aborted) return;
      past = { ...found, decisions: found.decisions.map(decisionOf) };
      const all = Object.values(found.figures.outcomes).reduce((sum, each) => sum + each, 0);
      const listed = all > found.decisions.length ? `, of which the last ${count(found.decisions.length)} are listed` : "";
      setText(says, `${count(all)} Decisions${listed}.${found.until ? ` More were not read: these end at ${clock(found.until)}.` : ""}${all ? "" : " NATS keeps them for an hour, unless it is set otherwise."}`);
      figures();
      drawn = null;
    } catch (error) {
      if (!signal.aborted) fill(says, el("span", { class: "problem" }, error.message));
    }
  }

  function chooser(label, all, field) {
    return el("select", { "aria-label": label, "data-all": all, onchange: (event) => { kept[field] = event.target.value; keep(); drawn = null; } });
  }

  function options(select, values, field) {
    const key = values.join("\n");
    if (select.dataset.key === key) return;
    select.dataset.key = key;
    fill(select, el("option", { value: "" }, select.dataset.all), values.map((value) => el("option", { value, selected: value === kept[field] }, value)));
  }

  function toggle() {
    paused = paused ? null : [...store.decisions];
    pause.setAttribute("aria-pressed", paused ? "true" : "false");
    setText(pause, paused ? "Go on" : "Pause");
    drawn = null;
  }

  function makeRow() {
    const [time, ranked, bound, why] = [["Time", ""], ["Ranked in", "number"], ["Bound in", "number"], ["Why", "why"]].map(([label, kind]) => cell(label, { class: kind }));
    const [pod, node] = [el("a"), el("a")];
    const [dot, word] = [el("i", { class: "dot" }), el("span")];
    const line = el("tr", { hidden: true }, time, el("td", {}, pod), el("td", { class: "outcome" }, dot, word), el("td", {}, node), ranked, bound, why);
    return { line, time, pod, dot, word, node, ranked, bound, why };
  }

  function matches(line) {
    if (kept.outcome && line.outcome !== kept.outcome) return false;
    if (kept.profile && line.profile !== kept.profile) return false;
    const wanted = kept.text.toLowerCase();
    return !wanted || `${line.namespace}/${line.pod} ${line.node} ${line.text}`.toLowerCase().includes(wanted);
  }

  function list() {
    const lines = past ? past.decisions : paused || store.decisions;
    const last = lines[lines.length - 1];
    if (drawn === last && drawn) return;
    drawn = last;
    let at = 0;
    for (let i = lines.length - 1; i >= 0 && at < ROWS; i -= 1) {
      if (matches(lines[i])) write(rows[at++], lines[i]);
    }
    table.firstChild.classList.toggle("reasonless", !rows.slice(0, at).some((row) => row.why.textContent));
    for (; at < ROWS; at += 1) rows[at].line.hidden = true;
  }

  function write(row, line) {
    row.line.hidden = false;
    setText(row.time, clock(line.at));
    link(row.pod, podName(line.namespace, line.pod), podLink(line.namespace, line.pod));
    row.dot.style.background = OUTCOMES[line.outcome] || OUTCOMES.gone;
    setText(row.word, MEANS[line.outcome] || line.outcome);
    if (line.node) link(row.node, line.node, nodeLink(line.node));
    else link(row.node, "", null);
    setText(row.ranked, line.asked && line.ranked ? duration(line.ranked - line.asked) : "");
    setText(row.bound, line.ranked ? duration(line.at - line.ranked) : "");
    setText(row.why, [line.tries > 1 ? `try ${line.tries}` : "", line.text].filter(Boolean).join(": "));
    row.why.title = line.text;
  }

  function link(there, label, made) {
    setText(there, label);
    if (made) there.setAttribute("href", made.getAttribute("href"));
    else there.removeAttribute("href");
  }

  function figures() {
    const found = shown();
    if (!found || counters.hidden) return;
    const of = past ? "of that time" : `of ${SPANS.find(([span]) => span === kept.span)[2]}`;
    const covered = Math.max(1, Math.min(found.begin + found.seconds, store.now()) - found.since); // seconds
    const counter = (label, number, kind, title) => el("div", { class: "counter", title }, el("b", { "data-outcome": kind }, number), el("span", {}, label));
    fill(counters,
      counter("bound", count(found.outcomes.bound || 0), "bound", of),
      counter("bound a second", rate((found.outcomes.bound || 0) / covered), "bound", `${of}, on average`),
      counter("unschedulable", count(found.outcomes.unschedulable || 0), "unschedulable"),
      counter("conflicts", count(found.outcomes.conflict || 0), "conflict", "the binder's check failed: ranked again"),
      counter("repeats", count(found.repeated), "", "Decisions on a pod that had been decided on before"),
      counter("preempting", count(found.outcomes.preempting || 0), "preempting"),
      counter("errors", count(found.outcomes.error || 0), "error"),
      past ? null : counter("dead letters", count(store.deadKept), store.deadKept ? "error" : "", "that NATS keeps, for a week at most"));
    for (const number of counters.querySelectorAll("b")) {
      if (number.dataset.outcome && number.textContent !== "0") number.style.borderColor = OUTCOMES[number.dataset.outcome];
    }
    options(outcome, ORDER.filter((name) => found.outcomes[name] || name === kept.outcome), "outcome");
    const profiles = Object.keys(found.profiles).filter((name) => name !== OTHERS);
    options(profile, [...new Set([...profiles, kept.profile])].filter(Boolean).sort(), "profile");
    stages(found);
    tops(found);
    draw(found);
    const since = found.since > found.begin ? ` Known from ${clock(found.since).slice(0, 8)} on: NATS no longer keeps older Decisions, or the console has not read them.` : "";
    setText(peak, `At most ${count(Math.max(0, ...sumsOf(found)))} Decisions in ${{ 1: "a second", 60: "a minute" }[found.step] || `${found.step} s`}.${since}`);
    history.setAttribute("aria-label", `Decisions by outcome ${of}`);
    setText(axis.firstChild, clock(found.begin).slice(0, 8));
    setText(axis.lastChild, past ? clock(found.begin + found.seconds).slice(0, 8) : "now");
    setText(state, [paused ? "paused" : "", store.leftOut ? `${count(store.leftOut)} not listed, since they came too fast` : ""].filter(Boolean).join(", "));
  }

  function stages(found) {
    const parts = [
      ["waited", "created, then published", found.waited, (time) => (time.p99 < 1 ? "< 1 s" : `${time.p50 < 1 ? "< 1 s" : duration(time.p50)}, p99 ${duration(time.p99)}`)],
      ["ranked", "ranked", found.ranked],
      ["decided", "bound", found.decided],
    ].filter(([, , time]) => time);
    if (!parts.length) return fill(strip, el("p", { class: "empty" }, "No pod was bound in this time."));
    const whole = parts.reduce((sum, [, , time]) => sum + time.p50, 0) || 1;
    const bar = el("div", { class: "strip", role: "img", "aria-label": parts.map(([, label, time]) => `${label} ${duration(time.p50)}`).join(", ") });
    for (const [kind, , time] of parts) {
      const piece = el("i");
      piece.style.background = STAGES[kind];
      piece.style.flexGrow = String(1000 * Math.max(0.004, time.p50 / whole));
      bar.append(piece);
    }
    return fill(strip, bar, el("dl", {}, parts.map(([kind, label, time, form]) => {
      const dot = el("i", { class: "dot" });
      dot.style.background = STAGES[kind];
      return [el("dt", {}, dot, label), el("dd", {}, form ? form(time) : `${duration(time.p50)}, p99 ${duration(time.p99)}`)];
    })), el("p", { class: "muted" }, `Medians of ${found.bound < (found.outcomes.bound || 0) ? "the last " : ""}${count(found.bound)} bound pods. A pod's creation is known to the second.`));
  }

  function tops(found) {
    const rows = (title, numbers) => {
      const sorted = Object.entries(numbers).sort((a, b) => b[1] - a[1]);
      const most = sorted.length ? sorted[0][1] : 1;
      const all = sorted.reduce((sum, [, number]) => sum + number, 0) || 1;
      return [el("h3", {}, title), el("ul", { class: "bars" }, sorted.slice(0, 6).map(([name, number]) => {
        const bar = el("i");
        bar.style.width = `${(number / most) * 100}%`;
        return el("li", {}, el("span", { class: "name", title: name }, name), el("span", { class: "bar" }, bar), el("span", { class: "number" }, `${count(number)} (${percent(number / all)})`));
      }))];
    };
    fill(names, rows("Profile", found.profiles), rows("Namespace", found.namespaces));
  }

  function draw(found) {
    const width = history.parentElement.clientWidth - 28;
    const height = 128;
    const scale = window.devicePixelRatio || 1;
    history.width = width * scale;
    history.height = height * scale;
    history.style.height = `${height}px`;
    const on = history.getContext("2d");
    on.scale(scale, scale);
    const sums = sumsOf(found);
    const most = Math.max(1, ...sums);
    const step = width / sums.length;
    on.fillStyle = ofStyle("--line");
    on.fillRect(0, height - 1, width, 1);
    sums.forEach((_, at) => {
      let top = height - 1;
      for (const name of ORDER) {
        if (!found.series[name]) continue;
        const part = (found.series[name][at] / most) * (height - 4);
        if (!part) continue;
        on.fillStyle = OUTCOMES[name];
        on.fillRect(at * step, top - part, Math.max(1, step - 1), part);
        top -= part;
      }
    });
  }

  function letters() {
    dead.hidden = !store.dead.length;
    const [number, listed] = [store.deadKept, store.dead.length];
    const last = number > listed ? `; the last ${listed} are here, berth dead lists all` : "";
    refill(dead, el("details", { open: Boolean(dead.querySelector("details[open]")) }, known(el("summary", {}, `${count(number)} dead ${number === 1 ? "letter" : "letters"}: messages that could not be read, or failed${last}`), "dead"),
      el("ol", { class: "dead" }, store.dead.map((letter) => el("li", {}, el("span", { class: "muted" }, `${clock(letter.at)} ${letter.service}`),
        ` ${letter.subject.split(".").slice(3).join("/") || letter.subject}: ${letter.reason}`)))));
  }

  if (!past) store.on("figures", figures, signal);
  store.on("dead", letters, signal);
  dark.addEventListener("change", figures, { signal });
  document.addEventListener("keydown", (event) => {
    if (event.key !== " " || event.target.closest("input, select, button, a, summary")) return;
    event.preventDefault();
    toggle();
  }, { signal });
  if (past) readPast();
  else figures();
  letters();
  list();
  requestAnimationFrame(function frame(now) {
    if (signal.aborted) return;
    if (now - drawnAt >= REDRAW_MS) {
      drawnAt = now;
      list();
    }
    requestAnimationFrame(frame);
  });
  return () => ({ chosen: { ...kept }, figures: shown(), decisions: (past ? past.decisions : paused || store.decisions).filter(matches) });
}

const rate = (number) => (number >= 10 || number === 0 ? count(number) : number.toFixed(number >= 1 ? 1 : 2));
const sumsOf = ({ series, seconds, step }) => Array.from({ length: Math.round(seconds / step) }, (_, at) => ORDER.reduce((sum, name) => sum + (series[name]?.[at] || 0), 0));
