/** The tiles of a live timeline: what is in sight is asked for as the view moves. */

import { isDrawn } from "./live_lanes.js";
import { whole } from "./live_source.js";
import { byId } from "./words.js";

/** @typedef {import("./live_source.js").Shown} Shown */
/** @typedef {import("./live_source.js").Strip} Strip */
/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

/** @typedef {Shown & {from: number, to: number, dot: number, filter: string}} Tile */

const MOST_PIXELS = 4096;
const LANES_A_QUESTION = 48;
const MOST_TILES = 400;

export class Tiles {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<string, Tile>} key of a lane → the last tile of it */
    this.known = new Map();
    /** @type {Strip | null} */
    this.strip = null;
    /** Where the last search's hits lie: per lane starts and ends, of what question. */
    this.matched = { asked: "", found: /** @type {Record<string, [number[], number[]]>} */ ({}) };
    this.asking = false;
    /** the question that was refused: it is not asked again */
    this.refused = "";
  }

  /** Ask for what is in sight and not known, one question at a time. */
  async fetch() {
    if (this.asking || !this.timeline.canvas.clientWidth) return;
    const { from, to } = this.timeline.looking;
    const length = to - from;
    const width = Math.min(2 * this.timeline.view.width, MOST_PIXELS);
    const dot = (2 * length) / width;
    const filter = JSON.stringify(this.timeline.filters.asked);
    const wanted = this.timeline.visible
      .filter((row) => isDrawn(row.lane))
      .map((row) => row.lane.key)
      .filter((key) => {
        const tile = this.known.get(key);
        const fits = tile && tile.from <= Math.max(from, 0) && tile.to >= Math.min(to, this.timeline.end);
        return !fits || tile.dot > 1.5 * dot || tile.dot < dot / 8 || tile.filter !== filter;
      })
      .slice(0, LANES_A_QUESTION);
    const strip = !wanted.length && this.strip === null;
    if (!wanted.length && !strip) return void this.fetchMatches(filter);
    const question = {
      lane: wanted,
      from: whole(strip ? 0 : from - length / 2),
      to: whole(strip ? this.timeline.end : to + length / 2),
      pixels: strip ? Math.min(this.timeline.view.width, MOST_PIXELS) : width,
      ...(strip ? { overview: 1 } : this.timeline.filters.asked),
    };
    const asked = JSON.stringify(question);
    if (asked === this.refused) return;
    this.asking = true;
    try {
      const found = await this.timeline.source.tiles(question);
      if (found.strip) this.strip = found.strip;
      for (const shown of found.shown) {
        const place = { from: from - length / 2, to: to + length / 2, dot, filter };
        this.known.delete(shown.lane);
        this.known.set(shown.lane, { ...shown, ...place });
        for (const kind of new Set(shown.boxes?.kind)) this.timeline.filters.kinds.add(shown.boxes?.kinds[kind] ?? "");
      }
      for (const key of [...this.known.keys()].slice(0, Math.max(this.known.size - MOST_TILES, 0)))
        this.known.delete(key);
      this.timeline.filters.offerKinds();
      if (byId("said").textContent?.startsWith("This takes longer")) this.timeline.say("");
    } catch (error) {
      this.refused = asked;
      this.timeline.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? "0") + 1);
    this.timeline.draw();
  }

  /** Ask where the hits of the last search lie in the lanes in sight. @param {string} filter */
  async fetchMatches(filter) {
    const { from, to } = this.timeline.looking;
    const lane = this.timeline.visible
      .filter((row) => row.lane.rows > 0 && row.lane.kind !== "counter")
      .map((row) => row.lane.key)
      .slice(0, LANES_A_QUESTION);
    const { pattern, lanes } = this.timeline.hits.page ?? {};
    const asked = pattern ? JSON.stringify([pattern, lanes, lane, from, to, this.timeline.view.width, filter]) : "";
    if (asked === this.matched.asked) return;
    const wanted = lanes ? lane.filter((key) => key === lanes) : lane;
    const window = { from: whole(from), to: whole(to), pixels: Math.min(this.timeline.view.width, MOST_PIXELS) };
    this.asking = true;
    try {
      const found =
        wanted.length && asked ? { pattern, lane: wanted, ...window, ...this.timeline.filters.asked } : null;
      this.matched = { asked, found: found ? await this.timeline.source.ask("matched", found) : {} };
    } catch (error) {
      this.matched = { asked, found: {} };
      this.timeline.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    this.timeline.draw();
  }
}
