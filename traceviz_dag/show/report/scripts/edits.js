/** Edits of a step: the same changes of its times as in analyze/causes/edits.py, with the same rounding. */

/** @typedef {import("./replay.js").Step} Step */
/** @typedef {import("./replay.js").Times} Times */

/**
 * One edit.
 * @typedef {object} Edit
 * @property {string} name
 * @property {number} [rank]
 * @property {string} [ranks] such as "0-3, 6"
 * @property {string} [dimension]
 * @property {number} [factor]
 */

/** Edits that name neither a rank nor a dimension, in the order in which they are applied. */
export const GENERAL = [
  ...["even_layers", "equal_stages", "equal_ranks", "no_jitter"],
  ...["no_pauses", "no_hidden_waits", "host_free", "balanced_experts", "no_congestion"],
];

/** Edits of ranks together, in the order in which they are applied. */
export const TOGETHER = ["fix_ranks", "fix_group", "fix_node", "fix_links"];

/** Edits after which other ranks wait less. */
const OF_GPUS = ["fix_rank", "fix_ranks", "fix_group", "fix_node"];

/** The ranks of a text such as "0-3, 6". @param {string} text */
export function spelledOut(text) {
  return text.split(",").flatMap((part) => {
    const [low, high = low] = part.split("-").map(Number);
    return Array.from({ length: high - low + 1 }, (_, place) => low + place);
  });
}

/** Why a step shows nothing of an edit. */
export class Refusal extends Error {}

/** The integer nearest to a number; of two the even one. @param {number} value */
export function rounded(value) {
  const up = Math.round(value);
  return up - value === 0.5 && up % 2 !== 0 ? up - 1 : up;
}

/**
 * The times with an edit.
 * @param {Step} step
 * @param {Times} times
 * @param {Edit} edit
 * @param {boolean} unmatched take communications that are not matched as transfers, let congestion and slow links be
 *   what they may be where too few transfers are alike, and computation what it may be where nothing waits beside it
 * @returns {Times}
 */
export function edited(step, times, edit, unmatched = false) {
  const refusal = step.facts.refusals[edit.name];
  if (refusal !== undefined) throw new Refusal(refusal);
  const dimension = edit.dimension ?? "";
  if (unmatched && OF_GPUS.includes(edit.name)) times = besideNoWaits(step, times);
  switch (edit.name) {
    case "fix_rank":
      return fixedRank(step, times, edit.rank ?? -1);
    case "fix_ranks":
    case "fix_group":
    case "fix_node":
      return fixedGpus(step, times, spelledOut(edit.ranks ?? ""));
    case "fix_links":
      return fixedLinks(step, times, spelledOut(edit.ranks ?? ""), unmatched);
    case "fix_link":
      return fixedLinks(step, times, [edit.rank ?? -1], unmatched);
    case "even_layers":
      return evenLayers(step, times);
    case "equal_stages":
    case "equal_ranks":
    case "no_jitter":
      return alikePasses(step, times, edit.name);
    case "no_pauses":
      return step.facts.ranks.reduce((known, _, rank) => withoutPauses(step, known, rank), times);
    case "no_hidden_waits":
      return withoutHiddenWaits(step, times);
    case "host_free":
      return withoutHost(step, times);
    case "balanced_experts":
      return balancedExperts(step, times);
    case "no_congestion":
      return withoutCongestion(step, times, unmatched);
    case "hide":
      return hidden(step, times, dimension, unmatched);
    case "faster":
      return faster(step, times, dimension, edit.factor ?? 1, unmatched);
    default:
      throw new Error(`no edit ${edit.name}`);
  }
}

/** Whether an edit may do more than it does for sure. @param {Step} step @param {Edit} edit */
export function mayDoMore(step, { name, dimension }) {
  return (
    ["fix_link", "fix_links", "no_congestion"].includes(name) ||
    (OF_GPUS.includes(name) && step.columns.beside_kernel.length > 0) ||
    (dimension !== undefined && hasUnmatched(step, dimension))
  );
}

/** Whether communications of a dimension are not matched. @param {Step} step @param {string} dimension */
export function hasUnmatched(step, dimension) {
  const chosen = ofDimension(step, dimension, true);
  return chosen.some((one, kernel) => one === 1 && !step.joined[kernel]);
}

/**
 * Let computation take as long as it does where no communication waits beside it.
 * @param {Step} step @param {Times} times @returns {Times}
 */
function besideNoWaits(step, times) {
  const duration = times.duration.slice();
  const { beside_kernel: kernels, beside_millionths: millionths } = step.columns;
  kernels.forEach((kernel, number) => {
    duration[kernel] = rounded(duration[kernel] * (millionths[number] / 1_000_000));
  });
  return { ...times, duration };
}

/** @param {Step} step @param {Times} times @param {number} rank */
function fixedRank(step, times, rank) {
  const place = placeOf(step, rank);
  /** @type {Times} */
  let result = fixedGpus(step, times, [rank]);
  const [duration, lag] = [result.duration.slice(), result.lag.slice()];
  for (const kernel of step.columns.extra_kernel) {
    if (step.rankOf[kernel] !== place) continue;
    duration[kernel] = 0;
    // Work that is gone starts no later than what is before it ends.
    lag[kernel] = Math.min(lag[kernel], 0);
  }
  result = withoutPauses(step, { ...result, duration, lag }, place, true);
  const late = step.facts.late_begin_ns[place];
  if (!late) return result;
  const section = result.section.slice();
  section[step.sectionBegins[place]] -= late;
  return { ...result, section };
}

/** @param {Step} step @param {Times} times @param {number[]} ranks @returns {Times} */
function fixedGpus(step, times, ranks) {
  const places = ranks.map((rank) => placeOf(step, rank));
  if (step.facts.ranks.length === places.length) {
    const every = ranks.length === 1 ? `rank ${ranks[0]} is the only one that was` : "they are all ranks that were";
    throw new Refusal(`${every} read, so nothing shows what is usual`);
  }
  const duration = times.duration.slice();
  for (const place of places) takeUsual(step, times, place, places, duration);
  return { ...times, duration };
}

/**
 * Give a rank's own kernels what the same ones take on its peers, as `usual_times.Usual.durations` does.
 * @param {Step} step @param {Times} times @param {number} place of the rank
 * @param {number[]} without places of ranks that are no peers @param {Float64Array} duration to be changed
 */
function takeUsual(step, times, place, without, duration) {
  const { stages, ranks } = step.facts;
  const others = ranks.map((_, rank) => rank).filter((rank) => !without.includes(rank));
  const ofStage = others.filter((rank) => stages[rank] === stages[place]);
  const peers = ofStage.length ? ofStage : others;
  const { same, on_stage: onStage, place: spot, kind } = step.columns;
  const own = ownKernels(step, [place]);
  let left = own;
  for (const numbers of onStage ? [same, onStage, spot] : [same, spot]) {
    const usual = middles(step, times, numbers, peers, left);
    for (const kernel of left) duration[kernel] = usual.get(numbers[kernel]) ?? duration[kernel];
    left = left.filter((kernel) => !usual.has(numbers[kernel]));
  }
  const usual = middles(step, times, kind, peers, left);
  const now = middles(step, times, kind, [place], left);
  for (const kernel of left) {
    const taken = usual.get(kind[kernel]);
    if (taken === undefined) continue;
    duration[kernel] = rounded(times.duration[kernel] * (taken / Math.max(now.get(kind[kernel]) ?? 0, 1)));
  }
  left = left.filter((kernel) => !usual.has(kind[kernel]));
  const unknown = new Set(left);
  const known = own.filter((kernel) => !unknown.has(kernel));
  const sum = (/** @type {Float64Array} */ values) => known.reduce((total, kernel) => total + values[kernel], 0);
  const share = known.length ? Math.min(sum(duration) / Math.max(sum(times.duration), 1), 1) : 1;
  for (const kernel of left) duration[kernel] = rounded(times.duration[kernel] * share);
}

/** The kernels of some ranks that are their own work. @param {Step} step @param {number[]} ranks */
function ownKernels(step, ranks) {
  /** @type {number[]} */
  const found = [];
  for (const rank of ranks) {
    for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
      if (step.own[kernel]) found.push(kernel);
    }
  }
  return found;
}

/**
 * Of the numbers of some kernels, the median over all own kernels of some ranks that have the number.
 * @param {Step} step @param {Times} times @param {Float64Array} numbers @param {number[]} ranks @param {number[]} wanted
 */
function middles(step, times, numbers, ranks, wanted) {
  /** @type {Map<number, number[]>} */
  const found = new Map(wanted.map((kernel) => [numbers[kernel], []]));
  for (const rank of ranks) {
    for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
      if (step.own[kernel]) found.get(numbers[kernel])?.push(times.duration[kernel]);
    }
  }
  /** @type {Map<number, number>} */
  const result = new Map();
  for (const [number, values] of found) {
    if (!values.length) continue;
    values.sort((one, other) => one - other);
    result.set(number, Math.floor((values[(values.length - 1) >> 1] + values[values.length >> 1]) / 2));
  }
  return result;
}

/** The lower median. @param {number[]} values */
function middle(values) {
  return values.slice().sort((one, other) => one - other)[(values.length - 1) >> 1];
}

/**
 * Bring forward what a rank's host launches after each pause, and each launch of extra work where that goes, too.
 * @param {Step} step @param {Times} times @param {number} place @param {boolean} [extra]
 */
function withoutPauses(step, times, place, extra = false) {
  if (!times.launched[place]) return times;
  const { pause_kernel, pause_ns, extra_kernel, extra_ns } = step.columns;
  const [low, high] = [step.kernelBegins[place], step.kernelBegins[place + 1]];
  /** @type {Map<number, number>} */
  const paused = new Map();
  const sorts = [[pause_kernel, pause_ns], ...(extra ? [[extra_kernel, extra_ns]] : [])];
  for (const [kernels, late] of sorts) {
    kernels.forEach((kernel, number) => {
      if (kernel < low || kernel >= high || times.launch[kernel] === -Infinity) return;
      paused.set(kernel, Math.max(paused.get(kernel) ?? 0, late[number]));
    });
  }
  return launchedEarlier(step, times, place, (kernel) => paused.get(kernel) ?? 0);
}

/**
 * A rank's launches by section, in the order of launch.
 * @param {Step} step @param {Times} times @param {number} place @returns {Map<number, number[]>}
 */
function launchesOf(step, times, place) {
  /** @type {Map<number, number[]>} */
  const launches = new Map();
  for (let kernel = step.kernelBegins[place]; kernel < step.kernelBegins[place + 1]; kernel++) {
    if (times.launch[kernel] === -Infinity) continue;
    const known = launches.get(step.sectionOf[kernel]);
    if (known) known.push(kernel);
    else launches.set(step.sectionOf[kernel], [kernel]);
  }
  for (const mine of launches.values())
    mine.sort((one, other) => times.launch[one] - times.launch[other] || one - other);
  return launches;
}

/**
 * What a host launches from each kernel on, and the call that ends the section, brought forward.
 * @param {Step} step @param {Times} times @param {number} place
 * @param {(kernel: number) => number} by how much earlier each kernel is launched, besides what those before it are
 * @returns {Times}
 */
function launchedEarlier(step, times, place, by) {
  const [launch, section, hostEnd] = [times.launch.slice(), times.section.slice(), times.hostEnd.slice()];
  for (const [number, mine] of launchesOf(step, times, place)) {
    let total = 0;
    for (const kernel of mine) {
      total += by(kernel);
      launch[kernel] -= total;
    }
    if (number + 1 < step.sectionBegins[place + 1]) section[number + 1] -= total;
    else hostEnd[place] -= total;
  }
  return { ...times, launch, section, hostEnd, launched: times.launched.map((one, rank) => one && rank !== place) };
}

const ALL = -Infinity;

/**
 * @param {Step} step @param {Times} times @param {number[]} ranks of which all are members
 * @param {boolean} most let dimensions without a similar transfer become as much shorter as the others do
 */
function fixedLinks(step, times, ranks, most) {
  const places = ranks.map((rank) => placeOf(step, rank));
  const { member_kernel: kernels, member_meeting: meetings, member_role: role, kind, dimension } = step.columns;
  /** What only sends is no measure of what receives. @param {number} member */
  const likeOf = (member) => 4 * kind[kernels[member]] + role[member];
  /** How many of the ranks' kernels each meeting has. @type {Map<number, number>} */
  const counts = new Map();
  kernels.forEach((kernel, member) => {
    if (!places.includes(step.rankOf[kernel])) return;
    counts.set(meetings[member], (counts.get(meetings[member]) ?? 0) + 1);
  });
  const withIt = new Set([...counts].flatMap(([meeting, count]) => (count === places.length ? [meeting] : [])));
  /** @type {Map<number, number[]>} */
  const others = new Map();
  kernels.forEach((kernel, member) => {
    if (withIt.has(meetings[member])) return;
    const known = others.get(likeOf(member));
    if (known) known.push(times.duration[kernel]);
    else others.set(likeOf(member), [times.duration[kernel]]);
  });
  const usual = new Map([...others].map(([one, values]) => [one, middle(values)]));
  const duration = times.duration.slice();
  /** What transfers take together before and after, of each dimension and of all. @type {Map<number, number[]>} */
  const sums = new Map();
  /** @type {number[]} */
  const left = [];
  kernels.forEach((kernel, member) => {
    if (!withIt.has(meetings[member])) return;
    const taken = usual.get(likeOf(member));
    if (taken === undefined) {
      left.push(kernel);
      return;
    }
    duration[kernel] = Math.min(times.duration[kernel], taken);
    for (const key of [dimension[kernel], ALL]) {
      const [before, after] = sums.get(key) ?? [0, 0];
      sums.set(key, [before + times.duration[kernel], after + duration[kernel]]);
    }
  });
  if (!sums.size) {
    const whose = ranks.length === 1 ? `rank ${ranks[0]} is similar to its own` : "these ranks is similar to theirs";
    throw new Refusal(`no transfer without ${whose}`);
  }
  for (const kernel of left) {
    const [before, after] = sums.get(dimension[kernel]) ?? ((most && sums.get(ALL)) || [1, 1]);
    duration[kernel] = rounded(times.duration[kernel] * (after / Math.max(before, 1)));
  }
  if (most) {
    // Any communication that is not matched may be of these ranks.
    const shortest = shortestTransfer(step, times);
    for (const kernel of step.columns.unmet_kernel) duration[kernel] = Math.min(duration[kernel], shortest);
  }
  return { ...times, duration };
}

/** Like transfers of a rank that show what is usual, how many times as long a congested one takes, how much longer. */
const [FEWEST_ALIKE, CONGESTED_TIMES, LEAST_CONGESTED_NS] = [4, 1.5, 20_000];

/**
 * Kernel → its role, and the lowest and the highest rank that it meets, by place, as one text.
 * @param {Step} step @returns {Map<number, string>}
 */
function lowestAndHighest(step) {
  const { member_kernel: kernels, member_meeting: meetings } = step.columns;
  const ranks = Array.from(kernels, (kernel) => step.rankOf[kernel]);
  /** @param {ArrayLike<number>} keys @param {(member: number) => [number, number]} ends */
  const widest = (keys, ends) => {
    /** @type {Map<number, [number, number]>} */
    const found = new Map();
    for (let member = 0; member < keys.length; member++) {
      const [low, high] = ends(member);
      const known = found.get(keys[member]) ?? [low, high];
      found.set(keys[member], [Math.min(known[0], low), Math.max(known[1], high)]);
    }
    return found;
  };
  const met = widest(meetings, (member) => [ranks[member], ranks[member]]);
  const of = widest(kernels, (member) => met.get(meetings[member]) ?? [ranks[member], ranks[member]]);
  const roles = new Map(Array.from(kernels, (kernel, member) => [kernel, step.columns.member_role[member]]));
  return new Map([...of].map(([kernel, ends]) => [kernel, [roles.get(kernel), ...ends].join(" ")]));
}

/** @param {Step} step @param {Times} times @param {boolean} unjudged take what may be congestion, too */
function withoutCongestion(step, times, unjudged) {
  const shortest = unjudged ? shortestTransfer(step, times) : 0;
  const { member_kernel: kernels, kind, duration_ns: taken } = step.columns;
  const duration = times.duration.slice();
  const others = lowestAndHighest(step);
  for (let rank = 0; rank < step.facts.ranks.length; rank++) {
    const [low, high] = [step.kernelBegins[rank], step.kernelBegins[rank + 1]];
    /** @type {Map<string, number[]>} */
    const alike = new Map();
    for (const kernel of new Set(kernels)) {
      if (kernel < low || kernel >= high) continue;
      const like = `${kind[kernel]} ${others.get(kernel)}`;
      const known = alike.get(like);
      if (known) known.push(kernel);
      else alike.set(like, [kernel]);
    }
    for (const group of alike.values()) {
      if (group.length < FEWEST_ALIKE) {
        // All beyond the shortest transfer may be congestion.
        if (unjudged) for (const kernel of group) duration[kernel] = Math.min(duration[kernel], shortest);
        continue;
      }
      const usual = middle(group.map((kernel) => taken[kernel]));
      for (const kernel of group) {
        const late = taken[kernel] >= CONGESTED_TIMES * usual && taken[kernel] - usual >= LEAST_CONGESTED_NS;
        if (late) duration[kernel] = Math.min(duration[kernel], usual);
      }
    }
  }
  return { ...times, duration };
}

/** @param {Step} step @param {Times} times */
function evenLayers(step, times) {
  const { layers, ranks } = step.facts;
  if (layers === null) throw new Refusal("the traces tell no layers");
  const { of_stage: ofStage, group, factors, sets } = layers;
  const mean = ofStage.reduce((sum, one) => sum + one, 0) / ofStage.length;
  const { layer_factor: which, layer_set: flags } = step.columns;
  const factor = which.map((place) => factors[place]);
  /** @type {Times} */
  let result = times;
  ranks.forEach((_, rank) => {
    if (times.launched[rank]) result = launchedAsOften(step, result, rank, (kernel) => factors[which[kernel]]);
  });
  for (let set = 0; set < sets; set++) {
    const bit = 1 << set;
    const total = ranks.map((_, rank) => {
      let sum = 0;
      for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
        if (flags[kernel] & bit) sum += times.duration[kernel];
      }
      return sum;
    });
    const one = ofALayer(total, ofStage, group);
    ranks.forEach((_, rank) => {
      if (!total[rank]) return;
      const longer = (mean - ofStage[group[rank]]) * one;
      const own = Math.max(1 + longer / total[rank], 0);
      for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
        if (flags[kernel] & bit) factor[kernel] = own;
      }
    });
  }
  return { ...result, duration: times.duration.map((taken, kernel) => rounded(taken * factor[kernel])) };
}

/**
 * A host that takes so many times as long from the launch before to that of each kernel.
 * @param {Step} step @param {Times} times @param {number} place @param {(kernel: number) => number} factor
 */
function launchedAsOften(step, times, place, factor) {
  /** @type {Map<number, number>} */
  const earlier = new Map();
  for (const mine of launchesOf(step, times, place).values()) {
    mine.forEach((kernel, number) => {
      const before = times.launch[kernel] - (number ? times.launch[mine[number - 1]] : 0);
      earlier.set(kernel, before - rounded(before * factor(kernel)));
    });
  }
  return launchedEarlier(step, times, place, (kernel) => earlier.get(kernel) ?? 0);
}

/**
 * What one layer takes of work that grows with the layers of a stage.
 * @param {number[]} total of each rank @param {number[]} layers of each stage @param {number[]} stage of each rank
 */
function ofALayer(total, layers, stage) {
  const least = Math.min(...total.map((one, rank) => one / layers[stage[rank]]));
  if (layers.length > 2 || layers[0] === layers[1]) return least;
  const [first, last] = [0, 1].map((number) => {
    const own = total.filter((_, rank) => stage[rank] === number);
    return own.reduce((sum, one) => sum + one, 0) / own.length;
  });
  const slope = (first - last) / (layers[0] - layers[1]);
  return slope > 0 && slope < least ? slope : least;
}

/**
 * Scale the computation of forward and backward steps, so that stages, ranks or micro-batches are alike, as
 * `alike.PassTimes` does.
 * @param {Step} step @param {Times} times @param {string} name of the edit
 */
function alikePasses(step, times, name) {
  const { item, chunk, direction } = step.columns;
  const { ranks, stages } = step.facts;
  const total = new Float64Array(chunk.length);
  const rankOf = new Float64Array(chunk.length);
  ranks.forEach((_, rank) => {
    for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
      if (!item[kernel]) continue;
      rankOf[item[kernel] - 1] = rank;
      if (step.own[kernel]) total[item[kernel] - 1] += times.duration[kernel];
    }
  });
  const ofRank = Array.from(total, (_, number) => `${rankOf[number]} ${chunk[number]} ${direction[number]}`);
  const ofStage = Array.from(total, (_, number) => `${stages[rankOf[number]]} ${chunk[number]} ${direction[number]}`);
  const mean = means(ofRank, total);
  /** @type {Map<string, Map<string, number>>} */
  const peers = new Map();
  ofRank.forEach((key, number) => {
    const known = peers.get(ofStage[number]) ?? new Map();
    peers.set(ofStage[number], known.set(key, mean[number]));
  });
  const typical = ofStage.map((key) => middle([...(peers.get(key)?.values() ?? [])]));
  const [then, now] =
    name === "no_jitter"
      ? [mean, total]
      : name === "equal_ranks"
        ? [typical, mean]
        : [means(Array.from(direction, String), typical), typical];
  const scaled = (/** @type {number} */ taken, /** @type {number} */ kernel) => {
    const number = item[kernel] - 1;
    return step.own[kernel] && item[kernel] && now[number] > 0 ? rounded(taken * (then[number] / now[number])) : taken;
  };
  return { ...times, duration: times.duration.map(scaled) };
}

/** Of each value the mean of those with its key, in whole nanoseconds. @param {string[]} keys @param {ArrayLike<number>} values */
function means(keys, values) {
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  keys.forEach((key, number) => {
    const [sum, count] = groups.get(key) ?? [0, 0];
    groups.set(key, [sum + values[number], count + 1]);
  });
  return keys.map((key) => {
    const [sum, count] = groups.get(key) ?? [0, 1];
    return Math.floor(sum / count);
  });
}

/** @param {Step} step @param {Times} times */
function withoutHiddenWaits(step, times) {
  const hidden = step.columns.section_hidden;
  return { ...times, waits: times.waits.map((waits, section) => (hidden[section] ? 0 : waits)) };
}

/** @param {Step} step @param {Times} times */
function withoutHost(step, times) {
  const section = new Float64Array(times.section.length);
  // When a rank begins is not the step's own doing.
  for (const begin of step.sectionBegins.subarray(0, -1)) section[begin] = times.section[begin];
  return {
    ...times,
    section,
    lag: times.lag.map((lag) => Math.min(lag, 0)),
    launch: new Float64Array(times.launch.length).fill(-Infinity),
    hostEnd: times.hostEnd.map((end) => Math.min(end, 0)),
    launched: times.launched.map(() => false),
  };
}

/** @param {Step} step @param {Times} times */
function balancedExperts(step, times) {
  const { expert_meeting: meeting, expert_member: exchanges, member_kernel: kernels } = step.columns;
  const shares = step.facts.expert_shares;
  const shortest = shortestTransfer(step, times);
  /** @type {Map<number, number>[]} */
  const taken = step.facts.ranks.map((_, rank) => {
    const own = new Map();
    for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
      const number = meeting[kernel];
      if (number) own.set(number, (own.get(number) ?? 0) + times.duration[kernel]);
    }
    return own;
  });
  /** @type {Map<number, {sum: number, count: number}>} */
  const all = new Map();
  for (const own of taken) {
    for (const [number, sum] of own) {
      const known = all.get(number) ?? { sum: 0, count: 0 };
      all.set(number, { sum: known.sum + sum, count: known.count + (sum > 0 ? 1 : 0) });
    }
  }
  const duration = times.duration.slice();
  step.facts.ranks.forEach((_, rank) => {
    for (let kernel = step.kernelBegins[rank]; kernel < step.kernelBegins[rank + 1]; kernel++) {
      const known = all.get(meeting[kernel]);
      if (!known) continue;
      const mean = known.sum / Math.max(known.count, 1);
      duration[kernel] = rounded(duration[kernel] * (mean / Math.max(taken[rank].get(meeting[kernel]) ?? 0, 1)));
    }
  });
  const before = duration.slice();
  exchanges.forEach((member, number) => {
    const kernel = kernels[member];
    const above = Math.max(before[kernel] - shortest, 0);
    duration[kernel] = before[kernel] - rounded(above * (1 - shares[number]));
  });
  return { ...times, duration };
}

/** @param {Step} step @param {Times} times @param {string} dimension @param {boolean} unmatched */
function hidden(step, times, dimension, unmatched) {
  const chosen = ofDimension(step, dimension, unmatched);
  return { ...times, duration: times.duration.map((taken, kernel) => (chosen[kernel] ? Math.min(taken, 0) : taken)) };
}

/** @param {Step} step @param {Times} times @param {string} dimension @param {number} factor @param {boolean} unmatched */
function faster(step, times, dimension, factor, unmatched) {
  const floor = shortestTransfer(step, times);
  const chosen = ofDimension(step, dimension, unmatched);
  const less = 1 - 1 / factor;
  const shorter = (/** @type {number} */ taken, /** @type {number} */ kernel) =>
    chosen[kernel] ? taken - rounded(Math.max(taken - floor, 0) * less) : taken;
  return { ...times, duration: times.duration.map(shorter) };
}

/** The shortest transfer of the step. @param {Step} step @param {Times} times */
function shortestTransfer(step, times) {
  let shortest = Infinity;
  for (const kernel of step.columns.member_kernel) shortest = Math.min(shortest, times.duration[kernel]);
  return shortest === Infinity ? 0 : Math.max(shortest, 0);
}

/** Mark the communication of a dimension. @param {Step} step @param {string} dimension @param {boolean} unmatched */
function ofDimension(step, dimension, unmatched) {
  const code = dimension === "all" ? 0 : step.facts.dimensions.indexOf(dimension) + 1;
  const nobodys = [null, "unknown"].map((word) => step.facts.dimensions.indexOf(word) + 1).filter((one) => one > 0);
  const known = step.columns.dimension;
  return Uint8Array.from(known, (one, kernel) => {
    const fits = dimension === "all" ? one > 0 : code > 0 && one === code;
    if (step.joined[kernel]) return fits ? 1 : 0;
    // One that is not matched, and whose dimension nobody knows, may be of any.
    return unmatched && (fits || nobodys.includes(one)) ? 1 : 0;
  });
}

/** @param {Step} step @param {number} rank */
function placeOf(step, rank) {
  const place = step.facts.ranks.indexOf(rank);
  if (place < 0) throw new Refusal(`rank ${rank} has no kernels in the training step`);
  return place;
}
