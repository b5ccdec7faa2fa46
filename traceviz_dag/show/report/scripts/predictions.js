/** What edits gain: predictions and their error bars as in analyze/causes/what_if.py and gains.py. */

import { edited, hasUnmatched, rounded } from "./edits.js";
import { withoutLags } from "./replay.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./replay.js").Step} Step */

/**
 * What edits gain, summed over the training steps of the iteration.
 * @typedef {object} Gain
 * @property {number} step the step as it was
 * @property {number} predicted with the edits
 * @property {number} gain
 * @property {number} low
 * @property {number} high
 */

/** Predictions for the steps of an iteration. */
export class Predictions {
  /** @param {Step[]} steps */
  constructor(steps) {
    this.steps = steps.map((step) => ({
      step,
      length: step.lengthOf(step.times),
      free: step.lengthOf(withoutLags(step.times)),
    }));
  }

  /**
   * The gain of some edits together, applied one after the other.
   * @param {Edit[]} edits
   * @returns {Gain}
   */
  predict(edits) {
    const parts = this.steps.map((known) => ofStep(known, edits));
    const gains = parts.map((part) => part.gain);
    return {
      step: total(parts.map((part) => part.step)),
      predicted: total(parts.map((part) => part.predicted)),
      gain: total(gains),
      low: Math.min(total(parts.map((part) => part.low)), Math.min(...gains) * parts.length),
      high: Math.max(total(parts.map((part) => part.high)), Math.max(...gains) * parts.length),
    };
  }
}

/**
 * @typedef {object} Known
 * @property {Step} step
 * @property {number} length of the step
 * @property {number} free its length without lags
 */

/** @param {Known} known @param {Edit[]} edits */
function ofStep(known, edits) {
  const found = once(known, edits, false);
  if (!edits.some((edit) => edit.dimension !== undefined && hasUnmatched(known.step, edit.dimension))) return found;
  const most = once(known, edits, true);
  return { ...found, low: Math.min(found.low, most.low), high: Math.max(found.high, most.high) };
}

/** @param {Known} known @param {Edit[]} edits @param {boolean} unmatched @returns {Gain} */
function once({ step, length, free }, edits, unmatched) {
  let times = step.times;
  for (const edit of edits) times = edited(step, times, edit, unmatched);
  const gain = length - step.lengthOf(times);
  let freeGain = free - step.lengthOf(withoutLags(times));
  const { launch, section, lag, waits } = step.times;
  const host = times.launch !== launch || times.section !== section || times.lag !== lag || times.waits !== waits;
  // What of the gain is there because the host does something else: a free host would not show it.
  if (host) freeGain += gain - (length - step.lengthOf({ ...step.times, duration: times.duration }));
  const error = length ? free / length - 1 : 0;
  const reach = rounded(Math.min(Math.abs(error), 1) * Math.max(Math.abs(gain), Math.abs(freeGain)));
  return {
    step: length,
    predicted: length - gain,
    gain,
    low: Math.min(gain, freeGain) - reach,
    // No step becomes shorter by more than itself.
    high: Math.min(Math.max(gain, freeGain) + reach, length),
  };
}

/** @param {number[]} values */
function total(values) {
  return values.reduce((sum, one) => sum + one, 0);
}
