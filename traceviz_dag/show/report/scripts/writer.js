/** What is written on the report's timeline beside what every timeline writes: numbers, arrows, members, marks. */

import { extent } from "./details.js";
import { STEPS_SHARE } from "./painter.js";
import { RowWriter } from "./row_writer.js";
import { ABOVE, LEAST_NAMED, LEAST_NUMBERED } from "./stage.js";
import { shortened } from "./words.js";

/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./details.js").Chosen} Chosen */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./timeline.js").Timeline} Timeline */

const ON_PAPER = { ink: "#000000", quiet: "#444444", attention: "#c2185b" };

/** @extends {RowWriter<Row>} */
export class Writer extends RowWriter {
  /** @param {Timeline} timeline whose rows and choice are written */
  constructor(timeline) {
    super(timeline);
    this.timeline = timeline;
  }

  get inks() {
    return this.timeline.onPaper ? ON_PAPER : super.inks;
  }

  get overview() {
    return `mean of all ${this.timeline.model.document.member}s`;
  }

  /** Of the first rank, or of the chosen one. */
  get starts() {
    const { chosen, model } = this.timeline;
    const rank = chosen?.rank ?? model.ranks[0];
    return rank ? rank.windows.map(({ start }) => start + model.at(rank)) : [];
  }

  /** @param {Row} row */
  label(row) {
    const group = row.kind === "group";
    const sign = group ? (this.timeline.rows.grouping.folded.has(row.key) ? "▸ " : "▾ ") : "";
    const blamed = row.kind === "rank" && row.rank !== null && this.timeline.marks.blames(row.rank);
    const indent = group ? 6 : row.kind === "rank" ? 14 : 26;
    return { text: sign + row.label, indent, strong: group || row.kind === "rank", bold: group, blamed };
  }

  /** @param {Row} row @param {number} top */
  names(row, top) {
    const { context, view, model, rows } = this.timeline;
    const { rank, host, lane } = row;
    if (rank === null) return;
    const closed = row.kind === "rank" && !rows.open.has(rank.rank);
    const steps = (row.kind === "steps" || closed) && rank.steps.start.length > 0;
    const slices = steps ? rank.steps : (host?.slices ?? lane?.slices);
    const height = closed && rank.bins.length ? row.height * STEPS_SHARE : row.height;
    if (!slices || height < (steps ? 9 : 11)) return;
    context.font = `${Math.min(height - (steps ? 2 : 4), steps ? 11 : 10)}px system-ui, sans-serif`;
    /** @param {number} i */
    const named = (i) => {
      if (steps) return model.document.names[rank.stepName[i]];
      if (host) return shortened(model.document.host_names?.[host.name[i]] ?? "");
      return lane ? model.shortName(rank.signature[lane.kernel(i)]) : "";
    };
    const least = steps ? LEAST_NUMBERED : LEAST_NAMED;
    const at = model.at(rank);
    const last = slices.startingBefore(view.to - at);
    // As many as fit side by side, so that a frame stays short.
    let room = view.width / view.scale / least;
    for (let i = slices.firstAfter(view.from - at); i < last && room > 0; i++) {
      const start = slices.start[i] + at;
      if (this.name(start, start + slices.length[i], named(i), least, top + height / 2)) room--;
    }
  }

  /** @param {Row[]} visible @param {import("./row_writer.js").Inks} inks */
  marks(visible, { ink, attention }) {
    const { context, model, view, scroll, chosen } = this.timeline;
    this.timeline.marks.draw(context, model, view, visible, ABOVE - scroll, ink, attention);
    this.joined(visible, attention);
    this.arrow(visible, ink);
    if (chosen === null) return;
    const { start, length } = extent(chosen);
    const from = start + model.at(chosen.rank);
    for (const row of visible)
      if (row.rank === chosen.rank && this.timeline.holds(row, chosen)) this.frame(row, from, from + length, ink, 2);
  }

  /** From a call to the kernel that it launched, where one of them is chosen. @param {Row[]} visible @param {string} ink */
  arrow(visible, ink) {
    const { chosen, context } = this.timeline;
    const pair = chosen && this.timeline.pairOf(chosen);
    if (!pair) return;
    const { call, kernel } = pair;
    /** @param {Chosen} end @param {boolean} after */
    const point = (end, after) => {
      const row = visible.find(
        (each) => each.rank === end.rank && each.kind !== "rank" && this.timeline.holds(each, end),
      );
      if (row === undefined) return null;
      const { start, length } = extent(end);
      const at = this.timeline.model.at(call.rank);
      return { x: this.x(start + at + (after ? length : 0)), y: this.top(row) + row.height / 2 };
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

  /** The members of the chosen communication on all ranks, framed. @param {Row[]} visible @param {string} colour */
  joined(visible, colour) {
    const { chosen, model } = this.timeline;
    if (chosen?.kind !== "kernel") return;
    const members = model.membersOf(chosen.rank, chosen.index);
    if (members.size < 2) return;
    for (const row of visible) {
      const index = row.rank ? members.get(row.rank) : undefined;
      if (!row.rank || index === undefined || !this.timeline.holds(row, { kind: "kernel", rank: row.rank, index }))
        continue;
      const start = model.at(row.rank) + row.rank.kernels.start[index];
      this.frame(row, start, start + row.rank.kernels.length[index], colour, 1.5);
    }
  }
}
