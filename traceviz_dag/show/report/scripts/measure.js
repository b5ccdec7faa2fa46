/** Measures of a window, exact to the nanosecond: the same sums of unions as `traceviz overlap --start-ns --end-ns`. */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */

/**
 * @typedef {object} Measures all in ns
 * @property {number} window
 * @property {number} compute
 * @property {number} communication
 * @property {number} hidden
 * @property {number} exposed
 * @property {number} memory
 * @property {number} idle
 * @property {number} kernels and memory operations that start in it
 * @property {Map<string, {communication: number, hidden: number, exposed: number}>} dimensions
 */

/** The length of a union of intervals that are added by start. */
class Union {
  length = 0;
  end = -Infinity;

  /** @param {number} low @param {number} high */
  add(low, high) {
    if (high <= this.end) return;
    this.length += high - Math.max(low, this.end);
    this.end = high;
  }
}

/**
 * What a rank did in a window, on one device.
 * @param {Model} model
 * @param {Rank} rank
 * @param {number} from ns from the rank's first kernel
 * @param {number} to
 * @param {string} device
 * @returns {Measures}
 */
export function measured(model, rank, from, to, device = model.devicesOf(rank)[0]) {
  const alone = model.devicesOf(rank).length < 2;
  const [compute, memory, busy] = [new Union(), new Union(), new Union()];
  /** Communication of each dimension, alone and with computation; of all in "". @type {Map<string, [Union, Union]>} */
  const unions = new Map([["", [new Union(), new Union()]]]);
  const dimensionOf = (/** @type {number} */ signature) => String(model.value(signature, "dimension") ?? "unknown");
  const { start, length } = rank.kernels;
  const last = rank.kernels.startingBefore(to);
  // What starts with the window and takes no time is counted.
  const first = Math.min(rank.kernels.firstAfter(from), rank.kernels.startingBefore(from));
  for (const signature of new Set(rank.signature.subarray(first, last)))
    if (model.kind[signature] === 1) unions.set(dimensionOf(signature), [new Union(), new Union()]);
  const occurring = new Set();
  let kernels = 0;
  for (let i = first; i < last; i++) {
    const low = Math.max(start[i], from);
    const high = Math.min(start[i] + length[i], to);
    const signature = rank.signature[i];
    if (!alone && String(model.value(signature, "device")) !== device) continue;
    if (start[i] >= from) kernels++;
    if (high <= low) continue;
    const kind = model.kind[signature];
    busy.add(low, high);
    if (kind === 2) memory.add(low, high);
    if (kind === 0) {
      compute.add(low, high);
      for (const [, both] of unions.values()) both.add(low, high);
    }
    if (kind !== 1) continue;
    occurring.add(dimensionOf(signature));
    for (const name of ["", dimensionOf(signature)]) for (const one of unions.get(name) ?? []) one.add(low, high);
  }
  const found = [...unions].map(([name, [alone, both]]) => {
    // What both cover is what they cover each, less what they cover together.
    const hidden = alone.length + compute.length - both.length;
    return { name, communication: alone.length, hidden, exposed: alone.length - hidden };
  });
  const { name: _, ...all } = found[0];
  const each = found.filter(({ name }) => occurring.has(name)).sort((a, b) => (a.name < b.name ? -1 : 1));
  return {
    window: to - from,
    compute: compute.length,
    ...all,
    memory: memory.length,
    idle: to - from - busy.length,
    kernels,
    dimensions: new Map(each.map(({ name, ...times }) => [name, times])),
  };
}
