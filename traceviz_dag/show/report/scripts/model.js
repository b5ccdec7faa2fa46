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

/** @typedef {{step: number | null, start: number, end: number}} Step a training step of a rank, from its first kernel */

/**
 * @typedef {object} RankDocument and how many values of columns are its own
 * @property {number} rank
 * @property {number | null} stage
 * @property {string} label
 * @property {LaneDocument[]} lanes
 * @property {string} first_ns
 * @property {number} length
 * @property {Step[]} windows
 * @property {number} kernels
 * @property {number} bins
 * @property {number} waits
 * @property {boolean} [open] whether its lanes are shown from the start
 */

/**
 * @typedef {object} LaneDocument a lane as the lane model has it
 * @property {string} key
 * @property {string} label
 * @property {"microbatches" | "stream" | "dimension" | "gaps" | "path" | "ranges" | "calls"} kind
 * @property {string} dimension
 * @property {Record<string, string | number | null>} [holds] of a lane of kernels: what these have in common
 * @property {number} [count] of another one: its slices
 * @property {string} [thread] of a lane of a thread
 * @property {string} [thread_id]
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
 * @property {string[]} kinds of slices that are no kernels
 * @property {string[]} gap_kinds what gaps are split into
 * @property {import("./colours.js").Words} words
 * @property {import("./grouping.js").Groupings} groupings
 * @property {string[]} names of slices that are no kernels
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
 */

/** Last parts of the keys of lanes that are not shown. */
export const KERNELS = "kernels";
export const COMPUTATION = "computation";
export const COMMUNICATION = "communication";

/** Slices of one kind in the order of their starts, and how far any before each reaches. */
export class Slices {
  /** @param {Float64Array} start ns from the rank's first kernel @param {Float64Array} length ns */
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

  /** First slice that may run after an instant. @param {number} instant */
  firstAfter(instant) {
    // Times of slices are whole.
    return firstAtLeast(this.reach, Math.floor(instant) + 1);
  }

  /** Number of slices that start before an instant. @param {number} instant */
  startingBefore(instant) {
    return firstAtLeast(this.start, instant);
  }
}

/** @param {Float64Array | Uint32Array} sorted @param {number} value */
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

/** @type {Record<string, Content["sort"]>} lanes → what their slices are */
const SORTS = { microbatches: "step", gaps: "gap", path: "path", ranges: "range", calls: "call" };

/** Slices of one sort, with their kinds and names. */
export class Content {
  /**
   * @param {"kernel" | "step" | "gap" | "path" | "range" | "call"} sort
   * @param {Slices} slices
   * @param {string[]} kinds
   * @param {(slice: number) => number} kind its place in kinds
   * @param {string[]} names
   * @param {(slice: number) => number} name its place in names, -1 for none
   */
  constructor(sort, slices, kinds, kind, names, name) {
    this.sort = sort;
    this.slices = slices;
    this.kinds = kinds;
    this.kind = kind;
    this.names = names;
    this.name = name;
    /** What else is known of each slice. @type {Record<string, Float64Array>} */
    this.more = {};
    this.thread = "";
    this.threadId = "";
  }
}

/** What is known of slices beside their times, kinds and names. @type {Partial<Record<Content["sort"], string[]>>} */
const MORE = {
  gap: ["blocked", "starved"],
  path: ["order"],
  // Of a range how many it launched, and from when on; of a call the kernel that it launched, from 1; 0 for none.
  range: ["launched", "gpu_start", "gpu_length"],
  call: ["launched"],
};

/**
 * The slices of a lane that is not of kernels.
 * @param {LaneDocument} told
 * @param {(name: string, count: number) => Float64Array} take hands out the next values of a column
 * @param {TimelineDocument} all
 */
function contentOf({ kind, count = 0, thread = "", thread_id = "" }, take, { kinds, names }) {
  const sort = SORTS[kind];
  const [places, codes] = [take("lane.kind", count), take("lane.name", count)];
  const slices = new Slices(take("lane.start", count), take("lane.length", count));
  const found = new Content(
    sort,
    slices,
    kinds,
    (slice) => places[slice],
    names,
    (slice) => codes[slice] - 1,
  );
  found.more = Object.fromEntries((MORE[sort] ?? []).map((name) => [name, take(`${sort}.${name}`, count)]));
  found.thread = thread;
  found.threadId = thread_id;
  return found;
}

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
    const { kernels, waits } = document;
    this.told = document.lanes;
    /** of each of these, unless it is of kernels */
    this.contents = document.lanes.map((told) => (told.count === undefined ? null : contentOf(told, take, all)));
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
    this.member = all.member;
    this.label = document.label;
    /** @type {Map<number, number> | null} kernel → its place in the waits */
    this.waitsByKernel = null;
    /** @type {Map<string, Lane> | null} */
    this.knownLanes = null;
    /** @type {string[] | null} */
    this.knownDevices = null;
  }

  /** The place of a kernel's wait; undefined where none is known. @param {number} kernel */
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
   * @returns {{content: Content, slice: number} | null}
   */
  callOf(kernel) {
    const start = this.callStart(kernel);
    for (const content of this.contents) {
      if (content?.sort !== "call") continue;
      const { slices, more } = content;
      const slice = more.launched.indexOf(kernel + 1);
      if (slice >= 0) return { content, slice };
      // A graph's launch starts many, of which the call has the first.
      const place = start === null ? -1 : slices.startingBefore(start);
      if (slices.start[place] === start && more.launched[place]) return { content, slice: place };
    }
    return null;
  }

  /** The start of the call that launched a kernel; null where it is not known. @param {number} kernel */
  callStart(kernel) {
    const value = this.launch?.[kernel] ?? 0;
    return value === 0 ? null : this.kernels.start[kernel] - (value > 0 ? value - 1 : value);
  }

  /** How many a call launched: a graph's launch starts many. @param {number} start of the call */
  launchedAt(start) {
    let found = 0;
    for (let kernel = 0; kernel < this.signature.length; kernel++) if (this.callStart(kernel) === start) found++;
    return found;
  }

  /** @param {number} at ns from the rank's first kernel @returns {bigint} the same on the rank's own clock */
  clock(at) {
    return this.firstNs + BigInt(Math.round(at));
  }
}

/** All ranks, and what they have in common. */
export class Model {
  /** @param {TimelineDocument} document @param {Map<string, Float64Array>} columns */
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
      .flatMap((rank) =>
        rank.contents.flatMap((content) =>
          Array.from(content?.more.order ?? [], (order, slice) => ({
            ...{ order, rank, start: content?.slices.start[slice] ?? 0, length: content?.slices.length[slice] ?? 0 },
          })),
        ),
      )
      .sort((a, b) => a.order - b.order);
    this.axis = document.axes.find((axis) => axis.at) ?? { name: "global", at: [], length: 1 };
    /** the choice of clocks of a page that nobody has touched */
    this.usual = this.axis.name;
    /** what the view reaches from 0 to */
    this.end = this.axis.length ?? 1;
  }

  /** Lay the ranks by another choice of clocks; false where it is refused. @param {string} name */
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
    const { categories, short_names: names } = this.document;
    const field = /** @type {number} */ (this.fieldOf.get("name"));
    const kernels = new Content(
      "kernel",
      rank.kernels,
      categories,
      (kernel) => this.category[rank.signature[kernel]],
      names,
      (kernel) => this.rows[rank.signature[kernel]][field],
    );
    const lanes = rank.told.map((told, place) => {
      const content = rank.contents[place];
      if (content === null) return this.some(rank, told, kernels, (signature) => this.isIn(told, signature));
      if (!content.thread) return new Lane(rank, told, rank.key, content);
      const key = `${rank.key}/${told.key}`;
      return new Lane(rank, { ...told, key }, key.slice(0, key.lastIndexOf("/")), content);
    });
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
