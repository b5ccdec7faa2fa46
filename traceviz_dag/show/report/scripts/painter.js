/** Paints rows: shares of bins where much lies on a dot, else micro-batches and kernels. */

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
    const { categories, parts, kinds } = this.model.document;
    this.colours = colours;
    this.categories = categories.map((kind) => colours.of(kind));
    this.parts = parts.map((kind) => colours.of(kind));
    /** @type {Record<string, number[]>} */
    this.kinds = Object.fromEntries(
      Object.entries(kinds).map(([name, words]) => [name, words.map((kind) => colours.of(kind))]),
    );
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
   * Slices of a lane. Those thinner than a dot share it: the widest colour wins, as strong as all together cover it.
   * @param {Raster} raster
   * @param {View} view
   * @param {Lane} lane
   * @param {number} top
   * @param {number} bottom
   */
  kernels(raster, view, lane, top, bottom) {
    const { rank, slices } = lane;
    const at = this.model.at(rank);
    const perNs = view.width / (view.to - view.from);
    const right = view.left + view.width;
    const last = slices.startingBefore(view.to - at);
    const { cover } = this;
    let dot = -1;
    const flush = () => {
      if (dot < view.left || dot >= right) return;
      let best = 0;
      let sum = 0;
      for (let i = 0; i < this.categories.length; i++) {
        sum += cover[i];
        if (cover[i] > cover[best]) best = i;
      }
      const colour = mixed(this.colours.idle, this.categories[best], Math.min(0.3 + 0.7 * sum, 1));
      raster.fill(dot, top, dot + 1, bottom, colour);
    };
    for (let i = slices.firstAfter(view.from - at); i < last; i++) {
      const kernel = lane.kernel(i);
      const left = view.left + (slices.start[i] + at - view.from) * perNs;
      const wide = slices.length[i] * perNs;
      const signature = rank.signature[kernel];
      const colour = this.categories[this.model.category[signature]];
      if (wide < 1) {
        const here = Math.floor(left);
        if (here !== dot) {
          if (dot >= 0) flush();
          cover.fill(0);
          dot = here;
        }
        cover[this.model.category[signature]] += Math.max(wide, 1e-6);
      } else {
        const from = Math.max(left, view.left);
        const to = Math.min(left + wide, right);
        if (to <= view.left || from >= right) continue;
        raster.fill(from, top, to, bottom, colour);
        this.wait(raster, view, lane, i, kernel, left, wide, top, bottom);
      }
      if (this.found?.[signature]) {
        raster.fill(
          Math.max(left, view.left),
          bottom - 3 * view.scale,
          Math.min(left + Math.max(wide, 1), right),
          bottom,
          this.colours.match,
        );
      }
    }
    if (dot >= 0) flush();
  }

  /**
   * The wait of a communication in a paler tone: time before the last member came.
   * @param {Raster} raster
   * @param {View} view
   * @param {Lane} lane
   * @param {number} slice
   * @param {number} kernel
   * @param {number} left
   * @param {number} wide
   * @param {number} top
   * @param {number} bottom
   */
  wait(raster, view, lane, slice, kernel, left, wide, top, bottom) {
    const { rank } = lane;
    if (wide < 2 || this.model.kind[rank.signature[kernel]] !== 1) return;
    const place = rank.waitOf(kernel);
    if (place === undefined || rank.waitLength[place] <= 1) return;
    const share = Math.min((rank.waitLength[place] - 1) / Math.max(lane.slices.length[slice], 1), 1);
    const to = Math.min(left + wide * share, view.left + view.width);
    const from = Math.max(left, view.left);
    if (to <= from) return;
    const colour = this.categories[this.model.category[rank.signature[kernel]]];
    raster.fill(from, top, to, bottom, mixed(colour, this.colours.paper, 0.55));
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
  host(raster, view, rank, host, top, bottom) {
    const { slices, kinds, kind, name } = host;
    const found = this.foundHosts;
    const matches = found && ((/** @type {number} */ i) => found[name[i]] !== 0);
    this.slices(raster, view, this.model.at(rank), slices, kinds, kind, top, bottom, matches);
  }

  /**
   * Slices by their kinds; of those thinner than a dot the first one's colour wins.
   * @param {Raster} raster
   * @param {View} view
   * @param {number} at where their rank begins on the axis
   * @param {Slices} slices
   * @param {Float64Array} kinds place of each in the kinds of that name
   * @param {string} named
   * @param {number} top
   * @param {number} bottom
   * @param {((slice: number) => boolean) | null} [matches] which a search found
   */
  slices(raster, view, at, slices, kinds, named, top, bottom, matches = null) {
    const colours = this.kinds[named];
    const right = view.left + view.width;
    const last = slices.startingBefore(view.to - at);
    let dot = -1;
    for (let i = slices.firstAfter(view.from - at); i < last; i++) {
      const start = slices.start[i] + at;
      const [from, to] = this.dots(view, start, start + slices.length[i]);
      const found = matches?.(i);
      if (to - from < 1) {
        const here = Math.floor(from);
        if (here === dot && !found) continue;
        dot = here;
      }
      if (to <= view.left || from >= right) continue;
      const left = Math.max(from, view.left);
      raster.fill(left, top, Math.min(to, right), bottom, colours[kinds[i]]);
      if (to - from > 3) raster.fill(Math.min(to, right) - 1, top, Math.min(to, right), bottom, this.colours.paper);
      if (found)
        raster.fill(left, bottom - 3 * view.scale, Math.min(Math.max(to, from + 1), right), bottom, this.colours.match);
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
