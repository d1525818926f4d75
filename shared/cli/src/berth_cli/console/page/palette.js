// Colours. Amounts: one sequence of one hue, whose lightness goes evenly from almost the background's, so that empty is
// seen as empty, and it reads the same to people who see no hues. Kinds: Okabe and Ito's; a word always stands beside them.

const LIGHT = ["#e6ebf1", "#d2e0ee", "#b4cfe8", "#8db9df", "#629fd2", "#3f82c2", "#2565a9", "#14478a", "#0a2a5e"];
const DARK = ["#1f2832", "#1f3650", "#20476f", "#235b92", "#3174b3", "#4a91d0", "#74b0e6", "#a8cff4", "#dcecff"];

export const OUTCOMES = {
  bound: "#009e73",
  unschedulable: "#e69f00",
  conflict: "#cc79a7",
  preempting: "#56b4e9",
  waiting: "#0072b2",
  error: "#d55e00",
  gone: "#8a94a0",
};

export const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#7f6fc9", "#8a94a0"];

export const STAGES = { waited: "#8a94a0", ranked: "#0072b2", decided: "#009e73" };

export const dark = matchMedia("(prefers-color-scheme: dark)");

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function sequence(stops) {
  const made = [];
  for (let i = 0; i <= 100; i += 1) {
    const place = (i / 100) * (stops.length - 1);
    const below = Math.min(stops.length - 2, Math.floor(place));
    const [from, to] = [channels(stops[below]), channels(stops[below + 1])];
    made.push(`rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * (place - below))).join(",")})`);
  }
  return made;
}

/** Black or white, whichever is read on a colour. */
function inkOn(colour) {
  const [red, green, blue] = colour.match(/\d+/g).map((part) => (Number(part) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 ? "#0b1219" : "#ffffff";
}

const sequences = { light: sequence(LIGHT), dark: sequence(DARK) };

/** The colours of 0 to 100 per cent. */
export function amounts() {
  return dark.matches ? sequences.dark : sequences.light;
}

/** What is written on the colours of 0 to 100 per cent. */
export function inks() {
  return amounts().map(inkOn);
}

export function gradient() {
  return `linear-gradient(to right, ${(dark.matches ? DARK : LIGHT).join(", ")})`;
}

/** A colour of the style sheet. */
export function ofStyle(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
