/** What edits gain: predictions and their error bars as in analyze/causes/what_if.py and gains.py. */

import { edited, mayDoMore, rounded } from "./edits.js";
import { withoutLags } from "./replay.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./replay.js").Step} Step */
/** @typedef {import("./replay.js").Times} Times */

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
  let found = once(known, edits, {});
  if (edits.some((edit) => mayDoMore(known.step, edit))) {
    const most = once(known, edits, { unmatched: true });
    found = { ...found, low: Math.min(found.low, most.low), high: Math.max(found.high, most.high) };
  }
  return edits.length && known.step.columns.unmet_kernel.length ? withUnmet(known, edits, found) : found;
}

/**
 * The same with what communications that are not matched with all their members leave open.
 * @param {Known} known @param {Edit[]} edits @param {Gain} found
 * @returns {Gain}
 */
function withUnmet(known, edits, found) {
  const most = once(known, edits, { unmatched: true, drop: true });
  const least = once(known, edits, { unmatched: true, hold: true });
  const all = taken(
    known,
    edits.reduce((times, edit) => edited(known.step, times, edit, true), known.step.times),
  );
  const gain = Math.max(found.gain, Math.min(most.gain, all));
  const high = Math.max(found.high, Math.min(most.high, Math.max(all, gain)));
  return { ...found, low: Math.min(found.low, least.low), high };
}

/**
 * What edited times lack of those of all ranks together, of a meeting from one member.
 * @param {Known} known @param {Times} after
 */
function taken({ step, length }, after) {
  const before = step.times;
  if (after.waits !== before.waits) return length;
  let sum = 0;
  for (let rank = 0, kernel = 0; rank < step.facts.ranks.length; rank++) {
    let earlier = 0;
    for (const last = kernel + step.facts.kernels[rank]; kernel < last; kernel++) {
      if (before.launch[kernel] === -Infinity) continue;
      if (after.launch[kernel] === -Infinity) return length;
      earlier = Math.max(earlier, before.launch[kernel] - after.launch[kernel]);
    }
    sum += earlier * step.facts.sections[rank];
  }
  const ofMeeting = new Float64Array(step.nodes - step.meetings);
  const { member_kernel: kernels, member_meeting: meetings } = step.columns;
  for (let member = 0; member < kernels.length; member++) {
    const shorter = before.duration[kernels[member]] - after.duration[kernels[member]];
    ofMeeting[meetings[member]] = Math.max(ofMeeting[meetings[member]], shorter);
  }
  /** @param {Float64Array} one @param {Float64Array} other @param {Uint8Array} [without] */
  const less = (one, other, without) =>
    one.reduce((known, value, place) => known + (without?.[place] ? 0 : Math.max(value - other[place], 0)), 0);
  sum += less(before.duration, after.duration, step.joined) + less(before.lag, after.lag) + total([...ofMeeting]);
  sum += less(before.section, after.section) + less(before.sectionLag, after.sectionLag);
  return Math.min(sum + less(before.hostEnd, after.hostEnd), length);
}

/**
 * How long the kernels of the fullest stream of any rank take, which run one after the other.
 * @param {Step} step @param {Times} times
 */
function busiest(step, times) {
  let most = 0;
  let sum = 0;
  step.columns.follows.forEach((follows, segment) => {
    if (!follows) sum = 0;
    for (let kernel = step.firsts[segment]; kernel < step.firsts[segment + 1]; kernel++) sum += times.duration[kernel];
    most = Math.max(most, sum);
  });
  return most;
}

/**
 * Whether edited times may make a step longer: not where each is as long as it was, or shorter.
 * @param {Times} before @param {Times} after
 */
function adds(before, after) {
  /** @param {Float64Array} one @param {Float64Array} other */
  const more = (one, other) => other.some((value, place) => value > one[place]);
  return (
    after.waits !== before.waits ||
    after.launch !== before.launch ||
    more(before.hostEnd, after.hostEnd) ||
    more(before.duration, after.duration) ||
    more(before.lag, after.lag) ||
    more(before.section, after.section) ||
    more(before.sectionLag, after.sectionLag)
  );
}

/** No bar is narrower than this share of its gain; see gains.py. */
const REPLAY_ERROR = 0.05;

/**
 * @typedef {object} How
 * @property {boolean} [unmatched] take communications that are not matched as transfers, too
 * @property {boolean} [drop] let those that are not matched with all their members take no time
 * @property {boolean} [hold] let these end when they did
 */

/** @param {Known} known @param {Edit[]} edits @param {How} how @returns {Gain} */
function once(known, edits, { unmatched = false, drop = false, hold = false }) {
  const { step, length, free } = known;
  let times = step.times;
  for (const edit of edits) times = edited(step, times, edit, unmatched);
  if (drop) {
    const duration = times.duration.slice();
    for (const kernel of step.columns.unmet_kernel) duration[kernel] = 0;
    times = { ...times, duration };
  }
  /** @param {Times} before @param {Times} after */
  const lengthOf = (before, after) =>
    step.lengthOf(after, hold ? step.unmetEnds(step.replay(before), before, after) : undefined);
  const gain = length - lengthOf(step.times, times);
  let freeGain = free - lengthOf(withoutLags(step.times), withoutLags(times));
  const { launch, section, lag, waits } = step.times;
  const host = times.launch !== launch || times.section !== section || times.lag !== lag || times.waits !== waits;
  // What of the gain is there because the host does something else: a free host would not show it.
  if (host) freeGain += gain - (length - step.lengthOf({ ...step.times, duration: times.duration }));
  const error = length ? Math.abs(free / length - 1) : 0;
  const reach = rounded(Math.max(Math.min(error, 1), REPLAY_ERROR) * Math.max(Math.abs(gain), Math.abs(freeGain)));
  // No step becomes shorter than the work that is left on a stream, nor by more than edits take away, nor longer where
  // they add nothing.
  const least = Math.min(gain, freeGain) - reach;
  const most = Math.min(Math.max(gain, freeGain) + reach, length - busiest(step, times));
  return {
    step: length,
    predicted: length - gain,
    gain,
    low: Math.min(gain, adds(step.times, times) ? least : Math.max(least, 0)),
    high: Math.max(gain, Math.min(most, taken(known, times))),
  };
}

/** @param {number[]} values */
function total(values) {
  return values.reduce((sum, one) => sum + one, 0);
}
