/** Paints what lanes show: slices, cells of many slices, counters, places, and the strip above. */

import { mixed } from "./raster.js";

/** @typedef {import("./colours.js").Colours} Colours */
/** @typedef {import("./raster.js").Raster} Raster */
/** @typedef {import("./source.js").Boxes} Boxes */
/** @typedef {import("./source.js").Changes} Changes */
/** @typedef {import("./source.js").Shares} Shares */

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

/**
 * Where times lie, cut to the plot.
 * @param {View} view
 * @param {number} start
 * @param {number} end
 * @returns {[number, number]} dots; the first is not before the second where nothing is seen
 */
function dots(view, start, end) {
  const scale = view.width / (view.to - view.from);
  const right = view.left + view.width;
  const from = view.left + (start - view.from) * scale;
  return [Math.max(from, view.left), Math.min(view.left + (end - view.from) * scale, right)];
}

/**
 * @param {Raster} raster
 * @param {View} view
 * @param {Boxes} boxes
 * @param {Colours} colours
 * @param {number} top
 * @param {number} bottom
 */
export function paintBoxes(raster, view, boxes, colours, top, bottom) {
  const right = view.left + view.width;
  const kinds = boxes.kinds.map((kind) => colours.of(kind));
  /** @type {number[]} */
  const cells = [];
  /** @type {number[]} */
  const slices = [];
  for (let i = 0; i < boxes.start.length; i++) {
    if (boxes.end[i] >= view.from && boxes.start[i] <= view.to) (boxes.count[i] > 1 ? cells : slices).push(i);
  }
  // Slices lie above cells: what a cell shows is shorter than it, and may be beside a slice that reaches into it.
  for (const i of [...cells, ...slices]) {
    const [from, to] = dots(view, boxes.start[i], boxes.end[i]);
    if (from >= right) continue;
    const colour = kinds[boxes.kind[i]];
    if (boxes.count[i] === 1) {
      raster.fill(from, top, Math.max(to, from + 1), bottom, colour);
      if (boxes.wait?.[i])
        paintWait(raster, view, boxes.start[i], boxes.wait[i], mixed(colour, colours.paper, PALE), top, bottom);
      // So that slices that touch stay apart.
      if (to - from > 4) raster.fill(to - 1, top, to, bottom, mixed(colour, colours.paper, 0.5));
    } else {
      const share = boxes.busy[i] / Math.max(boxes.end[i] - boxes.start[i], 1);
      const strength = Math.min(FAINTEST + (1 - FAINTEST) * share, 1);
      raster.fill(from, top, to, bottom, mixed(colours.idle, colour, strength));
    }
  }
}

/**
 * A counter as steps, from 0 or its smallest value to its largest one.
 * @param {Raster} raster
 * @param {View} view
 * @param {Changes} changes
 * @param {number} colour
 * @param {number} top
 * @param {number} bottom
 */
export function paintCounter(raster, view, changes, colour, top, bottom) {
  const { start, end, least, most, last } = changes;
  let low = 0;
  let high = 1;
  for (let i = 0; i < start.length; i++) {
    low = Math.min(low, least[i]);
    high = Math.max(high, most[i]);
  }
  /** @param {number} value */
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  for (let i = 0; i < start.length; i++) {
    const [from, to] = dots(view, start[i], end[i]);
    if (to >= from) raster.fill(from, y(most[i]), Math.max(to, from + 1), bottom, colour);
    const next = i + 1 < start.length ? start[i + 1] : view.to;
    const [hold, until] = dots(view, end[i], next);
    if (until > hold && last[i] !== low) raster.fill(hold, y(last[i]), until, bottom, colour);
  }
}

/**
 * Where something is, as a line of at least two pixels.
 * @param {Raster} raster
 * @param {View} view
 * @param {ArrayLike<number>} starts
 * @param {ArrayLike<number>} ends
 * @param {number} colour
 * @param {number} top of the line
 * @param {number} bottom
 */
export function paintPlaces(raster, view, starts, ends, colour, top, bottom) {
  const right = view.left + view.width;
  for (let i = 0; i < starts.length; i++) {
    const [from, to] = dots(view, starts[i], ends[i]);
    if (from < right && ends[i] >= view.from)
      raster.fill(from, top, Math.max(to, from + 2 * view.scale), bottom, colour);
  }
}

/**
 * Time of a communication before the last member came.
 * @param {Raster} raster
 * @param {View} view
 * @param {number} start
 * @param {number} wait
 * @param {number} colour
 * @param {number} top
 * @param {number} bottom
 */
function paintWait(raster, view, start, wait, colour, top, bottom) {
  const [from, to] = dots(view, start, start + wait);
  if (to - from >= 1) raster.fill(from, top, to, bottom, colour);
}

/**
 * Shares of what ranks did, one above the other; what lies beside others as a strip at the top.
 * @param {Raster} raster
 * @param {View} view
 * @param {Shares} shares
 * @param {Colours} colours
 * @param {(kind: string) => boolean} left whether a kind is left out
 * @param {number} top
 * @param {number} bottom
 */
export function paintShares(raster, view, shares, colours, left, top, bottom) {
  const { whole, kinds, times, from, cell } = shares;
  const last = kinds.length - 1;
  const height = bottom - top;
  const strip = height >= 10 * view.scale ? HIDDEN_HEIGHT * view.scale : 0;
  const painted = kinds.map((kind) => (left(kind) ? null : colours.of(kind)));
  const { pixels, width } = raster;
  const dot = (view.to - view.from) / view.width;
  // Dot by dot, and not by filling cells: there are many layers, and cells are about as wide as dots.
  for (let x = 0; x < view.width; x++) {
    const i = Math.floor((view.from + (x + 0.5) * dot - from) / cell);
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
      const next = bottom - Math.round((done / whole[i]) * (height - strip));
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
 * @param {Raster} raster
 * @param {View} view
 * @param {{lane: string, from: number, to: number}[]} path from one segment to the next
 * @param {Map<string, number>} bottoms key of a rank's lane → bottom of its row, dots
 * @param {Colours} colours
 */
export function paintPath(raster, view, path, bottoms, colours) {
  let before = "";
  for (const { lane, from, to } of path) {
    const bottom = bottoms.get(lane);
    const [left, right] = dots(view, from, to);
    if (bottom !== undefined && right >= left) {
      const y = bottom - 2 * view.scale;
      raster.fill(left, y, right, y + 2 * view.scale, colours.ink);
      const other = bottoms.get(before);
      if (other !== undefined && before !== lane && from >= view.from) {
        const turn = other - 2 * view.scale;
        raster.fill(left, Math.min(y, turn), left + view.scale, Math.max(y, turn), colours.turn);
      }
    }
    before = lane;
  }
}
