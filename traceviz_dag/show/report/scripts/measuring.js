/** What a measured window holds, told beside the timeline. */

import { filled } from "./details.js";
import { measured } from "./measure.js";
import { copyable, duration, element, exact, facts, seconds, share } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */

const MOST_MEASURED = 64;

/**
 * The measures of a window: of a rank in full, of the others in a table, and the command that measures the same.
 * @param {Model} model
 * @param {Rank} rank the one whose numbers come first
 * @param {number} from ns on the axis
 * @param {number} to
 * @returns {Node[]}
 */
export function measuredPanel(model, rank, from, to) {
  const heading = element("h3", {}, `Window of ${duration(to - from)} (${exact(to - from)})`);
  const same = copyable(command(model, rank, from, to));
  if (!model.document.whole) {
    const refusal =
      "This page leaves kernels out, so a window cannot be measured to the nanosecond here. Measure it from the traces:";
    return [heading, element("p", {}, refusal), same];
  }
  const devices = model.devicesOf(rank);
  const found = devices.flatMap((device) => [
    element(
      "h4",
      {},
      `${rank.member} ${rank.rank}${devices.length > 1 ? `, device ${device}` : ""}, unions of its kernels`,
    ),
    facts(entries(model, rank, from, to, device)),
  ]);
  return [heading, ...found, allRanks(model, from, to), same];
}

/**
 * The measures of a window, as names and values.
 * @param {Model} model
 * @param {Rank} rank
 * @param {number} from
 * @param {number} to
 * @param {string} device
 * @returns {[string, string][]}
 */
function entries(model, rank, from, to, device) {
  const at = model.at(rank);
  const own = measured(model, rank, from - at, to - at, device);
  /** @param {number} part */
  const line = (part) => `${exact(part)} · ${share(part, own.window)}`;
  return [
    ["computation", line(own.compute)],
    ["communication", line(own.communication)],
    ["hidden", line(own.hidden)],
    ["exposed", line(own.exposed)],
    ["memory operations", line(own.memory)],
    ["idle", line(own.idle)],
    ...(model.fieldOf.has("dimension") ? [...own.dimensions] : []).map(
      ([name, each]) =>
        /** @type {[string, string]} */ ([
          `${name}, exposed`,
          `${exact(each.exposed)} of ${exact(each.communication)}`,
        ]),
    ),
  ];
}

/** A table of all ranks, the exposed ones first. @param {Model} model @param {number} from @param {number} to */
function allRanks(model, from, to) {
  const shown = model.ranks.slice(0, MOST_MEASURED);
  const found = shown.flatMap((rank) => {
    const at = model.at(rank);
    const devices = model.devicesOf(rank);
    return devices.map((device) => ({
      name: devices.length > 1 ? `${rank.rank}, ${device}` : String(rank.rank),
      own: measured(model, rank, from - at, to - at, device),
    }));
  });
  found.sort((a, b) => b.own.exposed - a.own.exposed);
  const member = `${model.document.member}s`;
  const of = model.ranks.length > shown.length ? `the first ${shown.length} of ${model.ranks.length}` : "all";
  const table = element("table", {}, element("caption", {}, `${of} ${member}, most exposed first`));
  const header = element("tr");
  for (const name of [model.document.member, "computation", "exposed", "idle"])
    header.append(element("th", { scope: "col" }, name));
  table.append(header);
  for (const { name, own } of found) {
    const row = element("tr");
    for (const text of [name, duration(own.compute), duration(own.exposed), duration(own.idle)])
      row.append(element("td", {}, text));
    table.append(row);
  }
  return table;
}

/**
 * The command that measures the same.
 * @param {Model} model
 * @param {Rank} rank
 * @param {number} from
 * @param {number} to
 */
function command(model, rank, from, to) {
  const at = model.at(rank);
  const [start, end] = [rank.clock(from - at), rank.clock(to - at)];
  return `${model.document.overlap_command} ${filled(model.document.overlap_options, {
    rank: String(rank.rank),
    start_ns: String(start),
    end_ns: String(end),
    start_s: seconds(start),
    end_s: seconds(end),
  })}`;
}
