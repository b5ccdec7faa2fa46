/** What is written on a timeline, above what was filled: labels, names, ruler, frames, marks. */

import { SIGNS } from "./panel.js";
import { drawRuler } from "./ruler.js";
import { ABOVE, fitted, OVERVIEW, RULER } from "./stage.js";

/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./source.js").Place} Place */
/** @typedef {import("./timeline.js").Timeline} Timeline */
/** @typedef {{ink: string, quiet: string, attention: string}} Inks */

/** Colour of texts on slices, which are light in both designs. */
const ON_SLICES = "#22262B";
const ON_PAPER = { ink: "#000000", quiet: "#444444", attention: "#c2185b" };
const MOST_LETTERS = 12;
/** Pixels of the narrowest slice that shows its name. */
const LEAST_NAMED = 26;
/** Pixels of the narrowest micro-batch that shows its number. */
const LEAST_NUMBERED = 10;
/** Of a bracket that marks a place of a finding, pixels. */
const BRACKET = { line: 2, tick: 6, narrowest: 4 };
const TINT = 0.14;

export class Writer {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /** @returns {Inks} */
  get inks() {
    if (this.timeline.onPaper) return ON_PAPER;
    const style = getComputedStyle(document.documentElement);
    const [ink, quiet, attention] = ["--ink", "--quiet", "--attention"].map((name) => style.getPropertyValue(name));
    return { ink, quiet, attention };
  }

  /** Texts, ruler, selection and marks. @param {Row[]} visible */
  write(visible) {
    const { context, scale, view, looking, tiles, canvas } = this.timeline;
    const { inks } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const left = view.left / scale;
    const width = view.width / scale;
    this.timeline.writeOverview(left, width, inks.ink, tiles.strip?.label ?? "");
    drawRuler(context, looking, { left, width, top: OVERVIEW, height: RULER }, inks.quiet);
    for (const start of this.timeline.marks.starts) {
      const x = this.x(start);
      if (x >= left && x <= left + width) context.fillRect(Math.round(x), OVERVIEW, 2, RULER);
    }
    this.signs(left, width, inks);
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, left + width, canvas.clientHeight);
    context.clip();
    for (const row of visible) {
      this.label(row, left, inks);
      for (const band of this.timeline.bandsOf(row))
        if (band.boxes)
          this.names(row, band.boxes, this.top(row) + band.top * row.height, (band.bottom - band.top) * row.height);
    }
    this.places(visible, inks);
    this.chosen(visible, inks);
    this.timeline.writeSelection(left, width, inks.attention);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Where a time lies, in pixels of the page. @param {number} time */
  x(time) {
    const { view, scale } = this.timeline;
    return (view.left + ((time - view.from) / (view.to - view.from)) * view.width) / scale;
  }

  /** Where a row lies on the canvas. @param {Row} row */
  top(row) {
    return row.top - this.timeline.scroll + ABOVE;
  }

  /** What is written beside a row. @param {Row} row @param {number} left @param {Inks} inks */
  label(row, left, { ink, quiet, attention }) {
    const { lanes, marks, context } = this.timeline;
    const { lane, depth, pinned } = row;
    const sign = lane.holds ? (lanes.isOpen(lane.key) ? "▾ " : "▸ ") : "";
    const indent = 6 + 12 * depth;
    const middle = this.top(row) + row.height / 2;
    const size = Math.min(MOST_LETTERS - (lane.parent === null ? 0 : 1), row.height - 1);
    if (size < 7) return;
    context.fillStyle = lane.parent === null ? ink : quiet;
    context.font = `${lane.kind === "group" ? "600 " : ""}${size}px system-ui, sans-serif`;
    context.fillText((pinned ? "• " : "") + sign + lane.label, indent, middle, left - indent - 14);
    context.fillStyle = attention;
    if (marks.blamed.has(lane.key)) context.fillText("▲", left - 12, middle);
  }

  /**
   * Names on slices: as many as fit side by side, so that a frame stays short.
   * @param {Row} row @param {import("./source.js").Boxes} boxes @param {number} top @param {number} height pixels
   */
  names(row, boxes, top, height) {
    if (height < 9 || (row.lane.holds && height < 11)) return;
    const { context, view } = this.timeline;
    context.font = `${Math.min(height - 3, 10)}px system-ui, sans-serif`;
    const least = boxes.lane.endsWith("/microbatches") ? LEAST_NUMBERED : LEAST_NAMED;
    let room = view.width / view.scale / least;
    for (let i = 0; i < boxes.start.length && room > 0; i++) {
      if (boxes.count[i] !== 1 || boxes.name[i] < 0) continue;
      if (this.name(boxes.start[i], boxes.end[i], boxes.names[boxes.name[i]], least, top + height / 2)) room--;
    }
  }

  /**
   * A name on a slice, where there is room; whether there was.
   * @param {number} from @param {number} to time on the axis
   * @param {string} name
   * @param {number} least pixels of a slice that is named
   * @param {number} middle pixels
   */
  name(from, to, name, least, middle) {
    const { context, view, scale } = this.timeline;
    const left = Math.max(this.x(from), view.left / scale);
    const wide = Math.min(this.x(to), (view.left + view.width) / scale) - left;
    if (wide < least) return false;
    context.fillStyle = ON_SLICES;
    const { text, centred } = fitted(name, wide);
    context.textAlign = centred ? "center" : "start";
    context.fillText(text, centred ? left + wide / 2 : left + 2, middle + 0.5, wide - 3);
    context.textAlign = "start";
    return true;
  }

  /** Signs where findings, notes and bookmarks begin. @param {number} left @param {number} width @param {Inks} inks */
  signs(left, width, { attention, ink }) {
    const { context, marks } = this.timeline;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    const drawn = new Set();
    for (const { from, sign } of marks.inTime) {
      const at = Math.round(this.x(from));
      if (at < left || at > left + width || drawn.has(`${at}${sign}`)) continue;
      drawn.add(`${at}${sign}`);
      context.fillStyle = sign === SIGNS.finding ? attention : ink;
      context.fillText(sign, at, ABOVE - 5);
    }
    context.textAlign = "start";
  }

  /** A bracket above each place of a finding; those of one that was chosen are tinted, too. @param {Row[]} visible @param {Inks} inks */
  places(visible, { ink, attention }) {
    const { context, view, scale, marks } = this.timeline;
    const [left, right] = [view.left / scale, (view.left + view.width) / scale];
    for (const row of visible) {
      const top = this.top(row);
      for (const place of marks.placed.get(row.lane.key) ?? []) {
        const [begin, end] = [this.x(place.from), this.x(place.to)];
        const from = Math.max(begin, left);
        const width = Math.min(Math.max(end, begin + BRACKET.narrowest), right) - from;
        if (width <= 0 || begin > right) continue;
        context.fillStyle = ink;
        context.fillRect(from, top, width, BRACKET.line);
        if (begin >= left) context.fillRect(from, top, 1, BRACKET.tick);
        if (end <= right) context.fillRect(from + width - 1, top, 1, BRACKET.tick);
        if (marks.chosen === null) continue;
        context.globalAlpha = TINT;
        context.fillStyle = attention;
        context.fillRect(from, top, width, row.height);
        context.globalAlpha = 1;
      }
    }
  }

  /** The lane that keys act on; what is chosen, its peers, and its launch. @param {Row[]} visible @param {Inks} inks */
  chosen(visible, { ink, attention }) {
    const { chosen, lane, context, labels } = this.timeline;
    const current = visible.find((row) => row.lane.key === lane);
    if (current) {
      context.globalAlpha = 0.15;
      context.fillStyle = attention;
      context.fillRect(0, this.top(current), labels, current.height);
      context.globalAlpha = 1;
    }
    if (chosen === null) return;
    for (const peer of chosen.peers) this.frame(this.rowOf(visible, peer), peer, attention, 1.5);
    for (const also of chosen.also ?? []) this.frame(this.rowOf(visible, { ...chosen, lane: also }), chosen, ink, 2);
    const row = this.rowOf(visible, chosen);
    this.frame(row, chosen, ink, 2);
    const other = chosen.launch && this.rowOf(visible, chosen.launch);
    if (row === undefined || !other || row === other) return;
    const launches = chosen.from < chosen.launch.from;
    const [call, kernel] = launches ? [chosen, chosen.launch] : [chosen.launch, chosen];
    const [from, to] = launches ? [row, other] : [other, row];
    this.arrow(
      { x: this.x(call.to), y: this.top(from) + from.height / 2 },
      { x: this.x(kernel.from), y: this.top(to) + to.height / 2 },
      ink,
    );
  }

  /** The innermost row that shows a slice. @param {Row[]} visible @param {{lane: string, around: string[]}} place */
  rowOf(visible, { lane, around }) {
    const key = [lane, ...around.toReversed()].find((each) => this.timeline.lanes.rowOf(each));
    return visible.find((row) => row.lane.key === key);
  }

  /** @param {{x: number, y: number}} from @param {{x: number, y: number}} to @param {string} ink */
  arrow(from, to, ink) {
    const { context } = this.timeline;
    const up = from.y > to.y ? 1 : -1;
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.moveTo(to.x - 5, to.y + 6 * up);
    context.lineTo(to.x, to.y);
    context.lineTo(to.x + 3, to.y + 7 * up);
    context.stroke();
    context.lineWidth = 1;
  }

  /**
   * A frame around a slice of a row.
   * @param {Row | undefined} row
   * @param {{from: number, to: number}} place time on the axis
   * @param {string} colour
   * @param {number} line pixels
   */
  frame(row, { from, to }, colour, line) {
    if (row === undefined) return;
    const { context, view, scale } = this.timeline;
    const left = Math.max(this.x(from), view.left / scale);
    const right = Math.min(this.x(to), (view.left + view.width) / scale + 1);
    if (right < view.left / scale || left > (view.left + view.width) / scale) return;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(left - 1, this.top(row), Math.max(right - left + 2, 3), row.height);
    context.lineWidth = 1;
  }
}
