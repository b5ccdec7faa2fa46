/** What is written on the timeline: names, numbers, frames and arrows, above what was filled. */

import { extent } from "./details.js";
import { STEPS_SHARE } from "./painter.js";
import { drawRuler } from "./ruler.js";
import { ABOVE, fitted, LEAST_NAMED, OVERVIEW, RULER } from "./stage.js";
import { shortened } from "./words.js";

/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./details.js").Chosen} Chosen */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./timeline.js").Timeline} Timeline */

/** Colour of texts on slices, which are light in both designs. */
const ON_SLICES = "#22262B";

export class Writer {
  /** @param {Timeline} timeline whose rows and choice are written */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /**
   * Texts, ruler, selection and marks, above what was filled.
   * @param {Row[]} visible
   */
  write(visible) {
    const { context, scale, view } = this.timeline;
    const style = getComputedStyle(document.documentElement);
    const ink = this.timeline.onPaper ? "#000000" : style.getPropertyValue("--ink");
    const quiet = this.timeline.onPaper ? "#444444" : style.getPropertyValue("--quiet");
    const attention = this.timeline.onPaper ? "#c2185b" : style.getPropertyValue("--attention");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const left = view.left / scale;
    const width = view.width / scale;
    this.timeline.writeOverview(left, width, ink, `mean of all ${this.timeline.model.document.member}s`);
    this.ruler(left, width, quiet);
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, left + width, this.timeline.canvas.clientHeight);
    context.clip();
    for (const row of visible) {
      const top = row.top - this.timeline.scroll + ABOVE;
      const middle = top + row.height / 2;
      context.fillStyle = row.kind === "rank" || row.kind === "group" ? ink : quiet;
      const size = Math.min(row.kind === "rank" || row.kind === "group" ? 12 : 11, row.height - 1);
      if (size >= 7) {
        context.font = `${row.kind === "group" ? "600 " : ""}${size}px system-ui, sans-serif`;
        const sign = row.kind === "group" ? (this.timeline.rows.grouping.folded.has(row.key) ? "▸ " : "▾ ") : "";
        const mark = row.kind === "rank" && row.rank !== null && this.timeline.marks.blames(row.rank);
        const indent = row.kind === "group" ? 6 : row.kind === "rank" ? 14 : 26;
        context.fillText(sign + row.label, indent, middle, left - indent - 8);
        if (mark) {
          context.fillStyle = attention;
          context.fillText("▲", left - 12, middle);
        }
      }
      if (row.rank && (row.kind === "steps" || row.kind === "rank")) this.numbers(row, top);
      if (row.host || row.lane) this.names(row, top);
    }
    this.timeline.marks.draw(context, this.timeline.model, view, visible, ABOVE - this.timeline.scroll, ink, attention);
    this.joined(visible, attention);
    this.arrow(visible, ink);
    this.chosenFrame(visible, ink);
    this.timeline.writeSelection(left, width, attention);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** @param {number} left @param {number} width @param {string} colour */
  ruler(left, width, colour) {
    drawRuler(this.timeline.context, this.timeline.looking, { left, width, top: OVERVIEW, height: RULER }, colour);
    this.starts(left, width, colour);
  }

  /** Where training steps of the first rank, or of the chosen one, start. @param {number} left @param {number} width @param {string} colour */
  starts(left, width, colour) {
    const rank = this.timeline.chosen?.rank ?? this.timeline.model.ranks[0];
    if (!rank) return;
    const { context, looking } = this.timeline;
    context.fillStyle = colour;
    for (const { start } of rank.windows) {
      const x = left + ((start + this.timeline.model.at(rank) - looking.from) / (looking.to - looking.from)) * width;
      if (x < left || x > left + width) continue;
      context.fillRect(Math.round(x), OVERVIEW, 2, RULER);
    }
  }

  /** Names of what is wide enough to hold them. @param {Row} row @param {number} top */
  names(row, top) {
    const { view, scale, context } = this.timeline;
    const rank = /** @type {Rank} */ (row.rank);
    const at = this.timeline.model.at(rank);
    const { host, lane } = row;
    const slices = host?.slices ?? lane?.slices;
    if (!slices || row.height < 11) return;
    context.font = `${Math.min(row.height - 4, 10)}px system-ui, sans-serif`;
    context.fillStyle = ON_SLICES;
    const last = slices.startingBefore(view.to - at);
    // As many as fit side by side, so that a frame stays short.
    let room = view.width / scale / LEAST_NAMED;
    for (let i = slices.firstAfter(view.from - at); i < last && room > 0; i++) {
      const [from, to] = this.timeline.painter.dots(
        view,
        slices.start[i] + at,
        slices.start[i] + at + slices.length[i],
      );
      const left = Math.max(from, view.left) / scale;
      const width = Math.min(to, view.left + view.width) / scale - left;
      if (width < LEAST_NAMED) continue;
      room--;
      const name = host
        ? this.timeline.model.document.host_names?.[host.name[i]]
        : this.timeline.model.shortName(rank.signature[/** @type {import("./lanes.js").Lane} */ (lane).kernel(i)]);
      const shown = fitted(host ? shortened(String(name ?? "")) : String(name), width);
      context.fillText(shown, left + 2, top + row.height / 2 + 0.5, width - 3);
    }
  }

  /** From a call to the kernel that it launched, where one of them is chosen. @param {Row[]} visible @param {string} ink */
  arrow(visible, ink) {
    const { chosen, view, scale, context } = this.timeline;
    const pair = chosen && this.timeline.pairOf(chosen);
    if (!pair) return;
    const { call, kernel } = pair;
    const at = this.timeline.model.at(call.rank);
    /** @param {Chosen} end @param {boolean} after */
    const point = (end, after) => {
      const row = visible.find(
        (each) => each.rank === end.rank && each.kind !== "rank" && this.timeline.holds(each, end),
      );
      if (row === undefined) return null;
      const { start, length } = extent(end);
      const [x] = this.timeline.painter.dots(view, start + at + (after ? length : 0), 0);
      return { x: x / scale, y: row.top - this.timeline.scroll + ABOVE + row.height / 2 };
    };
    const from = point(call, true);
    const to = point(kernel, false);
    if (from === null || to === null) return;
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.moveTo(to.x - 5, to.y + (from.y > to.y ? 6 : -6));
    context.lineTo(to.x, to.y);
    context.lineTo(to.x + 3, to.y + (from.y > to.y ? 7 : -7));
    context.stroke();
    context.lineWidth = 1;
  }

  /** Numbers of micro-batches where they fit. @param {Row} row @param {number} top */
  numbers(row, top) {
    const rank = /** @type {Rank} */ (row.rank);
    const { view, scale, context } = this.timeline;
    if (!rank.steps.start.length || (this.timeline.rows.open.has(rank.rank) && row.kind === "rank")) return;
    const height = row.kind === "steps" || !rank.bins.length ? row.height : row.height * STEPS_SHARE;
    if (height < 9) return;
    const at = this.timeline.model.at(rank);
    const last = rank.steps.startingBefore(view.to - at);
    context.font = `${Math.min(height - 2, 11)}px system-ui, sans-serif`;
    context.fillStyle = ON_SLICES;
    for (let i = rank.steps.firstAfter(view.from - at); i < last; i++) {
      const [from, to] = this.timeline.painter.dots(
        view,
        rank.steps.start[i] + at,
        rank.steps.start[i] + at + rank.steps.length[i],
      );
      const text = fitted(this.timeline.model.document.names[rank.stepName[i]], (to - from) / scale - 4);
      if (!text || from < view.left) continue;
      context.fillText(text, (from + to) / 2 / scale - 2.7 * text.length, top + height / 2 + 0.5);
    }
  }

  /** A frame around what is chosen. @param {Row[]} visible @param {string} ink */
  chosenFrame(visible, ink) {
    const { chosen, context, view, scale } = this.timeline;
    if (chosen === null) return;
    const { start, length } = extent(chosen);
    const at = this.timeline.model.at(chosen.rank);
    const [from, to] = this.timeline.painter.dots(view, start + at, start + at + length);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    for (const row of visible) {
      if (row.rank !== chosen.rank || !this.timeline.holds(row, chosen)) continue;
      const left = Math.max(from, view.left) / scale;
      context.strokeRect(
        left - 1,
        row.top - this.timeline.scroll + ABOVE,
        Math.max((to - Math.max(from, view.left)) / scale + 2, 3),
        row.height,
      );
    }
    context.lineWidth = 1;
  }

  /**
   * The members of the chosen communication on all ranks, framed.
   * @param {Row[]} visible
   * @param {string} colour
   */
  joined(visible, colour) {
    const { chosen, context, view, scale } = this.timeline;
    if (chosen?.kind !== "kernel") return;
    const members = this.timeline.model.membersOf(chosen.rank, chosen.index);
    if (members.size < 2) return;
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    for (const row of visible) {
      const kernel = row.rank ? members.get(row.rank) : undefined;
      if (!row.rank || kernel === undefined) continue;
      if (!this.timeline.holds(row, { kind: "kernel", rank: row.rank, index: kernel })) continue;
      const at = this.timeline.model.at(row.rank) + row.rank.kernels.start[kernel];
      const [from, to] = this.timeline.painter.dots(view, at, at + row.rank.kernels.length[kernel]);
      const left = Math.max(from, view.left) / scale;
      const top = row.top - this.timeline.scroll + ABOVE;
      if (to >= view.left) context.strokeRect(left, top + 1, Math.max(to / scale - left, 2), row.height - 2);
    }
    context.lineWidth = 1;
  }
}
