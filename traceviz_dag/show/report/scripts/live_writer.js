/** What is written on a live timeline beside what every timeline writes: signs of findings, peers. */

import { SIGNS } from "./live_panel.js";
import { RowWriter } from "./row_writer.js";
import { ABOVE, LEAST_NAMED, LEAST_NUMBERED } from "./stage.js";

/** @typedef {import("./live_lanes.js").LiveRow} LiveRow */
/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

/** @extends {RowWriter<LiveRow>} */
export class LiveWriter extends RowWriter {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    super(timeline);
    this.timeline = timeline;
  }

  get overview() {
    const { strip } = this.timeline.tiles;
    return strip ? `mean of ${strip.lanes < strip.of ? "the first " : ""}${strip.lanes}: busy, exposed` : "";
  }

  get starts() {
    const { marks } = this.timeline.about;
    return marks.flatMap((/** @type {any} */ mark) => (mark.kind === "iteration" ? [mark.from] : []));
  }

  /** @param {LiveRow} row */
  label({ lane, depth, pinned }) {
    const { lanes, about } = this.timeline;
    const sign = lane.holds ? (lanes.isOpen(lane.key) ? "▾ " : "▸ ") : "";
    const blamed = about.marks.some((/** @type {any} */ mark) => mark.kind === "finding" && mark.lane === lane.key);
    const text = (pinned ? "• " : "") + sign + lane.label;
    return { text, indent: 6 + 12 * depth, strong: lane.parent === null, bold: lane.kind === "group", blamed };
  }

  /** Signs where findings, notes and bookmarks begin. @param {number} left @param {number} width @param {import("./row_writer.js").Inks} inks */
  signs(left, width, { attention, ink }) {
    const { context } = this.timeline;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    const drawn = new Set();
    for (const { from, sign } of this.timeline.marks.inTime) {
      const at = Math.round(this.x(from));
      if (at < left || at > left + width || drawn.has(`${at}${sign}`)) continue;
      drawn.add(`${at}${sign}`);
      context.fillStyle = sign === SIGNS.finding ? attention : ink;
      context.fillText(sign, at, ABOVE - 5);
    }
    context.textAlign = "start";
  }

  /** @param {LiveRow} row @param {number} top */
  names(row, top) {
    const boxes = this.timeline.tiles.known.get(row.lane.key)?.boxes;
    if (!boxes || row.height < 14) return;
    const { context, view } = this.timeline;
    context.font = "10px system-ui, sans-serif";
    const least = row.lane.kind === "microbatches" ? LEAST_NUMBERED : LEAST_NAMED;
    let room = view.width / view.scale / least;
    for (let i = 0; i < boxes.start.length && room > 0; i++) {
      if (boxes.count[i] !== 1 || boxes.name[i] < 0) continue;
      if (this.name(boxes.start[i], boxes.end[i], boxes.names[boxes.name[i]], least, top + row.height / 2)) room--;
    }
  }

  /** A frame around what is chosen, and around its peers; the lane that keys act on. @param {LiveRow[]} visible @param {import("./row_writer.js").Inks} inks */
  marks(visible, { ink, attention }) {
    const { chosen, known, lane, context, labels } = this.timeline;
    const current = visible.find((row) => row.lane.key === lane);
    if (current) {
      context.globalAlpha = 0.15;
      context.fillStyle = attention;
      context.fillRect(0, this.top(current), labels, current.height);
      context.globalAlpha = 1;
    }
    for (const place of chosen ? [chosen, ...(known?.peers ?? [])] : []) {
      const row = visible.find((each) => each.lane.key === place.lane);
      if (row) this.frame(row, place.from, place.to, ink, place === chosen ? 2 : 1);
    }
  }
}
