/** Asks a server what a timeline shows: JSON, and tiles as typed columns. */

/** @typedef {import("./source.js").Shares} Shares */
/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").Tiles} Tiles */
/** @typedef {import("./source.js").Values} Values */

const AGAIN_MS = 1000;
const MOST_TRIES = 120;

/** @implements {Source} */
export class ServedSource {
  quick = false;

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

  /** @param {string} name what is shown as an escape or cut off is any sign; ASCII signs are themselves */
  pattern(name) {
    const plain = name.replace(/\\u[0-9a-f]{4}|…/g, " ");
    return plain.replace(/[!-/:-@[-^`{-~]/g, "\\$&").replace(/\s+/g, ".+");
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
  /** @type {Shares | null} */
  let strip = null;
  if (head.overview) {
    const [start, end, busy, exposed, hidden] = Array.from({ length: 6 }, () => wide(head.overview));
    const { overview_lanes: lanes, overview_of: all } = head;
    strip = {
      label: `mean of ${lanes < all ? "the first " : ""}${lanes}: busy, exposed`,
      from: start[0],
      cell: end[0] - start[0],
      whole: start.map((from, i) => (end[i] - from) * lanes),
      kinds: ["computation", "exposed", "hidden"],
      times: Array.from(busy).flatMap((time, i) => [time - exposed[i], exposed[i], hidden[i]]),
    };
  }
  const shown = head.lanes.map((/** @type {any} */ { lane, counter, slices, kinds, names }) => {
    if (counter !== undefined) {
      const [start, end, least, most, last] = Array.from({ length: 5 }, () => wide(counter));
      return { lane, bands: [{ top: 0, bottom: 1, changes: { start, end, least, most, last } }] };
    }
    const [start, end, busy] = Array.from({ length: 3 }, () => wide(slices));
    const [row, count, name, kind] = Array.from({ length: 4 }, () => narrow(slices));
    return {
      lane,
      bands: [{ top: 0, bottom: 1, boxes: { lane, start, end, busy, row, count, name, kind, kinds, names } }],
    };
  });
  return { shown, strip };
}
