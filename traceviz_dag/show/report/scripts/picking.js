/** What of a timeline lies under the mouse. */

import { STEPS_SHARE } from "./painter.js";
import { ABOVE, NEAR } from "./stage.js";

/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./details.js").Chosen} Chosen */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./timeline.js").Timeline} Timeline */

/**
 * What lies under the mouse.
 * @param {Timeline} timeline
 * @param {Row | undefined} row
 * @param {number} at ns on the axis
 * @param {number} y
 * @returns {Chosen | null}
 */
export function picked(timeline, row, at, y) {
  if (!row?.rank) return null;
  const { rank } = row;
  const own = at - timeline.model.at(rank);
  const slack = NEAR * timeline.perPixel;
  if (row.kind === "thread") return null;
  if (row.kind === "path") return nearest(rank, rank.path, own, slack, "path", (i) => i);
  if (row.kind === "gaps") return nearest(rank, rank.gaps, own, slack, "gap", (i) => i);
  const { host } = row;
  if (host) {
    const found = nearest(rank, host.slices, own, slack, "host", (i) => i);
    return found && { ...found, host };
  }
  const { lane } = row;
  if (lane) return nearest(rank, lane.slices, own, slack, "kernel", (i) => lane.kernel(i));
  const upper = y - ABOVE + timeline.scroll - row.top < row.height * STEPS_SHARE;
  const steps = row.kind === "steps" || !rank.kernels.start.length || (row.height >= 14 && upper);
  if (steps) {
    const step = nearest(rank, rank.steps, own, slack, "step", (i) => i);
    if (step !== null || row.kind === "steps") return step;
  }
  const wide =
    ((timeline.canvas.clientWidth - timeline.labels) * timeline.model.document.bin_ns) /
    (timeline.looking.to - timeline.looking.from);
  if (wide <= NEAR) return null;
  const { computation, communication } = timeline.rows.halvesOf(rank);
  const found = nearest(rank, communication.slices, own, 0, "kernel", (i) => communication.kernel(i));
  const other = nearest(rank, computation.slices, own, slack, "kernel", (i) => computation.kernel(i));
  const lower = y - ABOVE + timeline.scroll - row.top > row.height * 0.78;
  return lower ? (found ?? other) : (other ?? found);
}

/**
 * The slice at an instant, or the nearest one within some slack.
 * @param {Rank} rank
 * @param {import("./model.js").Slices} slices
 * @param {number} at
 * @param {number} slack
 * @param {Chosen["kind"]} kind
 * @param {(slice: number) => number} index
 * @returns {Chosen | null}
 */
function nearest(rank, slices, at, slack, kind, index) {
  let best = -1;
  let distance = slack + 1e-9;
  const last = slices.startingBefore(at + slack);
  for (let i = slices.firstAfter(at - slack); i < last; i++) {
    const away = Math.max(slices.start[i] - at, at - slices.start[i] - slices.length[i], 0);
    if (away <= distance) {
      best = i;
      distance = away;
    }
  }
  return best < 0 ? null : { kind, rank, index: index(best) };
}
