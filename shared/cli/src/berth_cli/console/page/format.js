// Numbers, times and amounts as people read them; the same forms as the commands have.

export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

export function percent(ratio) {
  return Number.isFinite(ratio) ? `${(ratio * 100).toFixed(ratio > 0 && ratio < 0.0995 ? 1 : 0)} %` : "-";
}

/** 3.1 ms, 4.2 s, 2 min 5 s, 1 h 3 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "-";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function cores(millicores) {
  return millicores >= 1000 ? `${trim(millicores / 1000)}` : `${Math.round(millicores)}m`;
}

function trim(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
}

function scaled(amount, step, units) {
  let at = 0;
  while (amount >= step && at < units.length - 1) {
    amount /= step;
    at += 1;
  }
  return `${at && amount < 10 ? amount.toFixed(1) : amount.toFixed(0)} ${units[at]}`;
}

export const memory = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
export const perSecond = (bytes) => `${scaled(bytes, 1000, ["B", "kB", "MB", "GB", "TB"])}/s`;

/** The local time of day of Unix seconds, to the millisecond. */
export function clock(seconds) {
  const at = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${time}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** The local day of Unix seconds, as 2026-01-02. */
export function day(seconds) {
  const at = new Date(seconds * 1000);
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((number) => String(number).padStart(2, "0")).join("-");
}

export const unix = (text) => (text ? Date.parse(text) / 1000 : null);

/** A sentence without its ages and other numbers; those of names stay. */
export const withoutNumbers = (text) => text.replace(/(?<![\w.-])\d[\d.,]*(?: (?:ms|s|min|h)\b)?(?![\w-])/g, "").replace(/\s+/g, " ").trim();
