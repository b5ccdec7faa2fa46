/** What is written on a live timeline: names, signs and frames, above what was filled. */

import { SIGNS } from "./live_panel.js";
import { drawRuler } from "./ruler.js";
import { ABOVE, fitted, LEAST_NAMED, LEAST_NUMBERED, OVERVIEW, RULER } from "./stage.js";

/** @typedef {import("./live_lanes.js").LiveRow} LiveRow */
/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

export class LiveWriter {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /** Texts, ruler, selection and frames, above what was filled. @param {LiveRow[]} visible */
  write(visible) {
    const { context, scale, view, looking } = this.timeline;
    const style = getComputedStyle(document.documentElement);
    const [ink, quiet, attention] = ["--ink", "--quiet", "--attention"].map((name) => style.getPropertyValue(name));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    const left = view.left / scale;
    const width = view.width / scale;
    const first =
      this.timeline.tiles.strip && this.timeline.tiles.strip.lanes < this.timeline.tiles.strip.of ? "the first " : "";
    const mean = this.timeline.tiles.strip ? `mean of ${first}${this.timeline.tiles.strip.lanes}: busy, exposed` : "";
    this.timeline.writeOverview(left, width, ink, mean);
    drawRuler(context, looking, { left, width, top: OVERVIEW, height: RULER }, quiet);
    for (const mark of this.timeline.about.marks) {
      const at = this.timeline.x(mark.from);
      if (mark.kind === "iteration" && at >= left && at <= left + width)
        context.fillRect(Math.round(at), OVERVIEW, 2, RULER);
    }
    this.signs(left, width, attention, ink);
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, left + width, this.timeline.canvas.clientHeight);
    context.clip();
    const blamed = new Set(
      this.timeline.about.marks
        .filter((/** @type {any} */ mark) => mark.kind === "finding")
        .map((/** @type {any} */ mark) => mark.lane),
    );
    for (const row of visible) {
      const top = row.top - this.timeline.scroll + ABOVE;
      const { lane } = row;
      if (lane.key === this.timeline.lane) {
        context.globalAlpha = 0.15;
        context.fillStyle = attention;
        context.fillRect(0, top, left, row.height);
        context.globalAlpha = 1;
      }
      context.fillStyle = lane.parent === null ? ink : quiet;
      context.font = `${lane.kind === "group" ? "600 " : ""}${Math.min(12, row.height - 3)}px system-ui, sans-serif`;
      const sign = lane.holds ? (this.timeline.lanes.isOpen(lane.key) ? "▾ " : "▸ ") : "";
      const indent = 6 + 12 * row.depth;
      context.fillText((row.pinned ? "• " : "") + sign + lane.label, indent, top + row.height / 2, left - indent - 14);
      if (blamed.has(lane.key)) {
        context.fillStyle = attention;
        context.fillText("▲", left - 12, top + row.height / 2);
      }
      this.names(row, top, left, width);
    }
    this.frames(visible, ink, left, width);
    this.timeline.writeSelection(left, width, attention);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Signs in the ruler where findings, notes and bookmarks begin. @param {number} left @param {number} width @param {string} attention @param {string} ink */
  signs(left, width, attention, ink) {
    const { context } = this.timeline;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    const drawn = new Set();
    for (const { from, sign } of this.timeline.marks.inTime) {
      const at = Math.round(this.timeline.x(from));
      if (at < left || at > left + width || drawn.has(`${at}${sign}`)) continue;
      drawn.add(`${at}${sign}`);
      context.fillStyle = sign === SIGNS.finding ? attention : ink;
      context.fillText(sign, at, ABOVE - 5);
    }
    context.textAlign = "start";
  }

  /** Names of what is wide enough. @param {LiveRow} row @param {number} top @param {number} left @param {number} width */
  names(row, top, left, width) {
    const boxes = this.timeline.tiles.known.get(row.lane.key)?.boxes;
    if (!boxes || row.height < 14) return;
    const { context } = this.timeline;
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = "#22262B";
    let room = width / LEAST_NAMED;
    for (let i = 0; i < boxes.start.length && room > 0; i++) {
      if (boxes.count[i] !== 1 || boxes.name[i] < 0) continue;
      const low = Math.max(this.timeline.x(boxes.start[i]), left);
      const wide = Math.min(this.timeline.x(boxes.end[i]), left + width) - low;
      if (wide < (row.lane.kind === "microbatches" ? LEAST_NUMBERED : LEAST_NAMED)) continue;
      room--;
      const shown = fitted(boxes.names[boxes.name[i]], wide);
      context.fillText(shown, low + 2, top + row.height / 2 + 0.5, wide - 3);
    }
  }

  /** A frame around what is chosen, and around its peers. @param {LiveRow[]} visible @param {string} ink @param {number} left @param {number} width */
  frames(visible, ink, left, width) {
    if (this.timeline.chosen === null) return;
    const { context } = this.timeline;
    context.strokeStyle = ink;
    for (const place of [this.timeline.chosen, ...(this.timeline.known?.peers ?? [])]) {
      const row = visible.find((each) => each.lane.key === place.lane);
      if (row === undefined) continue;
      const low = Math.max(this.timeline.x(place.from), left);
      const high = Math.min(this.timeline.x(place.to), left + width);
      if (high < left || low > left + width) continue;
      context.lineWidth = place === this.timeline.chosen ? 2 : 1;
      context.strokeRect(low - 1, row.top - this.timeline.scroll + ABOVE, Math.max(high - low + 2, 3), row.height);
    }
    context.lineWidth = 1;
  }
}
