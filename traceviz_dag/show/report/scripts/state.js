/** What is looked at: a part of the axis, with undo, kept in the page's address so that a link shows the same. */

/**
 * @typedef {object} Looked
 * @property {number} from
 * @property {number} to
 */

const MOST_UNDONE = 200;
const SHORTEST = 20;

/** A part of an axis that can be moved, with the parts that were looked at before. */
export class Looking {
  /** @param {number} end ns */
  constructor(end) {
    this.end = end;
    this.from = 0;
    this.to = end;
    /** @type {Looked[]} */
    this.before = [];
    /** @type {Looked[]} */
    this.after = [];
  }

  /**
   * Look at another part; it stays within a little more than the axis.
   * @param {number} from
   * @param {number} to
   * @param {boolean} remembered whether undo comes back to what was looked at until now
   */
  show(from, to, remembered = true) {
    const margin = this.end * 0.05;
    const length = Math.min(Math.max(to - from, SHORTEST), this.end + 2 * margin);
    const low = Math.min(Math.max(from, -margin), this.end + margin - length);
    if (low === this.from && low + length === this.to) return;
    if (remembered) {
      this.before.push({ from: this.from, to: this.to });
      if (this.before.length > MOST_UNDONE) this.before.shift();
      this.after.length = 0;
    }
    this.from = low;
    this.to = low + length;
  }

  /** @param {number} factor below 1 shows less @param {number} around ns */
  zoom(factor, around, remembered = true) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor, remembered);
  }

  /** @param {number} share of what is shown */
  move(share, remembered = true) {
    const step = (this.to - this.from) * share;
    this.show(this.from + step, this.to + step, remembered);
  }

  undo() {
    this.swap(this.before, this.after);
  }

  redo() {
    this.swap(this.after, this.before);
  }

  /** @param {Looked[]} source @param {Looked[]} target */
  swap(source, target) {
    const found = source.pop();
    if (found === undefined) return;
    target.push({ from: this.from, to: this.to });
    this.from = found.from;
    this.to = found.to;
  }
}

let current = location.hash.slice(1);
let writing = 0;

/** The page's address, behind its #, as names and values. */
export function address() {
  return new Map(new URLSearchParams(current));
}

/** Take over an address that the reader has entered. */
export function readAddress() {
  current = location.hash.slice(1);
}

/**
 * Change parts of the address, without an entry in the history; null takes a name out.
 * @param {Record<string, string | null>} changes
 */
export function changeAddress(changes) {
  const known = address();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) known.delete(name);
    else known.set(name, value);
  }
  current = new URLSearchParams([...known]).toString();
  clearTimeout(writing);
  writing = window.setTimeout(() => history.replaceState(null, "", `#${current}`), 100);
}
