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
 * @property {number} kernels that start in it, as the command counts them: of a profile without memory operations
 * @property {Map<string, {communication: number, hidden: number, exposed: number}>} dimensions
 */

/** @typedef {[number[], number[]]} Intervals starts and ends, sorted and disjoint */

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
  /** @type {Intervals[]} */
  const kinds = [
    [[], []],
    [[], []],
    [[], []],
  ];
  /** @type {Map<string, Intervals>} */
  const dimensions = new Map();
  const { start, length } = rank.kernels;
  let kernels = 0;
  const last = rank.kernels.startingBefore(to);
  for (let i = rank.kernels.firstAfter(from); i < last; i++) {
    const low = Math.max(start[i], from);
    const high = Math.min(start[i] + length[i], to);
    if (high <= low) continue;
    const signature = rank.signature[i];
    if (!alone && String(model.value(signature, "device")) !== device) continue;
    const kind = model.kind[signature];
    if (start[i] >= from && (kind !== 2 || model.document.member === "rank")) kernels++;
    cover(kinds[kind], low, high);
    if (kind === 1) {
      const dimension = String(model.value(signature, "dimension") ?? "unknown");
      let found = dimensions.get(dimension);
      if (found === undefined) {
        found = [[], []];
        dimensions.set(dimension, found);
      }
      cover(found, low, high);
    }
  }
  const [compute, communication, memory] = kinds;
  const hidden = shared(communication, compute);
  const all = length_(communication);
  const busy = union([compute, communication, memory]);
  return {
    window: to - from,
    compute: length_(compute),
    communication: all,
    hidden,
    exposed: all - hidden,
    memory: length_(memory),
    idle: to - from - length_(busy),
    kernels,
    dimensions: new Map(
      [...dimensions].sort().map(([name, each]) => {
        const whole = length_(each);
        const beside = shared(each, compute);
        return [name, { communication: whole, hidden: beside, exposed: whole - beside }];
      }),
    ),
  };
}

/**
 * Add an interval that starts at or after those that are there.
 * @param {Intervals} intervals
 * @param {number} low
 * @param {number} high
 */
function cover([starts, ends], low, high) {
  const last = ends.length - 1;
  if (last >= 0 && low <= ends[last]) ends[last] = Math.max(ends[last], high);
  else {
    starts.push(low);
    ends.push(high);
  }
}

/** @param {Intervals} intervals */
function length_([starts, ends]) {
  let sum = 0;
  for (let i = 0; i < starts.length; i++) sum += ends[i] - starts[i];
  return sum;
}

/**
 * Length of what both cover.
 * @param {Intervals} a
 * @param {Intervals} b
 */
function shared([aStarts, aEnds], [bStarts, bEnds]) {
  let sum = 0;
  let i = 0;
  let j = 0;
  while (i < aStarts.length && j < bStarts.length) {
    const low = Math.max(aStarts[i], bStarts[j]);
    const high = Math.min(aEnds[i], bEnds[j]);
    if (high > low) sum += high - low;
    if (aEnds[i] < bEnds[j]) i++;
    else j++;
  }
  return sum;
}

/**
 * @param {Intervals[]} sets
 * @returns {Intervals}
 */
function union(sets) {
  const all = sets.flatMap(([starts, ends]) => starts.map((start, i) => [start, ends[i]]));
  all.sort((a, b) => a[0] - b[0]);
  /** @type {Intervals} */
  const found = [[], []];
  for (const [low, high] of all) cover(found, low, high);
  return found;
}
