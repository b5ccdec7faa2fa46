/** The ruler above lanes. */

import { duration } from "./words.js";

/** @typedef {{left: number, width: number, top: number, height: number}} Place in pixels of the page */

const APART = 110;
const TICK = 5;

/**
 * Ticks with their times, from the axis' zero, at round distances.
 * @param {CanvasRenderingContext2D} context
 * @param {{from: number, to: number}} looking ns
 * @param {Place} place
 * @param {string} colour
 */
export function drawRuler(context, looking, place, colour) {
  const { left, width, top, height } = place;
  const length = looking.to - looking.from;
  const wanted = length / Math.max(Math.floor(width / APART), 1);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= wanted) ?? wanted;
  context.fillStyle = colour;
  context.strokeStyle = colour;
  context.font = "11px system-ui, sans-serif";
  for (let at = Math.ceil(looking.from / step) * step; at <= looking.to; at += step) {
    const x = left + ((at - looking.from) / length) * width;
    context.fillRect(Math.round(x), top + height - TICK, 1, TICK);
    context.fillText(duration(at), x + 3, top + height / 2 - 1);
  }
}
