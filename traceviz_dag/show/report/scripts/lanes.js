/** The rows of the timeline: pipelines that fold, ranks that open into lanes, and what lies where. */

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

/**
 * @typedef {object} Group
 * @property {string} key
 * @property {string} label
 * @property {Rank[]} ranks
 * @property {boolean} [holds] whether folding it folds away the groups that are held
 * @property {boolean} [held]
 */

const HEADER = 18;
const LANE = 15;
const SMALLEST = 11;
const LARGEST = 56;
const MOST_UNFOLDED = 256;
const HOLDER = "others";

/** @type {Record<string, RowKind>} lanes of the model → rows that show them */
const KINDS = { microbatches: "steps", stream: "kernels", dimension: "kernels", gaps: "gaps", path: "path" };

/** Which rows there are, and how high each is. */
export class Rows {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Set<string>} */
    this.folded = new Set();
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
    this.groups = this.grouped();
    this.folded = this.usuallyFolded();
  }

  /** @returns {Set<string>} the pipelines that a page folds by itself: of very many ranks, those without a fault */
  usuallyFolded() {
    if (this.model.ranks.length <= MOST_UNFOLDED) return new Set();
    return new Set(this.groups.filter((group) => group.holds || group.held).map((group) => group.key));
  }

  /** Whether one of some ranks is at fault, or named in a note. @param {Rank[]} ranks */
  comesFirst(ranks) {
    return ranks.some((rank) => this.model.document.first?.includes(rank.rank));
  }

  /** @returns {Set<number>} the ranks that a page opens by itself */
  usuallyOpen() {
    return new Set(this.model.document.ranks.filter((each) => each.open).map((each) => each.rank));
  }

  /** Pipelines, those of ranks at fault first; of very many ranks, one row holds the others. @returns {Group[]} */
  grouped() {
    const numbers = new Set(this.model.ranks.map((rank) => rank.pipeline));
    if (numbers.size <= 1 && !(numbers.size === 1 && this.model.ranks.length > 1 && !numbers.has(null))) {
      return [{ key: "", label: "", ranks: this.model.ranks }];
    }
    const sorted = [...numbers].sort((a, b) => (a ?? Infinity) - (b ?? Infinity));
    /** @type {Group[]} */
    const groups = sorted.map((number) => {
      const ranks = this.model.ranks.filter((rank) => rank.pipeline === number);
      ranks.sort((a, b) => (a.stage ?? 0) - (b.stage ?? 0) || a.rank - b.rank);
      return { key: `p${number}`, label: number === null ? "no pipeline known" : `pipeline ${number}`, ranks };
    });
    const named = groups.filter((group) => this.comesFirst(group.ranks));
    const many = this.model.ranks.length > MOST_UNFOLDED;
    const first = named.length || !many ? named : groups.slice(0, 1);
    const others = groups.filter((group) => !first.includes(group));
    if (!many || others.length < 2) return [...first, ...others];
    const held = others.flatMap((group) => group.ranks);
    const label = `${others.length} other pipelines`;
    return [
      ...first,
      { key: HOLDER, label, ranks: held, holds: true },
      ...others.map((each) => ({ ...each, held: true })),
    ];
  }

  /**
   * Lay the rows out anew.
   * @param {number} room pixels; ranks share what is there
   */
  layOut(room) {
    const there = this.groups.filter((group) => !group.held || !this.folded.has(HOLDER));
    const headers = there.filter((group) => group.key).length;
    const unfolded = there.filter((group) => !group.holds && !this.folded.has(group.key));
    const shown = unfolded.flatMap((group) => group.ranks);
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
    for (const group of there) {
      if (group.key) {
        add({ kind: "group", label: group.label, height: HEADER, ranks: group.ranks, key: group.key });
        if (group.holds || this.folded.has(group.key)) continue;
      }
      for (const rank of group.ranks) {
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
    this.height = top;
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
            .filter((lane) =>
              Object.entries(lane.holds ?? {}).every(([field, value]) => this.model.value(signature, field) === value),
            )
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
