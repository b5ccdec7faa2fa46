/** Paints what lanes show: slices, cells of many slices, counters, places, shares, and the critical path. */

import { mixed } from "./raster.js";

/**
 * @typedef {object} View
 * @property {number} from ns on the axis
 * @property {number} to
 * @property {number} left first dot of the plot
 * @property {number} width dots of the plot
 * @property {number} scale dots a CSS pixel
 */

/** Cells are at least so strong, so that one short slice is seen. */
const FAINTEST = 0.3;
/** Waits of communications are so much paler. */
const PALE = 0.55;
const HIDDEN_HEIGHT = 3;

/** Of all methods: top and bottom are dots. */
export class Painter {
  /** @param {import("./raster.js").Raster} raster @param {View} view @param {import("./colours.js").Colours} colours */
  constructor(raster, view, colours) {
    this.raster = raster;
    this.view = view;
    this.colours = colours;
    this.right = view.left + view.width;
    this.perNs = view.width / (view.to - view.from);
  }

  /**
   * Where times lie, cut to the plot.
   * @param {number} start
   * @param {number} end
   * @returns {[number, number]} dots; the first is not before the second where nothing is seen
   */
  dots(start, end) {
    const { left, from } = this.view;
    return [Math.max(left + (start - from) * this.perNs, left), Math.min(left + (end - from) * this.perNs, this.right)];
  }

  /** @param {import("./source.js").Boxes} boxes @param {number} top @param {number} bottom */
  boxes({ start, end, busy, count, kind, kinds, wait }, top, bottom) {
    const { raster, view, colours } = this;
    const painted = kinds.map((each) => colours.of(each));
    /** @type {[number[], number[]]} */
    const [cells, slices] = [[], []];
    for (let i = 0; i < start.length; i++)
      if (end[i] >= view.from && start[i] <= view.to) (count[i] > 1 ? cells : slices).push(i);
    // Slices lie above cells: what a cell shows is shorter than it, and may be beside a slice that reaches into it.
    for (const i of [...cells, ...slices]) {
      const [from, to] = this.dots(start[i], end[i]);
      if (from >= this.right) continue;
      const colour = painted[kind[i]];
      if (count[i] > 1) {
        const share = busy[i] / Math.max(end[i] - start[i], 1);
        const strength = Math.min(FAINTEST + (1 - FAINTEST) * share, 1);
        raster.fill(from, top, to, bottom, mixed(colours.idle, colour, strength));
        continue;
      }
      raster.fill(from, top, Math.max(to, from + 1), bottom, colour);
      const [, waited] = this.dots(start[i], start[i] + (wait?.[i] ?? 0));
      if (waited - from >= 1) raster.fill(from, top, waited, bottom, mixed(colour, colours.paper, PALE));
      // So that slices that touch stay apart.
      if (to - from > 4) raster.fill(to - 1, top, to, bottom, mixed(colour, colours.paper, 0.5));
    }
  }

  /** A counter as steps, from 0 or its smallest value to its largest one. @param {import("./source.js").Changes} changes @param {number} top @param {number} bottom */
  counter({ start, end, least, most, last }, top, bottom) {
    const colour = this.colours.of("computation");
    let low = 0;
    let high = 1;
    for (let i = 0; i < start.length; i++) {
      low = Math.min(low, least[i]);
      high = Math.max(high, most[i]);
    }
    /** @param {number} value */
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    for (let i = 0; i < start.length; i++) {
      const [from, to] = this.dots(start[i], end[i]);
      if (to >= from) this.raster.fill(from, y(most[i]), Math.max(to, from + 1), bottom, colour);
      const next = i + 1 < start.length ? start[i + 1] : this.view.to;
      const [hold, until] = this.dots(end[i], next);
      if (until > hold && last[i] !== low) this.raster.fill(hold, y(last[i]), until, bottom, colour);
    }
  }

  /**
   * Where something is, as a line of at least two pixels.
   * @param {ArrayLike<number>} starts
   * @param {ArrayLike<number>} ends
   * @param {number} colour
   * @param {number} top of the line
   * @param {number} bottom
   */
  places(starts, ends, colour, top, bottom) {
    for (let i = 0; i < starts.length; i++) {
      const [from, to] = this.dots(starts[i], ends[i]);
      if (from < this.right && ends[i] >= this.view.from)
        this.raster.fill(from, top, Math.max(to, from + 2 * this.view.scale), bottom, colour);
    }
  }

  /**
   * Shares of what ranks did, one above the other; what lies beside others as a strip at the top.
   * @param {import("./source.js").Shares} shares
   * @param {(kind: string) => boolean} left whether a kind is left out
   * @param {number} top
   * @param {number} bottom
   */
  shares({ whole, kinds, times, from, cell }, left, top, bottom) {
    const { view, colours, perNs } = this;
    const { pixels, width } = this.raster;
    const last = kinds.length - 1;
    const strip = bottom - top >= 10 * view.scale ? HIDDEN_HEIGHT * view.scale : 0;
    const painted = kinds.map((kind) => (left(kind) ? null : colours.of(kind)));
    // Dot by dot, and not by filling cells: there are many layers, and cells are about as wide as dots.
    for (let x = 0; x < view.width; x++) {
      const i = Math.floor((view.from + (x + 0.5) / perNs - from) / cell);
      if (!(whole[i] > 0)) continue;
      const first = i * kinds.length;
      let line = (bottom - 1) * width + view.left + x;
      let y = bottom;
      let done = 0;
      for (let part = 0; part < last; part++) {
        const time = times[first + part];
        const colour = painted[part];
        if (!time || colour === null) continue;
        done += time;
        const next = bottom - Math.round((done / whole[i]) * (bottom - top - strip));
        for (; y > next; y--, line -= width) pixels[line] = colour;
      }
      for (; y > top; y--, line -= width) pixels[line] = colours.idle;
      const beside = painted[last];
      if (!strip || !times[first + last] || beside === null) continue;
      const colour = mixed(colours.idle, beside, Math.min(times[first + last] / whole[i], 1));
      for (y = top; y < top + strip; y++) pixels[y * width + view.left + x] = colour;
    }
  }

  /**
   * The critical path, as a line through the rows of ranks.
   * @param {{lane: string, from: number, to: number}[]} path from one segment to the next
   * @param {Map<string, number>} bottoms key of a rank's lane → bottom of its row, dots
   */
  path(path, bottoms) {
    const { raster, view, colours } = this;
    let before = "";
    for (const { lane, from, to } of path) {
      const bottom = bottoms.get(lane);
      const [left, right] = this.dots(from, to);
      if (bottom !== undefined && right >= left) {
        const y = bottom - 2 * view.scale;
        raster.fill(left, y, right, y + 2 * view.scale, colours.ink);
        const turn = (bottoms.get(before) ?? bottom) - 2 * view.scale;
        if (turn !== y && from >= view.from)
          raster.fill(left, Math.min(y, turn), left + view.scale, Math.max(y, turn), colours.turn);
      }
      before = lane;
    }
  }
}
