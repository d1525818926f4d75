// Above tiles: what they are coloured by, and which nodes are shown.

import { el, fill, setText } from "./dom.js";
import { perSecond } from "./format.js";
import { gradient } from "./palette.js";

/** `kept` has what is chosen: text, zone, profile and the colours' meaning, `by`. `changed(what)`: "colour" or "nodes". */
export function nodeControls(measures, kept, changed) {
  const legend = el("div", { class: "legend" }, el("span", {}, "0 %"), el("i"), el("span", {}, "100 %"));
  const choose = (field) => (event) => { kept[field] = event.target.value; changed("nodes"); };
  const zones = el("select", { "aria-label": "Zone", onchange: choose("zone") });
  const profiles = el("select", { "aria-label": "Profile", title: "Nodes with pods of this profile", onchange: choose("profile") });
  const text = el("input", { type: "search", placeholder: "name or label", "aria-label": "Filter by name or label", value: kept.text, oninput: choose("text") });
  const by = el("fieldset", { class: "choice" }, el("legend", { class: "hidden" }, "Colour by"),
    Object.entries(measures.kinds).map(([key, { label }]) => el("label", {},
      el("input", { type: "radio", name: "by", value: key, checked: measures.by === key, onchange: () => { measures.by = kept.by = key; changed("colour"); } }),
      el("span", {}, label))));

  /** Returns whether what was chosen is there no more, so that all are. */
  function options(select, all, values, field) {
    const key = values.join("\n");
    if (select.dataset.key === key) return false;
    select.dataset.key = key;
    select.hidden = !values.length;
    const isGone = kept[field] !== "" && !values.includes(kept[field]);
    if (isGone) kept[field] = "";
    fill(select, el("option", { value: "" }, all), values.map((value) => el("option", { value, selected: value === kept[field] }, value)));
    return isGone;
  }

  return {
    parts: [by, text, zones, profiles, legend],

    offerZones(nodes) {
      options(zones, "all zones", [...new Set(nodes.map((node) => node.zone).filter(Boolean))], "zone");
    },

    /** Returns whether the chosen profile has no pods any more, and all nodes are to be shown. */
    offerProfiles(nodes) {
      const names = new Set();
      for (const node of nodes) for (const name of Object.keys(node.load.profiles)) names.add(name);
      return options(profiles, "all profiles", [...names].sort(), "profile");
    },

    /** The nodes that pass the filter; `labels` are the texts of their labels' numbers. */
    wanted(nodes, labels) {
      const terms = kept.text.toLowerCase().split(/\s+/).filter(Boolean).map((term) => {
        const found = new Set();
        labels.forEach((label, at) => { if (label && label.toLowerCase().includes(term)) found.add(at); });
        return (node) => node.name.toLowerCase().includes(term) || node.labels.some((label) => found.has(label));
      });
      return nodes.filter((node) => (!kept.zone || node.zone === kept.zone) &&
        (!kept.profile || node.load.profiles[kept.profile]) && terms.every((term) => term(node)));
    },

    /** What the colours mean for these nodes. */
    explain(nodes) {
      legend.querySelector("i").style.background = gradient();
      const sampled = nodes.some((node) => node.traffic);
      const scaled = measures.by === "bandwidth" && sampled && nodes.every((node) => !node.traffic?.capacity);
      setText(legend.lastChild, scaled ? perSecond(measures.fastest) : "100 %");
    },
  };
}
