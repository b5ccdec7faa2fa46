/** The tiles of a timeline: what is in sight is asked for as the view moves. */

import { isDrawn } from "./lanes.js";
import { whole } from "./source.js";
import { byId } from "./words.js";

/** @typedef {import("./source.js").Shares} Shares */
/** @typedef {import("./source.js").Tiles} Answer */
/** @typedef {import("./source.js").Values} Values */
/** @typedef {import("./timeline.js").Timeline} Timeline */

/** @typedef {import("./source.js").Shown & {from: number, to: number, dot: number, filter: string}} Tile */
/** @typedef {{values: Values, means: Record<string, number[]>, from: number, to: number, dot: number, filter: string}} Question */

const MOST_PIXELS = 4096;
const LANES_A_QUESTION = 48;
const MOST_TILES = 400;

export class Tiles {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<string, Tile>} key of a lane → the last tile of it */
    this.known = new Map();
    /** @type {Shares | null} */
    this.strip = null;
    /** Where the last search's hits lie: per lane starts and ends, of what question. */
    this.matched = { asked: "", found: /** @type {Record<string, [number[], number[]]>} */ ({}) };
    this.asking = false;
    /** the question that was refused: it is not asked again */
    this.refused = "";
  }

  /** Forget all, since the axis has changed. */
  clear() {
    this.known.clear();
    this.strip = null;
    this.matched = { asked: "", found: {} };
  }

  /** Ask for what is in sight and not known, one question at a time; a source that answers at once is asked for all. */
  ask() {
    while (!this.asking) {
      const question = this.question();
      if (question === null) return void this.askMatches();
      const asked = JSON.stringify(question.values);
      if (asked === this.refused) return;
      const found = this.timeline.source.tiles(question.values, question.means);
      if (found instanceof Promise) return void this.wait(found, question, asked);
      this.take(found, question);
    }
  }

  /** What is to be asked next; null where all in sight is known. @returns {Question | null} */
  question() {
    const { looking, view, end, filters, visible, source } = this.timeline;
    const { from, to } = looking;
    const length = to - from;
    // Beside what is shown, so that moving finds it there; a source that answers at once need not look ahead.
    const margin = source.quick ? 0 : length / 2;
    const width = Math.min(source.quick ? view.width : 2 * view.width, MOST_PIXELS);
    const dot = (length + 2 * margin) / width;
    const filter = JSON.stringify(filters.asked);
    const wanted = visible
      .map((row) => row.lane)
      .filter((lane) => {
        const tile = this.known.get(lane.key);
        const fits = tile && tile.from <= Math.max(from, 0) && tile.to >= Math.min(to, end);
        if (!isDrawn(lane) || (lane.ranks && !this.timeline.grouping.folded.has(lane.key))) return false;
        return !fits || tile.dot > 1.5 * dot || tile.dot < dot / 8 || tile.filter !== filter;
      })
      .slice(0, LANES_A_QUESTION);
    const place = { from: from - margin, to: to + margin, dot, filter };
    if (wanted.length) {
      const means = Object.fromEntries(wanted.flatMap((lane) => (lane.ranks ? [[lane.key, lane.ranks]] : [])));
      const lane = wanted.map((each) => each.key);
      const times = { from: whole(place.from), to: whole(place.to), pixels: width };
      return { values: { lane, ...times, ...filters.asked }, means, ...place };
    }
    if (this.strip !== null) return null;
    const pixels = Math.min(view.width, MOST_PIXELS);
    return { values: { from: "0", to: whole(end), pixels, overview: 1 }, means: {}, ...place };
  }

  /** @param {Answer} found @param {Question} question */
  take(found, { from, to, dot, filter }) {
    const { filters } = this.timeline;
    if (found.strip) this.strip = found.strip;
    for (const shown of found.shown) {
      this.known.delete(shown.lane);
      this.known.set(shown.lane, { ...shown, from, to, dot, filter });
      for (const { boxes } of shown.bands)
        for (const kind of boxes ? new Set(Array.from(boxes.kind)) : []) filters.kinds.add(boxes?.kinds[kind] ?? "");
    }
    for (const key of [...this.known.keys()].slice(0, Math.max(this.known.size - MOST_TILES, 0)))
      this.known.delete(key);
    filters.offerKinds();
  }

  /** @param {Promise<Answer>} answer @param {Question} question @param {string} asked */
  async wait(answer, question, asked) {
    this.asking = true;
    try {
      this.take(await answer, question);
      if (byId("said").textContent?.startsWith("This takes longer")) this.timeline.say("");
    } catch (error) {
      this.refused = asked;
      this.timeline.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? "0") + 1);
    this.timeline.draw();
  }

  /** Ask where the hits of the last search lie in the lanes in sight. */
  async askMatches() {
    const { looking, view, visible, filters, hits } = this.timeline;
    const { pattern, lanes } = hits.page ?? {};
    const lane = visible
      .filter((row) => row.lane.rows > 0 && row.lane.kind !== "counter" && (!lanes || row.lane.key === lanes))
      .map((row) => row.lane.key)
      .slice(0, LANES_A_QUESTION);
    const window = { from: whole(looking.from), to: whole(looking.to), pixels: Math.min(view.width, MOST_PIXELS) };
    const values = { pattern, lane, ...window, ...filters.asked };
    const asked = pattern ? JSON.stringify(values) : "";
    if (asked === this.matched.asked) return;
    this.asking = true;
    this.matched.asked = asked;
    try {
      const found = asked && lane.length ? await this.timeline.source.ask("matched", values) : {};
      this.matched = { asked, found };
    } catch (error) {
      this.matched = { asked, found: {} };
      this.timeline.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    this.timeline.draw();
  }
}
