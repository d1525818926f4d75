// Colours. Amounts: one sequence whose lightness rises evenly (ColorBrewer's YlGnBu), away from the background, so that
// it reads the same to people who see no hues. Kinds: Okabe and Ito's; a word always stands beside them.

const LIGHT = ["#eef4d2", "#d3ecb7", "#a5dbb7", "#68c3be", "#3aa9c2", "#2083b9", "#2459a5", "#233690", "#0a1f5c"];
const DARK = ["#1c2a44", "#23387c", "#24549c", "#1f7cb6", "#34a3c2", "#5fbfbf", "#98d6b9", "#cfeab5", "#f5fbc4"];

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

const sequences = { light: sequence(LIGHT), dark: sequence(DARK) };

/** The colours of 0 to 100 per cent. */
export function amounts() {
  return dark.matches ? sequences.dark : sequences.light;
}

export function gradient() {
  return `linear-gradient(to right, ${(dark.matches ? DARK : LIGHT).join(", ")})`;
}

/** A colour of the style sheet. */
export function ofStyle(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
