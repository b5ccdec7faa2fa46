/** Asks the server what a live page shows: JSON, and tiles as typed columns. */

/**
 * @typedef {object} Lane
 * @property {string} key
 * @property {string} label
 * @property {string | null} parent
 * @property {string} kind
 * @property {number} rows
 * @property {boolean} holds
 * @property {number} level
 * @property {string} unit
 * @property {string} dimension of communication; empty of all other lanes
 */

/**
 * @typedef {object} Boxes what a lane shows, by start; times from the begin of the span
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Float64Array} busy
 * @property {Int32Array} row of the slice, or of the longest of several
 * @property {Int32Array} count
 * @property {Int32Array} name place in names, -1 for none
 * @property {Int32Array} kind place in kinds
 * @property {string[]} kinds
 * @property {string[]} names
 * @property {number} leftOut
 */

/**
 * @typedef {object} Changes what a counter does
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Float64Array} least
 * @property {Float64Array} most
 * @property {Float64Array} last
 */

/**
 * @typedef {object} Strip
 * @property {number} lanes it is the mean of
 * @property {number} of all that there are
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Float64Array} busy
 * @property {Float64Array} exposed
 * @property {Float64Array} hidden
 * @property {Float64Array} idle
 */

/** @typedef {{lane: string, boxes: Boxes | null, changes: Changes | null}} Shown */
/** @typedef {{shown: Shown[], strip: Strip | null}} Tiles */
/** @typedef {Record<string, string | number | string[]>} Values */

const AGAIN_MS = 1000;
const MOST_TRIES = 120;

/** @param {number} ns as the server reads it */
export function whole(ns) {
  return BigInt(Math.round(ns)).toString();
}

export class Source {
  /** @param {string} base path of the page */
  constructor(base) {
    this.base = base.replace(/\/$/, "");
    /** of the source, as it was when the page was opened */
    this.state = "";
    /** @type {(words: string) => void} */
    this.say = () => {};
  }

  /**
   * The answer to a question; what is still being prepared is asked again.
   * @param {string} what
   * @param {Values} values
   * @param {RequestInit} how
   * @returns {Promise<Response>}
   */
  async response(what, values, how = {}) {
    const query = new URLSearchParams();
    if (this.state) query.set("state", this.state);
    for (const [name, value] of Object.entries(values)) {
      for (const each of Array.isArray(value) ? value : [String(value)]) query.append(name, each);
    }
    for (let tries = 1; ; tries++) {
      const found = await fetch(`${this.base}/${what}?${query}`, how);
      if (found.ok) return found;
      const words = (await found.text()).trim();
      if (found.status !== 503 || tries === MOST_TRIES) throw new Error(words || `the server answers ${found.status}`);
      this.say(words);
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }

  /** @param {string} what @param {Values} values @returns {Promise<any>} */
  async ask(what, values = {}) {
    return (await this.response(what, values)).json();
  }

  /** Change what the home keeps. @param {string} what @param {object} body @returns {Promise<any>} */
  async change(what, body) {
    const how = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    return (await this.response(what, {}, how)).json();
  }

  /** @param {Values} values @returns {Promise<Tiles>} */
  async tiles(values) {
    return decoded(await (await this.response("tiles", values)).arrayBuffer());
  }
}

/** @param {ArrayBuffer} buffer @returns {Tiles} */
export function decoded(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let at = 8 + length;
  /** @param {number} count */
  const wide = (count) => {
    at += 8 * count;
    return new Float64Array(buffer, at - 8 * count, count);
  };
  /** @param {number} count */
  const narrow = (count) => {
    at += 4 * count;
    return new Int32Array(buffer, at - 4 * count, count);
  };
  /** @type {Strip | null} */
  let strip = null;
  if (head.overview) {
    const [start, end, busy, exposed, hidden, idle] = Array.from({ length: 6 }, () => wide(head.overview));
    strip = { lanes: head.overview_lanes, of: head.overview_of, start, end, busy, exposed, hidden, idle };
  }
  const shown = head.lanes.map((/** @type {any} */ told) => {
    if (told.counter !== undefined) {
      const [start, end, least, most, last] = Array.from({ length: 5 }, () => wide(told.counter));
      return { lane: told.lane, boxes: null, changes: { start, end, least, most, last } };
    }
    const [start, end, busy] = Array.from({ length: 3 }, () => wide(told.slices));
    const [row, count, name, kind] = Array.from({ length: 4 }, () => narrow(told.slices));
    const { kinds, names, left_out: leftOut } = told;
    return {
      lane: told.lane,
      changes: null,
      boxes: { start, end, busy, row, count, name, kind, kinds, names, leftOut },
    };
  });
  return { shown, strip };
}
