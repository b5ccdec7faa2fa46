/** What is written on a timeline, above what was filled: labels, names, ruler, frames. Every timeline writes so. */

import { drawRuler } from "./ruler.js";
import { ABOVE, fitted, OVERVIEW, RULER } from "./stage.js";

/** @typedef {import("./stage.js").Stage} Stage */
/** @typedef {{top: number, height: number}} Placed a row, pixels from the first one */
/** @typedef {{ink: string, quiet: string, attention: string}} Inks */
/** @typedef {{text: string, indent: number, strong: boolean, bold?: boolean, blamed: boolean}} Label */

/** Colour of texts on slices, which are light in both designs. */
const ON_SLICES = "#22262B";
const MOST_LETTERS = 12;

/** @template {Placed} R a row */
export class RowWriter {
  /** @param {Stage} stage whose rows are written */
  constructor(stage) {
    this.stage = stage;
  }

  /** @returns {Inks} */
  get inks() {
    const style = getComputedStyle(document.documentElement);
    const [ink, quiet, attention] = ["--ink", "--quiet", "--attention"].map((name) => style.getPropertyValue(name));
    return { ink, quiet, attention };
  }

  /** What the strip above is. @returns {string} */
  get overview() {
    return "";
  }

  /** Where training steps start on the axis, ns. @returns {number[]} */
  get starts() {
    return [];
  }

  /** What is written beside a row. @param {R} _row @returns {Label} */
  label(_row) {
    return { text: "", indent: 0, strong: false, blamed: false };
  }

  /** Names on the slices of a row. @param {R} _row @param {number} _top pixels of the canvas */
  names(_row, _top) {}

  /** Signs in the ruler. @param {number} _left @param {number} _width @param {Inks} _inks */
  signs(_left, _width, _inks) {}

  /** Frames, arrows and marks on rows. @param {R[]} _visible @param {Inks} _inks */
  marks(_visible, _inks) {}

  /** Texts, ruler, selection and marks. @param {R[]} visible */
  write(visible) {
    const { context, scale, view, looking } = this.stage;
    const { inks } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const left = view.left / scale;
    const width = view.width / scale;
    this.stage.writeOverview(left, width, inks.ink, this.overview);
    drawRuler(context, looking, { left, width, top: OVERVIEW, height: RULER }, inks.quiet);
    for (const start of this.starts) {
      const x = this.x(start);
      if (x >= left && x <= left + width) context.fillRect(Math.round(x), OVERVIEW, 2, RULER);
    }
    this.signs(left, width, inks);
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, left + width, this.stage.canvas.clientHeight);
    context.clip();
    for (const row of visible) {
      const top = this.top(row);
      const { text, indent, strong, bold, blamed } = this.label(row);
      const size = Math.min(strong ? MOST_LETTERS : MOST_LETTERS - 1, row.height - 1);
      context.fillStyle = strong ? inks.ink : inks.quiet;
      if (size >= 7) {
        context.font = `${bold ? "600 " : ""}${size}px system-ui, sans-serif`;
        context.fillText(text, indent, top + row.height / 2, left - indent - 14);
        context.fillStyle = inks.attention;
        if (blamed) context.fillText("▲", left - 12, top + row.height / 2);
      }
      this.names(row, top);
    }
    this.marks(visible, inks);
    this.stage.writeSelection(left, width, inks.attention);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /** Where a time lies, in pixels of the page. @param {number} time */
  x(time) {
    const { view, scale } = this.stage;
    return (view.left + ((time - view.from) / (view.to - view.from)) * view.width) / scale;
  }

  /** Where a row lies on the canvas. @param {Placed} row */
  top(row) {
    return row.top - this.stage.scroll + ABOVE;
  }

  /**
   * A name on a slice, where there is room; whether there was.
   * @param {number} from @param {number} to time on the axis
   * @param {string} name
   * @param {number} least pixels of a slice that is named
   * @param {number} middle pixels
   */
  name(from, to, name, least, middle) {
    const { context, view, scale } = this.stage;
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

  /**
   * A frame around a slice of a row.
   * @param {Placed} row
   * @param {number} from @param {number} to time on the axis
   * @param {string} colour
   * @param {number} line pixels
   */
  frame(row, from, to, colour, line) {
    const { context, view, scale } = this.stage;
    const left = Math.max(this.x(from), view.left / scale);
    const right = Math.min(this.x(to), (view.left + view.width) / scale + 1);
    if (right < view.left / scale || left > (view.left + view.width) / scale) return;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(left - 1, this.top(row), Math.max(right - left + 2, 3), row.height);
    context.lineWidth = 1;
  }
}
