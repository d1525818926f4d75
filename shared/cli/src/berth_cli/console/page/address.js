// The part of the address after #: a view, and what is chosen in it, so that a link shows the same to others.

/** A part of an address; as it is where it cannot be decoded. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").map(decoded), chosen: new URLSearchParams(query) };
}

/** An address of a view, without what is empty. */
export function linkTo(view, chosen = {}) {
  const said = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value)).toString();
  return `#/${view}${said ? `?${said}` : ""}`;
}

/** Takes what is chosen from a link, else leaves it as it was last time. Returns what writes it to the address. */
export function choices(kept) {
  const { chosen } = address();
  if (chosen.size) for (const name of Object.keys(kept)) kept[name] = chosen.get(name) || "";
  const write = () => history.replaceState(null, "", linkTo(location.hash.split("?")[0].replace(/^#\/?/, "") || "cluster", kept));
  write();
  return write;
}

/** Unix seconds of a time in an address, as `2026-01-02T03:04:05Z`; NaN: none. */
export const timeOf = (text) => Date.parse(text) / 1000;

export const timeText = (seconds) => new Date(seconds * 1000).toISOString().replace(/\.000Z$/, "Z");
