/** Paints rows: shares of bins where much lies on a dot, else micro-batches and kernels. */

import { mixed, pixel } from "./raster.js";

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

/** Ranges and calls of hosts: tones that are none of the kernels'. */
const RANGES = ["#8FBF9F", "#A9B8E0", "#D9C58B", "#C7A9D9", "#8FC7CF", "#D9A98F"];
const CALLS = { usual: "#B9C0C8", launching: "#7FA7D1", waiting: "#D98C8C" };
const WAITING = /Synchronize|StreamWait|EventQuery|StreamQuery/;

/** Dots a bin may be wide before kernels are drawn instead. */
const WIDEST_BIN = 3;
const HIDDEN_HEIGHT = 3;
/** Of a rank's row: what micro-batches take above kernels. */
export const STEPS_SHARE = 0.45;

/** The colours of a page: light or dark. */
export class Colours {
  /**
   * @param {Model} model
   * @param {boolean} dark
   */
  constructor(model, dark) {
    this.paper = pixel(dark ? "#16191D" : "#FFFFFF");
    // Dark enough for pale colours, and light enough for the dark ones of communication.
    this.idle = pixel(dark ? "#4B525B" : "#ECEAE6");
    this.rule = pixel(dark ? "#3A4048" : "#D5D9DE");
    this.header = pixel(dark ? "#1E2227" : "#F3F4F6");
    this.categories = model.document.categories.map((word) => pixel(word.colour));
    this.parts = model.document.parts.map((word) => pixel(word.colour));
    const name = new Map(model.document.categories.map((word, place) => [word.name, place]));
    /** @param {string} category */
    const of = (category) => this.categories[name.get(category) ?? 0];
    this.forward = [of("fwd_computation"), pixel("#B8D5FA")];
    this.backward = [of("bwd_computation"), pixel("#F7D4A6")];
    this.blocked = of("pp_communication");
    this.starved = pixel("#D9A21B");
    // Of a profile a gap is a time without any operation, which is no category.
    this.unexplained = name.has("other_computation") ? of("other_computation") : pixel("#A3A9B2");
    this.path = pixel(dark ? "#FFFFFF" : "#000000");
    this.turn = pixel(dark ? "#8A9099" : "#68707A");
    this.match = pixel("#C2185B");
    /** per name of a range or call: how it is painted as either */
    this.ranges = (model.document.host_names ?? []).map((_, place) => pixel(RANGES[place % RANGES.length]));
    this.calls = (model.document.host_names ?? []).map((name) =>
      pixel(WAITING.test(name) ? CALLS.waiting : /Launch/.test(name) ? CALLS.launching : CALLS.usual),
    );
  }
}

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
    /** @type {Uint8Array | null} per signature, whether a search found it */
    this.found = null;
    /** @type {Uint8Array | null} per name of a range or call, likewise */
    this.foundHosts = null;
    this.cover = new Float64Array(256);
    /** per part of a bin, whether it is left out */
    this.hiddenParts = new Uint8Array(model.document.parts.length);
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
      if (this.rows.folded.has(row.key)) this.shares(raster, view, row.ranks, top + 2, bottom - 2);
      return;
    }
    const rank = /** @type {Rank} */ (row.rank);
    const at = this.model.at(rank);
    const edge = bottom - (bottom - top > 6 * view.scale ? 1 : 0);
    this.ground(raster, view, at, rank.length, top, edge);
    if (row.kind === "steps") this.steps(raster, view, rank, top, edge);
    else if (row.kind === "gaps") this.gaps(raster, view, rank, top, edge);
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
        for (let line = next; line < y; line++) pixels[line * width + view.left + x] = this.colours.parts[part];
        y = Math.min(y, next);
      }
      if (strip && sums[count - 1] && !this.hiddenParts[count - 1]) {
        const colour = mixed(this.colours.idle, this.colours.parts[count - 1], Math.min(sums[count - 1] / whole, 1));
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
      for (let i = 0; i < this.colours.categories.length; i++) {
        sum += cover[i];
        if (cover[i] > cover[best]) best = i;
      }
      const colour = mixed(this.colours.idle, this.colours.categories[best], Math.min(0.3 + 0.7 * sum, 1));
      raster.fill(dot, top, dot + 1, bottom, colour);
    };
    for (let i = slices.firstAfter(view.from - at); i < last; i++) {
      const kernel = lane.kernel(i);
      const left = view.left + (slices.start[i] + at - view.from) * perNs;
      const wide = slices.length[i] * perNs;
      const signature = rank.signature[kernel];
      const colour = this.colours.categories[this.model.category[signature]];
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
    const colour = this.colours.categories[this.model.category[rank.signature[kernel]]];
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
    const at = this.model.at(rank);
    const last = rank.steps.startingBefore(view.to - at);
    for (let i = rank.steps.firstAfter(view.from - at); i < last; i++) {
      const start = rank.steps.start[i] + at;
      const [left, right] = this.dots(view, start, start + rank.steps.length[i]);
      const colours = rank.stepBackward[i] ? this.colours.backward : this.colours.forward;
      const colour = colours[Math.max(rank.stepChunk[i] - 1, 0) % 2];
      const from = Math.max(left, view.left);
      const to = Math.min(right, view.left + view.width);
      if (to <= view.left || from >= view.left + view.width) continue;
      raster.fill(from, top, to, bottom, colour);
      if (right - left > 3) raster.fill(Math.max(to - 1, from), top, to, bottom, this.colours.paper);
    }
  }

  /**
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank} rank
   * @param {number} top
   * @param {number} bottom
   */
  gaps(raster, view, rank, top, bottom) {
    const at = this.model.at(rank);
    const last = rank.gaps.startingBefore(view.to - at);
    const right = view.left + view.width;
    for (let i = rank.gaps.firstAfter(view.from - at); i < last; i++) {
      let start = rank.gaps.start[i] + at;
      const end = start + rank.gaps.length[i];
      for (const [length, colour] of [
        [rank.gapBlocked[i], this.colours.blocked],
        [rank.gapStarved[i], this.colours.starved],
        [end - start - rank.gapBlocked[i] - rank.gapStarved[i], this.colours.unexplained],
      ]) {
        if (length <= 0) continue;
        const [from, to] = this.dots(view, start, start + length);
        if (to > view.left && from < right)
          raster.fill(Math.max(from, view.left), top, Math.min(to, right), bottom, colour);
        start += length;
      }
    }
  }

  /**
   * Ranges or calls of a host; those thinner than a dot share it, and the last one's colour wins.
   * @param {Raster} raster
   * @param {View} view
   * @param {Rank} rank
   * @param {Host} host
   * @param {number} top
   * @param {number} bottom
   */
  host(raster, view, rank, host, top, bottom) {
    const at = this.model.at(rank);
    const colours = host.kind === "range" ? this.colours.ranges : this.colours.calls;
    const right = view.left + view.width;
    const last = host.slices.startingBefore(view.to - at);
    let dot = -1;
    for (let i = host.slices.firstAfter(view.from - at); i < last; i++) {
      const start = host.slices.start[i] + at;
      const [from, to] = this.dots(view, start, start + host.slices.length[i]);
      const found = this.foundHosts?.[host.name[i]];
      if (to - from < 1) {
        const here = Math.floor(from);
        if (here === dot && !found) continue;
        dot = here;
      }
      if (to <= view.left || from >= right) continue;
      const left = Math.max(from, view.left);
      raster.fill(left, top, Math.min(to, right), bottom, colours[host.name[i]]);
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
    const { rank, start, length } = this.model.path;
    let before = -1;
    for (let i = 0; i < rank.length; i++) {
      const band = middles.get(rank[i]);
      const at = start[i] + this.model.at(this.model.ranks[rank[i]]);
      const [left, right] = this.dots(view, at, at + length[i]);
      const inside = right >= view.left && left <= view.left + view.width;
      if (band && inside) {
        const y = band[1] - 2 * view.scale;
        raster.fill(
          Math.max(left, view.left),
          y,
          Math.min(right, view.left + view.width),
          y + 2 * view.scale,
          this.colours.path,
        );
        const other = before >= 0 ? middles.get(before) : undefined;
        if (other && before !== rank[i] && left >= view.left) {
          const from = other[1] - 2 * view.scale;
          raster.fill(left, Math.min(y, from), left + view.scale, Math.max(y, from), this.colours.turn);
        }
      }
      before = rank[i];
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
