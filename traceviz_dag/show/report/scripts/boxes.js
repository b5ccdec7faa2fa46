/** Paints what lanes show: slices, cells of many slices, counters, places, and the strip above. */

import { mixed } from "./raster.js";

/** @typedef {{start: ArrayLike<number>, end: ArrayLike<number>, busy: ArrayLike<number>, count: ArrayLike<number>, kind: ArrayLike<number>, kinds: string[]}} Boxes what a lane shows, by start, on the axis; see ``live_source.js`` */
/** @typedef {import("./live_source.js").Changes} Changes */
/** @typedef {import("./live_source.js").Strip} Strip */
/** @typedef {import("./painter.js").View} View */
/** @typedef {import("./raster.js").Raster} Raster */

/** Cells are at least so strong, so that one short slice is seen. */
const FAINTEST = 0.3;

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
 * @param {import("./colours.js").Colours} colours
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

const BRACKET = 2;

/**
 * Where something is, as a line along one edge of a lane.
 * @param {Raster} raster
 * @param {View} view
 * @param {ArrayLike<number>} starts
 * @param {ArrayLike<number>} ends
 * @param {number} colour
 * @param {number} top of the line
 */
export function paintPlaces(raster, view, starts, ends, colour, top) {
  const right = view.left + view.width;
  for (let i = 0; i < starts.length; i++) {
    const [from, to] = dots(view, starts[i], ends[i]);
    if (from < right && ends[i] >= view.from)
      raster.fill(from, top, Math.max(to, from + 2 * view.scale), top + BRACKET * view.scale, colour);
  }
}

/**
 * The strip: busy from below, of it exposed communication on top.
 * @param {Raster} raster
 * @param {View} view
 * @param {Strip} strip
 * @param {import("./colours.js").Colours} colours
 * @param {number} top
 * @param {number} bottom
 */
export function paintStrip(raster, view, strip, colours, top, bottom) {
  raster.fill(view.left, top, view.left + view.width, bottom, colours.idle);
  for (let i = 0; i < strip.start.length; i++) {
    const whole = (strip.end[i] - strip.start[i]) * strip.lanes;
    const [from, to] = dots(view, strip.start[i], strip.end[i]);
    if (!whole || to < from || !strip.busy[i]) continue;
    const busy = bottom - (strip.busy[i] / whole) * (bottom - top);
    const exposed = busy + (strip.exposed[i] / whole) * (bottom - top);
    raster.fill(from, busy, Math.max(to, from + 1), bottom, colours.of("computation"));
    if (strip.exposed[i]) raster.fill(from, busy, Math.max(to, from + 1), exposed, colours.of("exposed"));
  }
}
