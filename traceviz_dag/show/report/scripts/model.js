/**
 * What a page carries of a timeline: ranks (or GPUs) with their kernels, micro-batches, bins, waits, gaps and what their
 * hosts did, the lanes that these make, and where each rank lies on the axis.
 */

/**
 * @typedef {object} Axis where ranks lie for one choice of clocks
 * @property {string} name
 * @property {string} [label]
 * @property {string} [sentence]
 * @property {string} [refusal] why this choice is not possible
 * @property {number[]} [at] per rank, where its first kernel lies, ns
 * @property {number} [length] ns
 */

/**
 * @typedef {object} Step a training step of a rank, from its first kernel
 * @property {number | null} step
 * @property {number} start
 * @property {number} end
 */

/**
 * @typedef {object} RankDocument
 * @property {number} rank
 * @property {number | null} stage
 * @property {string} label
 * @property {LaneDocument[]} lanes
 * @property {string} first_ns
 * @property {number} length
 * @property {Step[]} windows
 * @property {number} steps
 * @property {number} kernels
 * @property {number} bins
 * @property {number} waits
 * @property {number} gaps
 * @property {number} path segments of the critical path
 * @property {HostDocument[]} [hosts]
 * @property {boolean} [open] whether its lanes are shown from the start
 */

/**
 * @typedef {object} LaneDocument a lane as the lane model has it
 * @property {string} key
 * @property {string} label
 * @property {"microbatches" | "stream" | "dimension" | "gaps" | "path" | "ranges" | "calls"} kind
 * @property {Record<string, string | number | null>} [holds] what kernels of the lane have in common
 */

/**
 * @typedef {LaneDocument & {thread: string, thread_id: string, count: number}} HostDocument a lane of a thread
 */

/**
 * @typedef {object} Finding
 * @property {number} finding
 * @property {string} rule
 * @property {string} class
 * @property {string} severity
 * @property {string} statement
 * @property {number | null} rank
 * @property {number | null} stage
 * @property {string | null} dimension
 * @property {[number, number, number][]} places where it shows in time: rank, start from its first kernel, length; ns
 */

/**
 * @typedef {object} TimelineDocument
 * @property {RankDocument[]} ranks
 * @property {Axis[]} axes
 * @property {number} bin_ns
 * @property {string[]} parts
 * @property {string[]} categories
 * @property {Record<string, string[]>} kinds what the column of kinds of steps, gaps and so on holds places in
 * @property {import("./colours.js").Words} words
 * @property {import("./grouping.js").Groupings} groupings
 * @property {string[]} legend kinds of micro-batches, gaps and what hosts did that occur
 * @property {string[]} names of micro-batches
 * @property {string[]} short_names of kernels, by the place of their names
 * @property {{fields: string[], values: (string | number | null)[][], rows: number[][]}} signatures
 * @property {boolean} launches
 * @property {Finding[]} findings
 * @property {string} run
 * @property {number} iteration
 * @property {boolean} whole whether the page carries every kernel
 * @property {string} overlap_command the command that measures a window, without its rank and window
 * @property {string} overlap_options these, with {rank}, {start_ns}, {end_ns}, {start_s} and {end_s} in them
 * @property {"rank" | "GPU"} member what the ranks are
 * @property {Record<string, string>} [queries] of a profile: what has the row of a kernel, range or call
 * @property {string[]} [host_names] names of ranges and calls
 */

/** Last parts of the keys of lanes that are not shown. */
export const KERNELS = "kernels";
export const COMPUTATION = "computation";
export const COMMUNICATION = "communication";

/** Slices of one kind in the order of their starts, and how far any before each reaches. */
export class Slices {
  /**
   * @param {Float64Array} start ns from the rank's first kernel
   * @param {Float64Array} length ns
   */
  constructor(start, length) {
    this.start = start;
    this.length = length;
    /** @type {Float64Array | null} */
    this.reached = null;
  }

  /** @returns {Float64Array} per slice, the latest end of it and all before */
  get reach() {
    if (this.reached === null) {
      const reach = new Float64Array(this.start.length);
      let last = -Infinity;
      for (let i = 0; i < reach.length; i++) {
        last = Math.max(last, this.start[i] + this.length[i]);
        reach[i] = last;
      }
      this.reached = reach;
    }
    return this.reached;
  }

  /**
   * First slice that may run after an instant.
   * @param {number} instant
   */
  firstAfter(instant) {
    return firstAbove(this.reach, instant);
  }

  /**
   * Number of slices that start before an instant.
   * @param {number} instant
   */
  startingBefore(instant) {
    return firstAtLeast(this.start, instant);
  }
}

/**
 * @param {Float64Array} sorted
 * @param {number} value
 */
function firstAbove(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * @param {Float64Array | Uint32Array} sorted
 * @param {number} value
 */
function firstAtLeast(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] >= value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** A lane of a thread of the host: NVTX ranges of one depth, or CUDA calls. */
export class Host {
  /**
   * @param {HostDocument} document
   * @param {(name: string, count: number) => Float64Array} take
   */
  constructor({ key, label, thread, thread_id, kind, count }, take) {
    this.key = key;
    this.threadKey = key.slice(0, key.lastIndexOf("/"));
    this.laneKind = kind;
    this.label = label;
    this.thread = thread;
    this.threadId = thread_id;
    /** @type {"range" | "call"} */
    this.kind = kind === "calls" ? "call" : "range";
    this.slices = new Slices(take("host.start", count), take("host.length", count));
    this.name = take("host.name", count);
    this.kinds = take("host.kind", count);
    /** of a call, the kernel that it launched, and of a range how many, from 1; 0 for none */
    this.launched = take("host.launched", count);
    /** of a range, from the first start to the last end of what it launched, from the rank's first kernel */
    this.gpuStart = take("host.gpu_start", count);
    this.gpuLength = take("host.gpu_length", count);
  }
}

/**
 * @typedef {object} Content slices of one sort of a rank
 * @property {"kernel" | "step" | "gap" | "path" | "host"} sort
 * @property {Slices} slices
 * @property {string[]} kinds
 * @property {(slice: number) => number} kind its place in kinds
 * @property {string[]} names
 * @property {(slice: number) => number} name its place in names, -1 for none
 * @property {Host} [host]
 */

/** Some slices of a rank, in the order of their starts. */
export class Lane {
  /**
   * @param {Rank} rank
   * @param {{key: string, label: string, kind: string, dimension?: string}} told
   * @param {string | null} parent
   * @param {Content} content
   * @param {Uint32Array | null} chosen slices of the content; null takes all
   */
  constructor(rank, { key, label, kind, dimension = "" }, parent, content, chosen = null) {
    this.rank = rank;
    this.key = key;
    this.label = label;
    this.kind = kind;
    this.dimension = dimension;
    this.parent = parent;
    this.content = content;
    this.chosen = chosen;
    const { start, length } = content.slices;
    this.slices =
      chosen === null
        ? content.slices
        : new Slices(
            Float64Array.from(chosen, (each) => start[each]),
            Float64Array.from(chosen, (each) => length[each]),
          );
  }

  /** @param {number} row @returns {number} its slice of the content */
  slice(row) {
    return this.chosen === null ? row : this.chosen[row];
  }

  /** @param {number} slice of the content @returns {number} its row; -1 where the lane has it not */
  row(slice) {
    if (this.chosen === null) return slice;
    const row = firstAtLeast(this.chosen, slice);
    return this.chosen[row] === slice ? row : -1;
  }

  /** The lanes around it, the outermost first. */
  get around() {
    return [this.rank.key, ...(this.parent === null || this.parent === this.rank.key ? [] : [this.parent])];
  }

  /** Whether a row is shown. @param {number} row @param {Set<string>} without kinds @param {number} least ns */
  shows(row, without, least) {
    if (this.slices.length[row] < least) return false;
    return !without.size || !without.has(this.content.kinds[this.content.kind(this.slice(row))]);
  }
}

/** One rank, or one GPU of a profile. */
export class Rank {
  /**
   * @param {RankDocument} document
   * @param {number} place among the ranks of the page
   * @param {(name: string, count: number) => Float64Array} take hands out the next values of a column
   * @param {TimelineDocument} all
   */
  constructor(document, place, take, all) {
    this.place = place;
    this.rank = document.rank;
    this.key = `${all.member.toLowerCase()}:${document.rank}`;
    this.stage = document.stage;
    this.firstNs = BigInt(document.first_ns);
    this.length = document.length;
    this.windows = document.windows;
    const { steps, kernels, waits, gaps, path } = document;
    this.laneDocuments = document.lanes;
    this.steps = new Slices(take("step.start", steps), take("step.length", steps));
    this.stepKind = take("step.kind", steps);
    this.stepName = take("step.name", steps);
    this.stepMicrobatch = take("step.microbatch", steps);
    this.bins = take("bins", document.bins * all.parts.length);
    this.kernels = new Slices(take("kernel.start", kernels), take("kernel.length", kernels));
    this.kernelId = take("kernel.id", kernels);
    this.signature = take("kernel.signature", kernels);
    this.microbatch = take("kernel.microbatch", kernels);
    this.launch = all.launches ? take("kernel.launch", kernels) : null;
    this.launchLength = all.launches ? take("kernel.launch_length", kernels) : null;
    this.waitKernel = take("wait.kernel", waits);
    this.waitLength = take("wait.length", waits);
    this.waitCommunication = take("wait.communication", waits);
    this.waitLastRank = take("wait.last_rank", waits);
    this.gaps = new Slices(take("gap.start", gaps), take("gap.length", gaps));
    this.gapKind = take("gap.kind", gaps);
    this.gapBlocked = take("gap.blocked", gaps);
    this.gapStarved = take("gap.starved", gaps);
    this.path = new Slices(take("path.start", path), take("path.length", path));
    this.pathKind = take("path.kind", path);
    this.pathOrder = take("path.order", path);
    this.member = all.member;
    this.label = document.label;
    this.hosts = (document.hosts ?? []).map((each) => new Host(each, take));
    /** @type {Map<number, number> | null} kernel → its place in the waits */
    this.waitsByKernel = null;
    /** @type {Map<string, Lane> | null} */
    this.knownLanes = null;
    /** @type {string[] | null} */
    this.knownDevices = null;
  }

  /**
   * The place of a kernel's wait; undefined where none is known.
   * @param {number} kernel
   */
  waitOf(kernel) {
    if (this.waitsByKernel === null) {
      this.waitsByKernel = new Map();
      for (let i = 0; i < this.waitKernel.length; i++) this.waitsByKernel.set(this.waitKernel[i], i);
    }
    return this.waitsByKernel.get(kernel);
  }

  /**
   * The call that launched a kernel, where the page has it.
   * @param {number} kernel
   * @returns {{host: Host, index: number} | null}
   */
  callOf(kernel) {
    const start = this.callStart(kernel);
    for (const host of this.hosts) {
      if (host.kind !== "call") continue;
      const index = host.launched.indexOf(kernel + 1);
      if (index >= 0) return { host, index };
      // A graph's launch starts many, of which the call has the first.
      const place = start === null ? -1 : host.slices.startingBefore(start);
      if (host.slices.start[place] === start && host.launched[place]) return { host, index: place };
    }
    return null;
  }

  /** The start of the call that launched a kernel; null where it is not known. @param {number} kernel */
  callStart(kernel) {
    const value = this.launch?.[kernel] ?? 0;
    return value === 0 ? null : this.kernels.start[kernel] - (value > 0 ? value - 1 : value);
  }

  /** All that a call launched: a graph's launch starts many. @param {Host} host @param {number} index */
  launchedBy(host, index) {
    /** @type {number[]} */
    const found = [];
    if (!host.launched[index]) return found;
    for (let kernel = 0; kernel < this.kernels.start.length; kernel++)
      if (this.callStart(kernel) === host.slices.start[index]) found.push(kernel);
    return found;
  }

  /** @param {number} at ns from the rank's first kernel @returns {bigint} the same on the rank's own clock */
  clock(at) {
    return this.firstNs + BigInt(Math.round(at));
  }
}

/** All ranks, and what they have in common. */
export class Model {
  /**
   * @param {TimelineDocument} document
   * @param {Map<string, Float64Array>} columns
   */
  constructor(document, columns) {
    this.document = document;
    const used = new Map();
    /** @type {(name: string, count: number) => Float64Array} */
    const take = (name, count) => {
      const at = used.get(name) ?? 0;
      used.set(name, at + count);
      return (columns.get(name) ?? new Float64Array(0)).subarray(at, at + count);
    };
    this.ranks = document.ranks.map((each, place) => new Rank(each, place, take, document));
    this.byRank = new Map(this.ranks.map((rank) => [rank.rank, rank]));
    const { fields, values, rows } = document.signatures;
    this.fields = fields;
    this.fieldOf = new Map(fields.map((name, place) => [name, place]));
    this.values = values;
    this.rows = rows;
    const place = new Map(document.categories.map((name, index) => [name, index]));
    /** per signature, its category's place; that of unclassified ones where it has none */
    this.category = Uint8Array.from(rows, (_, signature) => {
      return place.get(String(this.value(signature, "category"))) ?? place.get("unclassified") ?? 0;
    });
    /** per signature: 0 computation, 1 communication, 2 memory */
    this.kind = Uint8Array.from(rows, (_, signature) =>
      Math.max(["computation", "communication", "memory"].indexOf(String(this.value(signature, "kind"))), 0),
    );
    /** the critical path from one segment to the next, over all ranks */
    this.path = this.ranks
      .flatMap((rank) => Array.from(rank.pathOrder, (order, index) => ({ order, rank, index })))
      .sort((a, b) => a.order - b.order);
    this.axis = document.axes.find((axis) => axis.at) ?? { name: "global", at: [], length: 1 };
    /** the choice of clocks of a page that nobody has touched */
    this.usual = this.axis.name;
    /** what the view reaches from 0 to */
    this.end = this.axis.length ?? 1;
  }

  /**
   * Lay the ranks by another choice of clocks; false where it is refused.
   * @param {string} name
   */
  align(name) {
    const axis = this.document.axes.find((each) => each.name === name);
    if (!axis?.at) return false;
    this.axis = axis;
    this.end = axis.length ?? 1;
    return true;
  }

  /**
   * The kernels of the communication that a kernel is part of: rank → kernel; none where it is not matched.
   * @param {Rank} rank
   * @param {number} kernel
   * @returns {Map<Rank, number>}
   */
  membersOf(rank, kernel) {
    const place = rank.waitOf(kernel);
    const number = place === undefined ? 0 : rank.waitCommunication[place];
    const found = new Map();
    if (!number) return found;
    for (const other of this.ranks) {
      const at = other.waitCommunication.indexOf(number);
      if (at >= 0) found.set(other, other.waitKernel[at]);
    }
    return found;
  }

  /**
   * The lanes of a rank by their keys, in their order. Beside those that are shown: all kernels, and its two halves,
   * computation (with memory operations) and communication.
   * @param {Rank} rank
   * @returns {Map<string, Lane>}
   */
  lanesOf(rank) {
    rank.knownLanes ??= new Map(this.madeLanes(rank).map((lane) => [lane.key, lane]));
    return rank.knownLanes;
  }

  /** @param {Rank} rank @returns {Lane[]} */
  madeLanes(rank) {
    const { kinds, categories, names, short_names, host_names } = this.document;
    const name = /** @type {number} */ (this.fieldOf.get("name"));
    /** @type {Content} */
    const kernels = {
      sort: "kernel",
      slices: rank.kernels,
      kinds: categories,
      kind: (kernel) => this.category[rank.signature[kernel]],
      names: short_names,
      name: (kernel) => this.rows[rank.signature[kernel]][name],
    };
    /** @param {"gap" | "path"} sort @returns {Content} */
    const unnamed = (sort) => {
      const [slices, places] = sort === "gap" ? [rank.gaps, rank.gapKind] : [rank.path, rank.pathKind];
      return { sort, slices, kinds: kinds[sort], kind: (slice) => places[slice], names: [], name: () => -1 };
    };
    /** @type {Content} */
    const steps = {
      sort: "step",
      slices: rank.steps,
      kinds: kinds.step,
      kind: (step) => rank.stepKind[step],
      names,
      name: (step) => rank.stepName[step],
    };
    /** @type {Record<string, () => Content>} */
    const others = { microbatches: () => steps, gaps: () => unnamed("gap"), path: () => unnamed("path") };
    const lanes = rank.laneDocuments.map((told) => {
      const dimension = told.kind === "dimension" ? String(told.holds?.dimension) : "";
      const of = { ...told, dimension };
      if (others[told.kind]) return new Lane(rank, of, rank.key, others[told.kind]());
      return this.some(rank, of, kernels, (signature) => this.isIn(told, signature));
    });
    for (const host of rank.hosts) {
      const key = `${rank.key}/${host.key}`;
      const told = { key, label: host.label, kind: host.laneKind };
      lanes.push(
        new Lane(rank, told, key.slice(0, key.lastIndexOf("/")), {
          sort: "host",
          host,
          slices: host.slices,
          kinds: kinds[host.kind],
          kind: (slice) => host.kinds[slice],
          names: host_names ?? [],
          name: (slice) => host.name[slice],
        }),
      );
    }
    /** @param {string} part */
    const hidden = (part) => ({ key: `${rank.key}/${part}`, label: part, kind: part });
    const isCommunication = (/** @type {number} */ signature) => this.kind[signature] === 1;
    return [
      ...lanes,
      new Lane(rank, hidden(KERNELS), null, kernels),
      this.some(rank, hidden(COMPUTATION), kernels, (signature) => !isCommunication(signature), null),
      this.some(rank, hidden(COMMUNICATION), kernels, isCommunication, null),
    ];
  }

  /**
   * A lane of the kernels whose signatures are in it.
   * @param {Rank} rank
   * @param {{key: string, label: string, kind: string}} told
   * @param {Content} kernels
   * @param {(signature: number) => boolean} holds
   * @param {string | null} parent
   */
  some(rank, told, kernels, holds, parent = rank.key) {
    const held = Uint8Array.from(this.rows, (_, signature) => (holds(signature) ? 1 : 0));
    /** @type {number[]} */
    const chosen = [];
    for (let kernel = 0; kernel < rank.signature.length; kernel++)
      if (held[rank.signature[kernel]]) chosen.push(kernel);
    return new Lane(rank, told, parent, kernels, Uint32Array.from(chosen));
  }

  /** A lane that is shown, or one of kernels; undefined where there is none. @param {string} key @returns {Lane | undefined} */
  lane(key) {
    const rank = this.rankOf(key);
    return rank && this.lanesOf(rank).get(key);
  }

  /** The rank of a lane. @param {string} key */
  rankOf(key) {
    const [member, number] = key.split("/")[0].split(":");
    return member === this.document.member.toLowerCase() ? this.byRank.get(Number(number)) : undefined;
  }

  /** Whether kernels with a signature are in a lane. @param {LaneDocument} lane @param {number} signature */
  isIn(lane, signature) {
    return Object.entries(lane.holds ?? {}).every(([field, value]) => this.value(signature, field) === value);
  }

  /** @param {Rank} rank where its first kernel lies on the axis, ns */
  at(rank) {
    return this.axis.at?.[rank.place] ?? 0;
  }

  /** @param {Rank} rank @returns {string[]} the devices that its kernels ran on */
  devicesOf(rank) {
    rank.knownDevices ??= [
      ...new Set(Array.from(new Set(rank.signature), (signature) => String(this.value(signature, "device")))),
    ].sort();
    return rank.knownDevices;
  }

  /**
   * A value that kernels with a signature share.
   * @param {number} signature
   * @param {string} field
   * @returns {string | number | null}
   */
  value(signature, field) {
    const place = this.fieldOf.get(field);
    if (place === undefined) return null;
    return this.values[place][this.rows[signature][place]];
  }
}
