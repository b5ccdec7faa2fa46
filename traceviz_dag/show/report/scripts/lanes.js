/** The lanes of a timeline: a tree that is asked for as it is opened, and the rows that it makes. */

/** @typedef {import("./grouping.js").Grouping} Grouping */
/** @typedef {import("./source.js").Lane} Lane */
/** @typedef {import("./source.js").Source} Source */

/**
 * @typedef {object} Row
 * @property {Lane} lane
 * @property {number} depth
 * @property {number} top pixels from the first row
 * @property {number} height
 * @property {boolean} pinned
 */

/** Pixels of a row. */
const HEIGHT = 16;
const HEAD = 20;
const COUNTER = 30;
/** Ranks that are not open share what room there is. */
const SMALLEST = 11;
const LARGEST = 56;
const RANK = "rank:";

export class Lanes {
  /** @param {Source} source @param {Grouping} grouping of ranks */
  constructor(source, grouping) {
    this.source = source;
    this.grouping = grouping;
    /** @type {Map<string, Lane>} */
    this.known = new Map();
    /** @type {Map<string, string[]>} key of a lane, "" for none → those below it, in their order */
    this.below = new Map();
    /** @type {Set<string>} */
    this.open = new Set();
    /** @type {string[]} */
    this.pinned = [];
    /** of communication: its lanes alone are shown of all dimensions; empty for all */
    this.dimension = "";
    /** @type {Row[]} */
    this.rows = [];
    this.height = 0;
    /** pixels that the rows may take without being scrolled */
    this.room = 0;
  }

  /** @param {string} parent @param {Lane[]} lanes */
  take(parent, lanes) {
    for (const lane of lanes) this.known.set(lane.key, lane);
    this.below.set(
      parent,
      lanes.map((lane) => lane.key),
    );
    this.layOut();
  }

  /** Whether what is below a lane, or a heading, is shown. @param {string} key */
  isOpen(key) {
    const group = this.grouping.groups.find((each) => each.key === key);
    return group ? !this.grouping.folded.has(key) : this.open.has(key);
  }

  /** Show a lane's rank, where its heading is folded. @param {string} key */
  bring(key) {
    const root = this.rootOf(key);
    if (root.startsWith(RANK)) this.grouping.bring(Number(root.slice(RANK.length)));
    this.layOut();
  }

  /** Open a lane; what is below it is asked for the first time. @param {string} key */
  async unfold(key) {
    if (this.grouping.folded.delete(key)) return this.layOut();
    if (!this.known.get(key)?.holds) return;
    if (!this.below.has(key)) this.take(key, await this.source.ask("lanes", { lane: key }));
    this.open.add(key);
    this.layOut();
  }

  /** @param {string} key */
  fold(key) {
    if (!this.open.delete(key)) this.grouping.folded.add(key);
    this.layOut();
  }

  /** @param {string} key */
  pin(key) {
    if (this.pinned.includes(key)) this.pinned = this.pinned.filter((each) => each !== key);
    else this.pinned.push(key);
    this.layOut();
  }

  /** Show some lanes that are asked for where they are not known, such as those that an address pins. @param {string} key */
  async reach(key) {
    const parts = key.split("/");
    for (let many = 1; many < parts.length && !this.known.has(key); many++) {
      const around = parts.slice(0, many).join("/");
      if (this.known.get(around)?.holds && !this.below.has(around))
        this.take(around, await this.source.ask("lanes", { lane: around }));
    }
  }

  /** Move a lane among those beside it. @param {string} key @param {number} step */
  shift(key, step) {
    const lane = this.known.get(key);
    const beside = lane && this.below.get(lane.parent ?? "");
    if (!beside) return;
    const from = beside.indexOf(key);
    const to = from + step;
    if (to < 0 || to >= beside.length) return;
    [beside[from], beside[to]] = [beside[to], beside[from]];
    this.layOut();
  }

  /** The rank or GPU that a lane belongs to, or its outermost lane. @param {string} key */
  rootOf(key) {
    let lane = this.known.get(key);
    while (lane?.parent && !isRoot(lane)) lane = this.known.get(lane.parent);
    return lane?.key ?? key;
  }

  layOut() {
    this.rows = [];
    for (const key of this.pinned) this.add(key, 0, true);
    this.addRoots();
    const ranks = this.rows.filter((row) => !row.height).length;
    const left = this.rows.reduce((room, row) => room - row.height, this.room);
    const each = Math.min(Math.max(Math.floor(left / Math.max(ranks, 1)), SMALLEST), LARGEST);
    this.height = 0;
    for (const row of this.rows) {
      row.top = this.height;
      row.height ||= each;
      this.height += row.height;
    }
  }

  addRoots() {
    const groups = this.grouping.shown;
    if (!groups.length) return this.addBelow("", 0);
    const roots = new Set(this.below.get("") ?? []);
    for (const group of groups) {
      const { key, label, ranks } = group;
      this.known.set(key, { key, label, ranks, parent: null, kind: "group", rows: 0, holds: true, dimension: "" });
      this.add(group.key, 0, false);
      for (const rank of group.ranks) {
        const key = `${RANK}${rank}`;
        if (this.grouping.unfolds(group) && roots.has(key)) this.addOne(key, 1);
      }
    }
  }

  /** @param {string} parent @param {number} depth */
  addBelow(parent, depth) {
    for (const key of this.below.get(parent) ?? []) this.addOne(key, depth);
  }

  /** A lane and those below it. @param {string} key @param {number} depth */
  addOne(key, depth) {
    if (!this.pinned.includes(key)) this.add(key, depth, false);
    if (this.open.has(key)) this.addBelow(key, depth + 1);
  }

  /** A row; the height of a rank that is not open follows from the others. @param {string} key @param {number} depth @param {boolean} pinned */
  add(key, depth, pinned) {
    const lane = this.known.get(key);
    if (lane === undefined || (this.dimension && lane.dimension && lane.dimension !== this.dimension)) return;
    const closed = isRoot(lane) && !this.open.has(key);
    const height = closed
      ? 0
      : lane.kind === "counter"
        ? COUNTER
        : isDrawn(lane) && lane.kind !== "group"
          ? HEIGHT
          : HEAD;
    this.rows.push({ lane, depth, top: 0, height, pinned });
  }

  /** @param {number} y pixels from the first row @returns {Row | undefined} */
  rowAt(y) {
    return this.rows.find((row) => y >= row.top && y < row.top + row.height);
  }

  /** @param {string} key @returns {Row | undefined} */
  rowOf(key) {
    return this.rows.find((row) => row.lane.key === key);
  }
}

/** Whether a lane is that of a rank or GPU, which holds the others. @param {Lane} lane */
export function isRoot(lane) {
  return lane.kind === "rank" || lane.kind === "gpu";
}

/** Whether a lane shows something of its own; a heading the mean of the ranks that are folded below it. @param {Lane} lane */
export function isDrawn(lane) {
  return lane.rows > 0 || isRoot(lane) || lane.kind === "group";
}
