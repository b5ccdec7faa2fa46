/** Paints rows: shares of bins where much lies on a dot, else micro-batches and kernels. */

import { paintBoxes, paintPlaces } from "./boxes.js";
import { mixed } from "./raster.js";

/** @typedef {import("./colours.js").Colours} Colours */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./model.js").Slices} Slices */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./lanes.js").Rows} Rows */
/** @typedef {import("./lanes.js").Lane} Lane */
/** @typedef {import("./model.js").Host} Host */
/** @typedef {import("./raster.js").Raster} Raster */

/**
 * @typedef {object} View
 * @property {number} from ns on the axis
 * @property {number} to
 * @property {number} left first dot of the plot
 * @property {number} width dots of the plot
 * @property {number} scale dots a CSS pixel
 */

/** Dots a bin may be wide before kernels are drawn instead. */
const WIDEST_BIN = 3;
const HIDDEN_HEIGHT = 3;
/** Of a rank's row: what micro-batches take above kernels. */
export const STEPS_SHARE = 0.45;

export class Painter {
  /**
   * @param {Model} model
   * @param {Rows} rows
   * @param {Colours} colours
   */
  constructor(model, rows, colours) {
    this.model = model;
    this.rows = rows;
    this.colours = colours;
    /** @type {number[]} */
    this.categories = [];
    /** @type {number[]} */
    this.parts = [];
    this.coloured(colours);
    /** @type {Uint8Array | null} per signature, whether a search found it */
    this.found = null;
    /** @type {Uint8Array | null} per name of a range or call, likewise */
    this.foundHosts = null;
    this.cover = new Float64Array(256);
    /** per part of a bin, whether it is left out */
    this.hiddenParts = new Uint8Array(model.document.parts.length);
  }

  /** Paint in other colours. @param {Colours} colours */
  coloured(colours) {
    const { categories, parts } = this.model.document;
    this.colours = colours;
    this.categories = categories.map((kind) => colours.of(kind));
    this.parts = parts.map((kind) => colours.of(kind));
  }

  /**
   * Paint a row.
   * @param {Raster} raster
   * @param {View} view
   * @param {Row} row
   * @param {number} top dots
   * @param {number} bottom
   */
  row(raster, view, row, top, bottom) {
    const { colours } = this;
    if (row.kind === "group") {
      raster.fill(0, top, raster.width, bottom, colours.header);
      if (this.rows.grouping.folded.has(row.key)) this.shares(raster, view, row.ranks, top + 2, bottom - 2);
      return;
    }
    const rank = /** @type {Rank} */ (row.rank);
    const at = this.model.at(rank);
    const edge = bottom - (bottom - top > 6 * view.scale ? 1 : 0);
    if (row.kind === "thread") return;
    this.ground(raster, view, at, rank.length, top, edge);
    if (row.kind === "steps") this.steps(raster, view, rank, top, edge);
    else if (row.kind === "gaps") this.slices(raster, view, at, rank.gaps, rank.gapKind, "gap", top, edge);
    else if (row.kind === "path") this.slices(raster, view, at, rank.path, rank.pathKind, "path", top, edge);
    else if (row.host) this.host(raster, view, rank, row.host, top, edge);
    else if (row.lane) this.kernels(raster, view, row.lane, top, edge);
    else this.rank(raster, view, rank, top, edge);
  }

  /**
   * A rank in one row: micro-batches above where there is room, below them shares, or kernels where these are wide.
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank} rank
   * @param {number} top
   * @param {number} bottom
   */
  rank(raster, view, rank, top, bottom) {
    const each = (view.width * this.model.document.bin_ns) / (view.to - view.from);
    const binned = rank.bins.length > 0;
    let below = top;
    if (rank.steps.start.length && (bottom - top >= 14 * view.scale || !binned)) {
      below = binned ? top + Math.round((bottom - top) * STEPS_SHARE) : bottom;
      this.steps(raster, view, rank, top, below);
    }
    if (!binned) return;
    if (each <= WIDEST_BIN * view.scale || !rank.kernels.start.length) {
      this.shares(raster, view, [rank], below, bottom);
      return;
    }
    if (!this.model.document.whole) this.shares(raster, view, [rank], below, bottom);
    const { computation, communication } = this.rows.halvesOf(rank);
    const middle = below + Math.round((bottom - below) * 0.6);
    this.kernels(raster, view, computation, below, middle);
    this.kernels(raster, view, communication, middle, bottom);
  }

  /**
   * What a rank's own time is drawn on: idle until something covers it.
   * @param {Raster} raster
   * @param {View} view
   * @param {number} at
   * @param {number} length
   * @param {number} top
   * @param {number} bottom
   */
  ground(raster, view, at, length, top, bottom) {
    const [left, right] = this.dots(view, at, at + length);
    if (right > view.left && left < view.left + view.width) {
      raster.fill(Math.max(left, view.left), top, Math.min(right, view.left + view.width), bottom, this.colours.idle);
    }
  }

  /**
   * Shares of what ranks did, dot by dot, one above the other; what is hidden as a strip at the top.
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank[]} ranks the mean of these
   * @param {number} top
   * @param {number} bottom
   */
  shares(raster, view, ranks, top, bottom) {
    const { parts, bin_ns: bin } = this.model.document;
    const count = parts.length;
    const sums = new Float64Array(count);
    const height = bottom - top;
    const dot = (view.to - view.from) / view.width;
    const strip = height >= 10 * view.scale ? HIDDEN_HEIGHT * view.scale : 0;
    const { pixels, width } = raster;
    for (let x = 0; x < view.width; x++) {
      const from = view.from + x * dot;
      sums.fill(0);
      let covered = 0;
      for (const rank of ranks) {
        const start = from - this.model.at(rank);
        if (start + dot <= 0 || start >= rank.length) continue;
        const first = Math.max(Math.floor(start / bin), 0);
        const last = Math.min(Math.max(Math.ceil((start + dot) / bin), first + 1), rank.bins.length / count);
        for (let i = first; i < last; i++) {
          covered++;
          const from = i * count;
          for (let part = 0; part < count; part++) sums[part] += rank.bins[from + part];
        }
      }
      if (!covered) continue;
      const whole = covered * bin;
      let y = bottom;
      let done = 0;
      for (let part = 0; part < count - 1; part++) {
        if (!sums[part] || this.hiddenParts[part]) continue;
        done += sums[part];
        const next = bottom - Math.round((done / whole) * (height - strip));
        for (let line = next; line < y; line++) pixels[line * width + view.left + x] = this.parts[part];
        y = Math.min(y, next);
      }
      if (strip && sums[count - 1] && !this.hiddenParts[count - 1]) {
        const colour = mixed(this.colours.idle, this.parts[count - 1], Math.min(sums[count - 1] / whole, 1));
        for (let line = top; line < top + strip; line++) pixels[line * width + view.left + x] = colour;
      }
    }
  }

  /**
   * The kernels of a lane.
   * @param {Raster} raster
   * @param {View} view
   * @param {Lane} lane
   * @param {number} top
   * @param {number} bottom
   */
  kernels(raster, view, lane, top, bottom) {
    const { rank, slices } = lane;
    const at = this.model.at(rank);
    const { categories } = this.model.document;
    /** @param {number} i */
    const signature = (i) => rank.signature[lane.kernel(i)];
    const boxes = this.boxes(view, at, slices, (i) => this.model.category[signature(i)], categories);
    paintBoxes(raster, view, boxes, this.colours, top, bottom);
    boxes.row.forEach((i, place) => {
      if (boxes.count[place] === 1) this.wait(raster, view, lane, i, boxes.start[place], top, bottom);
    });
    const { found } = this;
    if (found) this.matches(raster, view, at, slices, (i) => found[signature(i)], bottom);
  }

  /**
   * The wait of a communication in a paler tone: time before the last member came.
   * @param {Raster} raster
   * @param {View} view
   * @param {Lane} lane
   * @param {number} slice
   * @param {number} start on the axis
   * @param {number} top
   * @param {number} bottom
   */
  wait(raster, view, { rank, slices, ...lane }, slice, start, top, bottom) {
    const kernel = lane.chosen === null ? slice : lane.chosen[slice];
    const signature = rank.signature[kernel];
    const place = this.model.kind[signature] === 1 ? rank.waitOf(kernel) : undefined;
    if (place === undefined || rank.waitLength[place] <= 1) return;
    const [left, right] = this.dots(view, start, start + Math.min(rank.waitLength[place] - 1, slices.length[slice]));
    const from = Math.max(left, view.left);
    const to = Math.min(right, view.left + view.width);
    const colour = mixed(this.categories[this.model.category[signature]], this.colours.paper, 0.55);
    if (to - from >= 1) raster.fill(from, top, to, bottom, colour);
  }

  /**
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank} rank
   * @param {number} top
   * @param {number} bottom
   */
  steps(raster, view, rank, top, bottom) {
    this.slices(raster, view, this.model.at(rank), rank.steps, rank.stepKind, "step", top, bottom);
  }

  /**
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank} rank
   * @param {Host} host
   * @param {number} top
   * @param {number} bottom
   */
  host(raster, view, rank, { slices, kinds, kind, name }, top, bottom) {
    const at = this.model.at(rank);
    this.slices(raster, view, at, slices, kinds, kind, top, bottom);
    const found = this.foundHosts;
    if (found) this.matches(raster, view, at, slices, (i) => found[name[i]], bottom);
  }

  /**
   * Slices by their kinds.
   * @param {Raster} raster
   * @param {View} view
   * @param {number} at where their rank begins on the axis
   * @param {Slices} slices
   * @param {Float64Array} kinds place of each in the kinds of that name
   * @param {string} named
   * @param {number} top
   * @param {number} bottom
   */
  slices(raster, view, at, slices, kinds, named, top, bottom) {
    const boxes = this.boxes(view, at, slices, (i) => kinds[i], this.model.document.kinds[named]);
    paintBoxes(raster, view, boxes, this.colours, top, bottom);
  }

  /**
   * What is drawn of slices: those of a dot that are thinner than it are one cell, of the kind that fills most of it.
   * @param {View} view
   * @param {number} at where their rank begins on the axis
   * @param {Slices} slices
   * @param {(slice: number) => number} place of a slice's kind
   * @param {string[]} kinds
   */
  boxes(view, at, slices, place, kinds) {
    const dot = (view.to - view.from) / view.width;
    const { cover } = this;
    /** @type {Record<"start" | "end" | "busy" | "count" | "kind" | "row", number[]>} */
    const found = { start: [], end: [], busy: [], count: [], kind: [], row: [] };
    let cell = -1;
    const last = slices.startingBefore(view.to - at);
    for (let i = slices.firstAfter(view.from - at); i < last; i++) {
      const start = slices.start[i] + at;
      const length = slices.length[i];
      const kind = place(i);
      const here = Math.floor((start - view.from) / dot);
      const before = found.start.length - 1;
      if (length < dot && here === cell) {
        cover[kind] += length;
        found.busy[before] = Math.min(found.busy[before] + length, dot);
        found.count[before] = 2;
        if (cover[kind] > cover[found.kind[before]]) found.kind[before] = kind;
        continue;
      }
      cell = length < dot ? here : -1;
      cover.fill(0);
      cover[kind] = length;
      const from = length < dot ? view.from + here * dot : start;
      found.start.push(from);
      found.end.push(length < dot ? from + dot : start + length);
      found.busy.push(length);
      found.count.push(length < dot ? 2 : 1);
      found.kind.push(kind);
      found.row.push(i);
    }
    return { ...found, kinds };
  }

  /**
   * A line below what a search found.
   * @param {Raster} raster
   * @param {View} view
   * @param {number} at where their rank begins on the axis
   * @param {Slices} slices
   * @param {(slice: number) => unknown} matches
   * @param {number} bottom
   */
  matches(raster, view, at, slices, matches, bottom) {
    const last = slices.startingBefore(view.to - at);
    for (let i = slices.firstAfter(view.from - at); i < last; i++) {
      const start = slices.start[i] + at;
      if (matches(i))
        paintPlaces(raster, view, [start], [start + slices.length[i]], this.colours.match, bottom - 3 * view.scale);
    }
  }

  /**
   * The critical path, as a line through the ranks' rows.
   * @param {Raster} raster
   * @param {View} view
   * @param {Map<number, [number, number]>} middles place of a rank → top and bottom of its row, dots
   */
  path(raster, view, middles) {
    /** @type {Rank | null} */
    let before = null;
    for (const { rank, index } of this.model.path) {
      const band = middles.get(rank.place);
      const at = rank.path.start[index] + this.model.at(rank);
      const [left, right] = this.dots(view, at, at + rank.path.length[index]);
      const inside = right >= view.left && left <= view.left + view.width;
      if (band && inside) {
        const y = band[1] - 2 * view.scale;
        const end = Math.min(right, view.left + view.width);
        raster.fill(Math.max(left, view.left), y, end, y + 2 * view.scale, this.colours.ink);
        const other = before === null ? undefined : middles.get(before.place);
        if (other && before !== rank && left >= view.left) {
          const from = other[1] - 2 * view.scale;
          raster.fill(left, Math.min(y, from), left + view.scale, Math.max(y, from), this.colours.turn);
        }
      }
      before = rank;
    }
  }

  /**
   * @param {View} view
   * @param {number} from ns on the axis
   * @param {number} to
   * @returns {[number, number]} dots
   */
  dots(view, from, to) {
    const perNs = view.width / (view.to - view.from);
    return [view.left + (from - view.from) * perNs, view.left + (to - view.from) * perNs];
  }
}
