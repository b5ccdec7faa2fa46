/** The rows of the timeline: pipelines that fold, ranks that open into lanes, and what lies where. */

import { Grouping } from "./grouping.js";
import { Slices } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./model.js").Host} Host */
/** @typedef {"group" | "rank" | "steps" | "kernels" | "gaps" | "path" | "thread" | "host"} RowKind */

/**
 * @typedef {object} Row
 * @property {RowKind} kind
 * @property {string} label
 * @property {number} top
 * @property {number} height
 * @property {Rank | null} rank
 * @property {Rank[]} ranks of a group
 * @property {Lane | null} lane of a row of kernels
 * @property {Host | null} host of a row of ranges or calls
 * @property {string} key what distinguishes it from other rows
 */

/** Some kernels of a rank, in the order of their starts. */
export class Lane {
  /**
   * @param {Rank} rank
   * @param {Uint32Array | null} chosen kernels; null takes all
   */
  constructor(rank, chosen) {
    this.rank = rank;
    this.chosen = chosen;
    this.slices =
      chosen === null
        ? rank.kernels
        : new Slices(
            Float64Array.from(chosen, (kernel) => rank.kernels.start[kernel]),
            Float64Array.from(chosen, (kernel) => rank.kernels.length[kernel]),
          );
  }

  /** @param {number} slice @returns {number} its kernel */
  kernel(slice) {
    return this.chosen === null ? slice : this.chosen[slice];
  }
}

const HEADER = 18;
const LANE = 15;
const SMALLEST = 11;
const LARGEST = 56;

/** @type {Record<string, RowKind>} lanes of the model → rows that show them */
const KINDS = { microbatches: "steps", stream: "kernels", dimension: "kernels", gaps: "gaps", path: "path" };

/** Which rows there are, and how high each is. */
export class Rows {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Set<number>} ranks that are open */
    this.open = this.usuallyOpen();
    /** @type {Map<number, Map<string, Lane>>} */
    this.lanes = new Map();
    /** @type {Map<number, {computation: Lane, communication: Lane}>} */
    this.halves = new Map();
    /** @type {(kernel: number, rank: Rank) => boolean} */
    this.shows = () => true;
    /** @type {Row[]} */
    this.rows = [];
    this.height = 0;
    this.grouping = new Grouping(model.document.groupings, model.ranks.length);
  }

  /** @returns {Set<number>} the ranks that a page opens by itself */
  usuallyOpen() {
    return new Set(this.model.document.ranks.filter((each) => each.open).map((each) => each.rank));
  }

  /** The ranks of a group that the page carries. @param {import("./grouping.js").Group} group @returns {Rank[]} */
  ranksOf(group) {
    return group.ranks.flatMap((number) => this.model.byRank.get(number) ?? []);
  }

  /**
   * Lay the rows out anew.
   * @param {number} room pixels; ranks share what is there
   */
  layOut(room) {
    const there = this.grouping.shown;
    const headers = there.length;
    const shown = headers
      ? there.filter((group) => this.grouping.unfolds(group)).flatMap((group) => this.ranksOf(group))
      : this.model.ranks;
    const lanes = shown.reduce(
      (sum, rank) => sum + (this.open.has(rank.rank) ? rank.lanes.length + threads(rank) + rank.hosts.length : 0),
      0,
    );
    const left = room - headers * HEADER - lanes * LANE;
    const each = Math.floor(left / Math.max(shown.length, 1));
    const height = Math.min(Math.max(each, SMALLEST), LARGEST);
    this.rows = [];
    let top = 0;
    /** @param {Partial<Row> & {kind: RowKind, label: string, height: number, key: string}} row */
    const add = (row) => {
      this.rows.push({ rank: null, ranks: [], lane: null, host: null, ...row, top });
      top += row.height;
    };
    if (!headers) this.addRanks(this.model.ranks, height, add);
    for (const group of there) {
      const ranks = this.ranksOf(group);
      add({ kind: "group", label: group.label, height: HEADER, ranks, key: group.key });
      if (this.grouping.unfolds(group)) this.addRanks(ranks, height, add);
    }
    this.height = top;
  }

  /**
   * The rows of ranks.
   * @param {Rank[]} ranks
   * @param {number} height of one that is not open
   * @param {(row: Partial<Row> & {kind: RowKind, label: string, height: number, key: string}) => void} add
   */
  addRanks(ranks, height, add) {
    for (const rank of ranks) {
      const name = rank.label;
      const key = `r${rank.rank}`;
      if (!this.open.has(rank.rank)) {
        add({ kind: "rank", label: name, height, rank, key });
        continue;
      }
      add({ kind: "rank", label: name, height: LANE, rank, key });
      for (const lane of rank.lanes) {
        const kind = KINDS[lane.kind];
        const kernels = kind === "kernels" ? (this.lanesOf(rank).get(lane.key) ?? null) : null;
        add({ kind, label: lane.label, height: LANE, rank, lane: kernels, key: lane.key });
      }
      let thread = "";
      for (const host of rank.hosts) {
        if (host.thread !== thread)
          add({ kind: "thread", label: host.thread, height: LANE, rank, key: `${key}/${host.threadId}` });
        thread = host.thread;
        add({ kind: "host", label: host.label, height: LANE, rank, host, key: host.key });
      }
    }
  }

  /** The kernels of each lane of a rank, by its key. @param {Rank} rank @returns {Map<string, Lane>} */
  lanesOf(rank) {
    let found = this.lanes.get(rank.rank);
    if (found === undefined) {
      const lanes = rank.lanes.filter((lane) => lane.holds);
      /** @type {Map<string, number[]>} */
      const parts = new Map(lanes.map((lane) => [lane.key, []]));
      /** @type {Map<number, number[][]>} signature → the lanes that hold its kernels */
      const bySignature = new Map();
      for (let kernel = 0; kernel < rank.signature.length; kernel++) {
        if (!this.shows(kernel, rank)) continue;
        const signature = rank.signature[kernel];
        let holding = bySignature.get(signature);
        if (holding === undefined) {
          holding = lanes
            .filter((lane) => this.model.isIn(lane, signature))
            .map((lane) => /** @type {number[]} */ (parts.get(lane.key)));
          bySignature.set(signature, holding);
        }
        for (const part of holding) part.push(kernel);
      }
      found = new Map([...parts].map(([key, kernels]) => [key, new Lane(rank, Uint32Array.from(kernels))]));
      this.lanes.set(rank.rank, found);
    }
    return found;
  }

  /** A rank's computation (with memory operations) and its communication. @param {Rank} rank */
  halvesOf(rank) {
    let found = this.halves.get(rank.rank);
    if (found === undefined) {
      /** @type {number[]} */
      const computation = [];
      /** @type {number[]} */
      const communication = [];
      for (let kernel = 0; kernel < rank.signature.length; kernel++) {
        if (!this.shows(kernel, rank)) continue;
        (this.model.kind[rank.signature[kernel]] === 1 ? communication : computation).push(kernel);
      }
      found = {
        computation: new Lane(rank, Uint32Array.from(computation)),
        communication: new Lane(rank, Uint32Array.from(communication)),
      };
      this.halves.set(rank.rank, found);
    }
    return found;
  }

  /**
   * Show only some kernels.
   * @param {(kernel: number, rank: Rank) => boolean} shows
   */
  filter(shows) {
    this.shows = shows;
    this.lanes.clear();
    this.halves.clear();
  }

  /** @param {number} y pixels from the first row @returns {Row | undefined} */
  rowAt(y) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].top + this.rows[middle].height > y) high = middle;
      else low = middle + 1;
    }
    const row = this.rows[low];
    return row && row.top <= y ? row : undefined;
  }
}

/** How many threads of the host a rank shows. @param {Rank} rank */
function threads(rank) {
  return new Set(rank.hosts.map((host) => host.threadId)).size;
}
