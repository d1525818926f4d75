// The messages of a pod or a PodGroup, from the first to the last.

import { address, linkTo, timeOf, timeText } from "./address.js";
import { el, fill } from "./dom.js";
import { clock, duration, unix } from "./format.js";
import { OUTCOMES, STAGES } from "./palette.js";

const AROUND_SECONDS = 5; // of the Decisions around a message

/** Messages with the time that each took; `view`: the address that a link to one of them begins with. */
export function drawTrace(trace, view, messages) {
  trace.hidden = !messages.length;
  if (!messages.length) return;
  const marked = timeOf(address().chosen.get("at")); // the time of the message that a link names
  const at = messages.map((message) => unix(message.at));
  const span = at[at.length - 1] - at[0];
  const bar = el("div", { class: "strip", role: "img", "aria-label": `${duration(span)} from the first message to the last` });
  messages.forEach((message, i) => {
    if (!i) return;
    const piece = el("i", { title: `${message.stage}: +${duration(message.since_seconds)}` });
    piece.style.background = colourOfMessage(message);
    piece.style.flexGrow = String(1000 * Math.max(0.01, message.since_seconds / (span || 1)));
    bar.append(piece);
  });
  fill(trace, el("h2", {}, "Its messages ", el("span", { class: "muted" }, `${duration(span)} from the first to the last`)), messages.length > 1 ? bar : null,
    el("ol", { class: "trace" }, messages.map((message, i) => {
      const dot = el("i", { class: "dot" });
      dot.style.background = colourOfMessage(message);
      const link = linkTo(view, { at: timeText(at[i]) });
      const line = [el("a", { href: link, title: "A link to this message" }, el("time", {}, clock(at[i]))), el("span", { class: "since" }, message.since_seconds === null ? "" : `+${duration(message.since_seconds)}`),
        dot, el("b", {}, message.stage), el("span", {}, message.text)];
      const isMarked = Math.abs(at[i] - marked) < 0.001;
      const around = { from: timeText(at[i] - AROUND_SECONDS), to: timeText(at[i] + AROUND_SECONDS) };
      return el("li", { class: isMarked ? "marked" : "" }, message.message
        ? el("details", { open: isMarked }, el("summary", {}, line), el("p", { class: "muted" }, message.subject, " \u00b7 ", el("a", { href: linkTo("decisions", around) }, "Decisions around it")),
          el("pre", { tabindex: 0 }, JSON.stringify(message.message, null, 2)))
        : el("div", { class: "line", title: "restored from the Decision: the message itself was settled" }, line));
    })));
  trace.querySelector(".marked")?.scrollIntoView({ block: "center" });
}

/** A Decision has the colour of its outcome, other messages that of their stage. */
function colourOfMessage({ stage, message }) {
  if (stage === "dead") return OUTCOMES.error;
  if (stage === "decision") return OUTCOMES[message?.outcome] || STAGES.decided;
  return stage === "ranked" ? STAGES.ranked : STAGES.waited;
}
