/** Everything that the page knows of a kernel, a micro-batch, a gap, a range or a call, as names and values. */

import { labelOf } from "./colours.js";
import { duration, exact, seconds, share, shortened } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./model.js").Host} Host */
/** @typedef {{kind: "kernel" | "step" | "gap" | "path" | "host", rank: Rank, index: number, host?: Host}} Chosen */

/** What signatures hold that is told in other ways. */
const TOLD = /^name$|^table$|^launch_name$|_evidence$|_rule$|^(grid|block)_[xyz]$/;

/** The slices that something is one of. @param {Chosen} chosen */
export function slicesOf({ kind, rank, host }) {
  if (host) return host.slices;
  return { kernel: rank.kernels, step: rank.steps, gap: rank.gaps, path: rank.path, host: rank.kernels }[kind];
}

/** @param {Chosen} chosen @returns {{start: number, length: number}} ns from the rank's first kernel */
export function extent(chosen) {
  const slices = slicesOf(chosen);
  return { start: slices.start[chosen.index], length: slices.length[chosen.index] };
}

/** Its name, in full. @param {Model} model @param {Chosen} chosen */
export function title(model, { kind, rank, index, host }) {
  if (host) return model.document.host_names?.[host.name[index]] ?? "";
  if (kind === "kernel") return String(model.value(rank.signature[index], "name"));
  if (kind === "step") return model.document.names[rank.stepName[index]];
  return kindOf(model, { kind, rank, index });
}

/** Its name, as it is written where there is little room. @param {Model} model @param {Chosen} chosen */
export function brief(model, chosen) {
  if (chosen.kind === "kernel") return model.shortName(chosen.rank.signature[chosen.index]);
  return shortened(title(model, chosen));
}

/** @type {Record<string, string>} kinds of what can be chosen → those of its lane */
const LANES = { kernel: "stream", step: "microbatches", gap: "gaps", path: "path" };

/** The label of its lane. @param {Model} model @param {Chosen} chosen */
function laneOf(model, { kind, rank, index, host }) {
  if (host) return host.label;
  const holding = rank.lanes.find(
    (lane) => lane.kind === LANES[kind] && (kind !== "kernel" || model.isIn(lane, rank.signature[index])),
  );
  return holding?.label ?? "";
}

/** What it is shown as. @param {Model} model @param {Chosen} chosen */
function kindOf(model, { kind, rank, index, host }) {
  const { kinds, categories, words } = model.document;
  if (kind === "kernel") return labelOf(words, categories[model.category[rank.signature[index]]]);
  const place = host ? host.kinds : { step: rank.stepKind, gap: rank.gapKind, path: rank.pathKind, host: [] }[kind];
  return labelOf(words, kinds[host?.kind ?? kind][place[index]]);
}

/** @param {Model} model @param {Chosen} chosen @returns {[string, string][]} */
export function described(model, chosen) {
  const { kind, rank, index, host } = chosen;
  const { start, length } = extent(chosen);
  /** @type {[string, string][]} */
  const entries = [
    [rank.member, rank.stage === null ? String(rank.rank) : `${rank.rank}, stage ${rank.stage}`],
    ["duration", `${duration(length)} (${exact(length)})`],
    ["start on its clock", `${rank.clock(start).toLocaleString("en-US")} ns`],
    ["lane", laneOf(model, chosen)],
    ["shown as", kindOf(model, chosen)],
  ];
  if (kind === "gap" && rank.member === "rank") return [...entries, ...gap(model, rank, index, length)];
  if (kind === "gap" || kind === "step" || kind === "path") return entries;
  if (host) return [...entries, ...hosted(model, rank, host, index, start)];
  return [...entries, ...kernel(model, rank, index, length)];
}

/** @param {Model} model @param {Rank} rank @param {number} index @param {number} length @returns {[string, string][]} */
function gap(model, rank, index, length) {
  const blocked = rank.gapBlocked[index];
  const starved = rank.gapStarved[index];
  /** @param {number} part */
  const of = (part) => `${duration(part)}, ${share(part, length)}`;
  const parts = [blocked, starved, length - blocked - starved];
  return model.document.kinds.gap.map((kind, place) => [labelOf(model.document.words, kind), of(parts[place])]);
}

/**
 * @param {Model} model
 * @param {Rank} rank
 * @param {Host} host
 * @param {number} index
 * @param {number} start
 * @returns {[string, string][]}
 */
function hosted(model, rank, host, index, start) {
  const launched = host.launched[index];
  /** @type {[string, string][]} */
  const entries = [["thread", host.thread]];
  if (host.kind === "call") {
    if (!launched) return [...entries, ["launched", "nothing on this GPU that the page carries"]];
    const kernel = launched - 1;
    return [
      ...entries,
      ["launched", `${model.value(rank.signature[kernel], "name")}${others(rank.launchedBy(host, index).length - 1)}`],
      ["which started", `${duration(rank.kernels.start[kernel] - start)} after this call`],
    ];
  }
  const words = launched === 1 ? "kernel or memory operation" : "kernels and memory operations";
  entries.push(["launched on this GPU", `${launched.toLocaleString("en-US")} ${words}`]);
  if (launched) {
    const length = host.gpuLength[index];
    entries.push(["their time, first start to last end", `${duration(length)} (${exact(length)})`]);
    entries.push(["which began", `${duration(host.gpuStart[index] - start)} after the range`]);
  }
  return entries;
}

/** What a call launched beside the first. @param {number} count */
function others(count) {
  return count > 0 ? `, and ${count.toLocaleString("en-US")} more` : "";
}

/** @param {Model} model @param {Rank} rank @param {number} index @param {number} length @returns {[string, string][]} */
function kernel(model, rank, index, length) {
  const signature = rank.signature[index];
  /** @param {string} field */
  const value = (field) => model.value(signature, field);
  /** @type {[string, string][]} */
  const entries = [
    ["full name", String(value("name"))],
    ["kernel_id", String(rank.kernelId[index])],
  ];
  if (rank.microbatch[index]) entries.push(["micro-batch", String(rank.microbatch[index] - 1)]);
  for (const field of model.fields) {
    const found = value(field);
    if (TOLD.test(field) || found === null || (field === "category" && found === value("kind"))) continue;
    entries.push([field.replaceAll("_", " "), typeof found === "number" ? found.toLocaleString("en-US") : found]);
  }
  for (const what of ["phase", "dimension"]) {
    const evidence = value(`${what}_evidence`);
    const rule = value(`${what}_rule`);
    if (evidence !== null)
      entries.push([`${what} known from`, rule === null ? String(evidence) : `${evidence} (rule ${rule})`]);
  }
  /** @param {string} what */
  const sides = (what) => ["x", "y", "z"].map((axis) => value(`${what}_${axis}`)).filter((side) => side !== null);
  if (sides("grid").length)
    entries.push(["grid × block", `${sides("grid").join(" × ")} of ${sides("block").join(" × ")}`]);
  const place = rank.waitOf(index);
  if (place !== undefined) {
    const wait = rank.waitLength[place] - 1;
    const last = rank.waitLastRank[place] - 1;
    if (rank.waitCommunication[place]) entries.push(["communication", String(rank.waitCommunication[place] - 1)]);
    if (wait < 0) entries.push(["wait", "not known"]);
    else {
      entries.push(["wait for the last member", `${duration(wait)}${last >= 0 ? `, which is rank ${last}` : ""}`]);
      entries.push(["transfer", duration(Math.max(length - wait, 0))]);
    }
  }
  const launch = launched(rank, index);
  if (launch !== null) {
    const called = value("launch_name");
    entries.push(["launched", `${duration(launch.before)} before its start${called === null ? "" : `, by ${called}`}`]);
    entries.push(["launch took", duration(launch.length)]);
  }
  return entries;
}

/** When a kernel was launched; null where that is not known. @param {Rank} rank @param {number} index */
export function launched(rank, index) {
  if (rank.launch === null || rank.launchLength === null || rank.launch[index] === 0) return null;
  const value = rank.launch[index];
  return { before: value > 0 ? value - 1 : value, length: rank.launchLength[index] };
}

/** The query that has a chosen thing's row. @param {Model} model @param {Chosen} chosen */
export function query(model, chosen) {
  const { run, iteration, queries } = model.document;
  if (queries) return filled(queries[chosen.host?.kind ?? chosen.kind], valuesOf(model, chosen));
  const table = { step: "microbatches", gap: "gpu_gaps", path: "path_segments", kernel: "", host: "" }[chosen.kind];
  const where = `run = '${run.replaceAll("'", "''")}' AND iteration = ${iteration} AND rank = ${chosen.rank.rank}`;
  const { start } = extent(chosen);
  if (chosen.kind === "kernel") {
    return `SELECT * FROM kernels WHERE ${where} AND kernel_id = ${chosen.rank.kernelId[chosen.index]}`;
  }
  const column = chosen.kind === "step" ? "span_start_ns" : "start_ns";
  return `SELECT * FROM ${table} WHERE ${where} AND ${column} = ${chosen.rank.clock(start)}`;
}

/** What a query of a profile asks for. @param {Model} model @param {Chosen} chosen @returns {Record<string, string>} */
function valuesOf(model, chosen) {
  const { rank, index, host } = chosen;
  const table = chosen.kind === "kernel" ? model.value(rank.signature[index], "table") : null;
  const { start, length } = extent(chosen);
  return {
    table: String(table),
    rank: String(rank.rank),
    thread: host?.threadId ?? "",
    start_ns: String(rank.clock(start)),
    start_s: seconds(rank.clock(start)),
    end_s: seconds(rank.clock(start + length)),
  };
}

/**
 * A text with values in the place of names in braces.
 * @param {string} text
 * @param {Record<string, string>} values
 */
export function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}
