// A run step by step. From any step to any other it makes the frame that brings a store there, as the live console's do.

/** The last value of a history [[step, value]] up to a step; null before the first. */
export function at(history, step) {
  let [below, above] = [0, history.length];
  while (below < above) {
    const middle = (below + above) >> 1;
    if (history[middle][0] <= step) below = middle + 1;
    else above = middle;
  }
  return below ? history[below - 1][1] : null;
}

function entry(map, key, make) {
  if (!map.has(key)) map.set(key, make());
  return map.get(key);
}

const NONE = { traffic: [null, null, null, null], usage: [null, null, null] };
export const SAMPLES = ["traffic", "usage"];

/** By name of a node the history of its samples of a kind, which are the same in both runs. */
export function samplesOf({ steps }, kind) {
  const [names, found] = [new Map(), new Map()];
  steps.forEach((step, number) => {
    for (const fact of step.nodes || []) names.set(fact[0], fact[1]);
    for (const [row, ...sample] of step[kind] || []) entry(found, names.get(row), () => []).push([number, sample]);
  });
  return found;
}

export class Film {
  /** `samples`: by kind, as of `samplesOf`. */
  constructor({ labels, steps }, samples) {
    this.labels = labels;
    this.samples = samples;
    this.rows = new Map();
    const row = (number) => entry(this.rows, number, () => ({ facts: [], loads: [] }));
    steps.forEach((step, number) => {
      for (const gone of step.gone || []) for (const history of Object.values(row(gone))) history.push([number, null]);
      for (const fact of step.nodes || []) row(fact[0]).facts.push([number, fact]);
      for (const load of step.loads || []) row(load[0]).loads.push([number, load]);
    });
  }

  /** What differs between two steps; from null: everything. Only from one step to the next a pod's arrival is seen. */
  frame(from, to) {
    const frame = { whole: from === null, jumped: to !== from + 1, nodes: [], loads: [], traffic: [], usage: [], gone: [], labels: from === null ? this.labels : [] };
    const before = (history) => (from === null ? null : at(history, from));
    for (const [row, { facts, loads }] of this.rows) {
      const [was, is] = [before(facts), at(facts, to)];
      if (!is) {
        if (was) frame.gone.push(row);
        continue;
      }
      const another = !was || was[1] !== is[1];
      if (another || was !== is) frame.nodes.push(is);
      const load = at(loads, to);
      if (load && (another || load !== before(loads))) frame.loads.push(load);
      for (const kind of SAMPLES) {
        const samples = this.samples[kind].get(is[1]);
        if (!samples) continue;
        const [had, has] = [before(samples), at(samples, to)];
        if (another ? has : had !== has) frame[kind].push([row, ...(has || NONE[kind])]);
      }
    }
    return frame;
  }
}
