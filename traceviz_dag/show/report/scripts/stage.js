/** A canvas with rows over time: where things lie on it, and moving it. What every timeline shares. */

import { Raster } from "./raster.js";
import { Looking } from "./state.js";
import { byId } from "./words.js";

/** @typedef {import("./painter.js").View} View */

export const OVERVIEW = 30;
export const RULER = 22;
export const ABOVE = OVERVIEW + RULER;
/** Pixels within which the mouse is at something. */
export const NEAR = 3;
const ZOOM = 0.7;
/** Milliseconds: turns of the wheel that follow sooner are one move, to be undone at once. */
const ONE_TURN = 400;
const LABELS_SHARE = 0.3;
const LETTER = 5.4;
const ROOMY = 1.8;

export class Stage {
  /** Pixels of the rows that lie above what is shown. */
  scroll = 0;
  /** @type {{from: number, to: number} | null} a window on the axis */
  selection = null;
  /** @type {any} the chosen slice, with all that is known of it */
  chosen = null;

  /** @param {number} end of the axis, ns @param {number} widestLabels pixels */
  constructor(end, widestLabels) {
    this.widestLabels = widestLabels;
    this.looking = new Looking(end);
    /** @type {HTMLCanvasElement} */
    this.canvas = byId("timeline-canvas");
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d", { alpha: false }));
    this.raster = new Raster(1, 1);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.waitsForFrame = false;
    this.turned = -Infinity;
  }

  /** @param {number} top pixels of the rows that lie above what is shown */
  scrollTo(top) {
    this.scroll = Math.max(top, 0);
  }

  /** @param {number} one @param {number} other time on the axis */
  select(one, other) {
    this.selection = { from: Math.min(one, other), to: Math.max(one, other) };
  }

  /** What keys do on every timeline. @returns {Record<string, () => unknown>} */
  get moves() {
    const { looking, selection, chosen } = this;
    const middle = (looking.from + looking.to) / 2;
    const margin = selection || !chosen ? 0 : (chosen.to - chosen.from) * 0.1;
    const wanted = selection ?? chosen;
    return {
      left: () => looking.move(-0.2),
      right: () => looking.move(0.2),
      in: () => looking.zoom(ZOOM, middle),
      out: () => looking.zoom(1 / ZOOM, middle),
      all: () => looking.show(0, looking.end),
      selection: () => wanted && looking.show(wanted.from - margin, wanted.to + margin),
      undo: () => looking.undo(),
      redo: () => looking.redo(),
      search: () => byId("search").focus(),
    };
  }

  /** Say something beside the buttons. @param {string} words */
  say(words) {
    byId("said").textContent = words;
  }

  /** Fill and write everything; what is drawn overrides this. */
  repaint() {}

  /** Draw once before the next frame is shown. */
  draw() {
    if (this.waitsForFrame) return;
    this.waitsForFrame = true;
    requestAnimationFrame(() => {
      this.waitsForFrame = false;
      this.repaint();
    });
  }

  /** Width of the labels, in pixels of the page. */
  get labels() {
    return Math.min(this.widestLabels, Math.round(this.canvas.clientWidth * LABELS_SHARE));
  }

  get scale() {
    return window.devicePixelRatio || 1;
  }

  /** @returns {View} */
  get view() {
    const { scale } = this;
    const left = Math.round(this.labels * scale);
    return { from: this.looking.from, to: this.looking.to, left, width: Math.max(this.canvas.width - left, 1), scale };
  }

  /** What a pixel of the page represents, ns. */
  get perPixel() {
    return (this.looking.to - this.looking.from) / (this.canvas.clientWidth - this.labels);
  }

  /** Make canvas and raster as large as they are shown; false where nothing is shown. */
  fit() {
    const { canvas, scale } = this;
    const width = Math.round(canvas.clientWidth * scale);
    const height = Math.round(canvas.clientHeight * scale);
    if (!width || !height) return false;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    if (this.raster.width !== width || this.raster.height !== height) this.raster = new Raster(width, height);
    return true;
  }

  /**
   * Which part of the whole is shown, and what the strip above is.
   * @param {number} left @param {number} width @param {string} ink @param {string} words
   */
  writeOverview(left, width, ink, words) {
    const { context, looking } = this;
    const from = Math.max(left + (looking.from / looking.end) * width, left);
    const to = Math.min(left + (looking.to / looking.end) * width, left + width);
    context.strokeStyle = ink;
    context.lineWidth = 1;
    context.strokeRect(from + 0.5, 1.5, Math.max(to - from - 1, 1), OVERVIEW - 3);
    context.fillStyle = ink;
    context.font = "11px system-ui, sans-serif";
    context.fillText(words, 6, OVERVIEW / 2, left - 12);
  }

  /** @param {number} left @param {number} width @param {string} colour */
  writeSelection(left, width, colour) {
    if (!this.selection) return;
    const { context, looking } = this;
    const [from, to] = [this.selection.from, this.selection.to].map(
      (time) => left + ((time - looking.from) / (looking.to - looking.from)) * width,
    );
    const low = Math.max(from, left);
    context.globalAlpha = 0.18;
    context.fillStyle = colour;
    context.fillRect(low, ABOVE, Math.max(to - low, 1), this.canvas.clientHeight);
    context.globalAlpha = 1;
  }

  /** @param {MouseEvent} event @returns {{at: number, x: number, y: number}} time, and pixels of the canvas */
  timeUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const { from, to } = y < OVERVIEW ? { from: 0, to: this.looking.end } : this.looking;
    return { at: from + ((x - this.labels) / (this.canvas.clientWidth - this.labels)) * (to - from), x, y };
  }

  /** Whether a turn of the wheel begins a move. @param {WheelEvent} event */
  begins(event) {
    const found = event.timeStamp - this.turned > ONE_TURN;
    this.turned = event.timeStamp;
    return found;
  }

  /** Show the text about something beside the mouse. @param {HTMLElement} tip @param {PointerEvent} event */
  placeTip(tip, event) {
    tip.style.left = `${Math.max(Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), 0)}px`;
    tip.style.top = `${Math.max(Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8), 0)}px`;
  }

  /**
   * Follow a pressed mouse: it moves the view, its part of the whole, or an edge of the selection.
   * @param {PointerEvent} event
   * @param {boolean} measuring whether it selects
   * @param {{clicked: () => void, selected: () => void, ended?: (event: PointerEvent) => void}} then
   */
  drag(event, measuring, then) {
    const begun = this.timeUnder(event);
    this.canvas.setPointerCapture(event.pointerId);
    const start = { ...this.looking };
    const half = (start.to - start.from) / 2;
    let moved = false;
    /** @param {PointerEvent} next */
    const move = (next) => {
      const now = this.timeUnder(next);
      if (Math.abs(now.x - begun.x) > 2 || Math.abs(now.y - begun.y) > 2) moved = true;
      if (!moved) return;
      if (begun.y < OVERVIEW) {
        const shown = (this.looking.to - this.looking.from) / 2;
        this.looking.show(now.at - shown, now.at + shown, false);
      } else if (measuring) {
        this.select(begun.at, now.at);
      } else {
        const shift = ((begun.x - now.x) / (this.canvas.clientWidth - this.labels)) * (start.to - start.from);
        this.looking.show(start.from + shift, start.to + shift, false);
        this.scrollTo(this.scroll + (begun.y - now.y));
        begun.y = now.y;
      }
      this.draw();
    };
    /** @param {PointerEvent} next */
    const end = (next) => {
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", end);
      if (!moved && begun.y < OVERVIEW) this.looking.show(begun.at - half, begun.at + half);
      else if (!moved) then.clicked();
      else if (measuring) then.selected();
      else if (start.from !== this.looking.from) {
        this.looking.before.push({ from: start.from, to: start.to });
        this.looking.after.length = 0;
      }
      then.ended?.(next);
      this.draw();
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end);
  }
}

/**
 * As much of a name as a width holds; of a micro-batch its brief name, as ``lanes/words.py`` has it, or its number.
 * @param {string} name
 * @param {number} width pixels
 * @returns {{text: string, centred: boolean}}
 */
export function fitted(name, width) {
  const letters = Math.floor((width - 4) / LETTER);
  const step = /^(f|b)\w+ (\d+)(?: chunk (\d+))?$/.exec(name);
  if (step === null) return { text: name.length > letters ? `${name.slice(0, letters - 1)}…` : name, centred: false };
  const [, phase, number, chunk] = step;
  const brief = `${phase.toUpperCase()}${number}${chunk === undefined ? "" : `/${chunk}`}`;
  // With some room around it, so that not every second of many narrow ones has it.
  const roomy = brief.length <= letters / ROOMY ? brief : number;
  const text = name.length <= letters ? name : roomy;
  return { text: text.length <= letters ? text : "", centred: true };
}
