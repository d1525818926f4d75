// Builds elements. Every text goes in as text: names and messages come from others.

/** An element with attributes, listeners (on...) and children: texts, elements, lists of them; null is left out. */
export function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

/** NodeResourcesFit, which may be broken before each word. */
export function words(name) {
  return name.split(/(?<=[a-z0-9])(?=[A-Z])/).flatMap((word, at) => (at ? [el("wbr"), word] : [word]));
}

/** Replaces what is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
}

/** Says by what an element is found again that `refill` has replaced, where its address is not its own. */
export function known(element, key) {
  element.dataset.known = key;
  return element;
}

const keyOf = (element) => element.dataset.known || element.getAttribute("href");

/** Replaces what is in an element and leaves the focus where it was, by `known` or by the address of a link. */
export function refill(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  fill(parent, children);
  if (!focused) return;
  const key = keyOf(focused);
  const again = parent.contains(focused) ? focused : key && [...parent.querySelectorAll("[data-known], [href]")].find((each) => keyOf(each) === key);
  if (again) again.focus({ preventScroll: true });
}

/** Sets a text only where it differs, so that nothing is laid out anew in vain. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether this is a PodGroup's name in a message: it has a tilde or two in front of it. */
export function isGroup(name) {
  return name.startsWith("~");
}

export function podName(namespace, name) {
  return isGroup(name) ? `${namespace}/${name.replace(/^~+/, "")} (group)` : `${namespace}/${name}`;
}

/** A link to the page of a pod or PodGroup. */
export function podLink(namespace, name, label) {
  const path = `#/${isGroup(name) ? "group" : "pod"}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  return el("a", { href: path }, label || podName(namespace, name));
}

export function nodeLink(name) {
  return el("a", { href: `#/node/${encodeURIComponent(name)}` }, name);
}

/** A cell that says which column it is in where a narrow page shows a row as lines. */
export function cell(label, attributes, ...children) {
  return el("td", { ...attributes, "data-label": label }, children);
}

/** A table of rows, which a narrow page shows as lines. `numbers`: the columns that are aligned to the right. */
export function tableOf(headings, body, numbers = [], titles = {}) {
  return el("div", { class: "scroll" }, el("table", { class: "rows" },
    el("thead", {}, el("tr", {}, headings.map((name) => el("th", { scope: "col", title: titles[name], class: numbers.includes(name) ? "number" : "" }, name)))), body));
}

/** Asks the console; rejects with its own sentence and, as `status`, the number of its answer. */
export async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { Accept: "application/json" } });
  } catch {
    throw new Error("the console does not answer");
  }
  if (answer.status === 401) {
    location.reload();
    throw new Error("log in again");
  }
  let document = null;
  try {
    document = await answer.json();
  } catch {
    throw new Error(`the console answered ${answer.status} without a reason`);
  }
  if (!answer.ok) throw Object.assign(new Error(document.error || `the console answered ${answer.status}`), { status: answer.status });
  return document;
}

export const podPath = (namespace, name) =>
  `api/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
