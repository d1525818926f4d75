// What the heads of pages have: a field that leads to a pod, and a button for those who have logged in.

import { ask } from "./dom.js";

/** `namespace/pod`, or a pod of the namespace `default`. */
export function offerFind(form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [first, ...rest] = form.elements.pod.value.trim().split("/");
    if (!first) return;
    const [namespace, name] = rest.length ? [first, rest.join("/")] : ["default", first];
    location.hash = `#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  });
}

const loggedOut = new BroadcastChannel("berth-logged-out");
loggedOut.onmessage = () => location.replace("./");

/** Other pages of this browser are left too: they have the same cookie, and would go on to be sent frames. */
export function offerLogout(button) {
  fetch("api/session").then((answer) => answer.json()).then(({ login }) => {
    button.hidden = !login;
  }, () => {});
  button.addEventListener("click", async () => {
    await ask("logout", { method: "POST" });
    loggedOut.postMessage(null);
    location.replace("./");
  });
}

/** By a listener, since the part of the address after # is the view. */
export function offerSkip(link, view) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    view.focus();
  });
}
