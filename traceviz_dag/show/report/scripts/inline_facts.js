/** Everything that a page carries of a kernel, a micro-batch, a gap, a range or a call, and the query of its row. */

import { labelOf } from "./colours.js";
import { duration, seconds, share } from "./words.js";

/** @typedef {import("./model.js").Content} Content */
/** @typedef {import("./model.js").Lane} Lane */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {{label: string, value: string | number, unit: string}} Fact */

/** What signatures hold that is told in other ways. */
const TOLD = /^name$|^table$|^launch_name$|_evidence$|_rule$|^(grid|block)_[xyz]$/;

/** @param {string} label @param {string | number} value @param {string} unit @returns {Fact} */
function fact(label, value, unit = "") {
  return { label, value, unit };
}

/** Its name, short and in full. @param {Model} model @param {Lane} lane @param {number} slice */
export function titleOf(model, lane, slice) {
  const { content, rank } = lane;
  const place = content.name(slice);
  const title = place < 0 ? kindOf(model, lane, slice) : content.names[place];
  const full = content.sort === "kernel" ? String(model.value(rank.signature[slice], "name")) : title;
  return { title, full_name: full };
}

/** What it is shown as. @param {Model} model @param {Lane} lane @param {number} slice */
function kindOf(model, { content }, slice) {
  return labelOf(model.document.words, content.kinds[content.kind(slice)]);
}

/** @param {Model} model @param {Lane} lane @param {number} slice */
export function factsOf(model, lane, slice) {
  const { content, rank, label } = lane;
  const { sort, slices } = content;
  const [start, length] = [slices.start[slice], slices.length[slice]];
  const facts = [
    fact(rank.member, rank.stage === null ? String(rank.rank) : `${rank.rank}, stage ${rank.stage}`),
    fact("duration", length, "ns"),
    fact("start on its clock", String(rank.clock(start)), "ns"),
    fact("lane", label),
    fact("shown as", kindOf(model, lane, slice)),
  ];
  if (sort === "gap" && rank.member === "rank") facts.push(...gap(model, content, slice, length));
  if (sort === "call") facts.push(...call(model, rank, content, slice));
  if (sort === "range") facts.push(...range(content, slice));
  if (sort === "kernel") facts.push(...kernel(model, rank, slice, length));
  return { facts, evidence: sort === "kernel" ? evidence(model, rank.signature[slice]) : [] };
}

/** @param {Model} model @param {Content} content @param {number} slice @param {number} length */
function gap(model, { more }, slice, length) {
  const [blocked, starved] = [more.blocked[slice], more.starved[slice]];
  const parts = [blocked, starved, length - blocked - starved];
  return model.document.gap_kinds.map((kind, place) =>
    fact(labelOf(model.document.words, kind), `${duration(parts[place])}, ${share(parts[place], length)}`),
  );
}

/** @param {Model} model @param {Rank} rank @param {Content} content @param {number} slice */
function call(model, rank, { more, slices, thread }, slice) {
  const kernel = more.launched[slice] - 1;
  if (kernel < 0) return [fact("thread", thread), fact("launched", "nothing on this GPU that the page carries")];
  const start = slices.start[slice];
  const others = rank.launchedAt(start) - 1;
  const rest = others > 0 ? `, and ${others.toLocaleString("en-US")} more` : "";
  return [
    fact("thread", thread),
    fact("launched", `${model.value(rank.signature[kernel], "name")}${rest}`),
    fact("which started", `${duration(rank.kernels.start[kernel] - start)} after this call`),
  ];
}

/** @param {Content} content @param {number} slice */
function range({ more, slices, thread }, slice) {
  const launched = more.launched[slice];
  const words = launched === 1 ? "kernel or memory operation" : "kernels and memory operations";
  const count = fact("launched on this GPU", `${launched.toLocaleString("en-US")} ${words}`);
  if (!launched) return [fact("thread", thread), count];
  return [
    fact("thread", thread),
    count,
    fact("their time, first start to last end", more.gpu_length[slice], "ns"),
    fact("which began", `${duration(more.gpu_start[slice] - slices.start[slice])} after the range`),
  ];
}

/** @param {Model} model @param {Rank} rank @param {number} slice @param {number} length */
function kernel(model, rank, slice, length) {
  const signature = rank.signature[slice];
  /** @param {string} field */
  const value = (field) => model.value(signature, field);
  const facts = [fact("kernel_id", String(rank.kernelId[slice]))];
  if (rank.microbatch[slice]) facts.push(fact("micro-batch", String(rank.microbatch[slice] - 1)));
  for (const field of model.fields) {
    const found = value(field);
    if (TOLD.test(field) || found === null || (field === "category" && found === value("kind"))) continue;
    facts.push(fact(field.replaceAll("_", " "), typeof found === "number" ? found.toLocaleString("en-US") : found));
  }
  /** @param {string} what */
  const sides = (what) => ["x", "y", "z"].map((axis) => value(`${what}_${axis}`)).filter((side) => side !== null);
  if (sides("grid").length)
    facts.push(fact("grid × block", `${sides("grid").join(" × ")} of ${sides("block").join(" × ")}`));
  const place = rank.waitOf(slice);
  if (place !== undefined) {
    const wait = rank.waitLength[place] - 1;
    const last = rank.waitLastRank[place] - 1;
    if (rank.waitCommunication[place]) facts.push(fact("communication", String(rank.waitCommunication[place] - 1)));
    if (wait < 0) facts.push(fact("wait", "not known"));
    else {
      facts.push(fact("wait for the last member", `${duration(wait)}${last >= 0 ? `, which is rank ${last}` : ""}`));
      facts.push(fact("transfer", Math.max(length - wait, 0), "ns"));
    }
  }
  const launched = rank.callStart(slice);
  if (launched !== null && rank.launchLength !== null) {
    const called = value("launch_name");
    const before = `${duration(rank.kernels.start[slice] - launched)} before its start`;
    facts.push(fact("launched", before + (called === null ? "" : `, by ${called}`)));
    facts.push(fact("launch took", rank.launchLength[slice], "ns"));
  }
  return facts;
}

/** What decided its phase and dimension. @param {Model} model @param {number} signature */
function evidence(model, signature) {
  return ["phase", "dimension"].flatMap((what) => {
    const [found, rule] = [model.value(signature, `${what}_evidence`), model.value(signature, `${what}_rule`)];
    if (found === null) return [];
    return [fact(`${what} known from`, rule === null ? String(found) : `${found} (rule ${rule})`)];
  });
}

/** The query that has its row, and the command that shows its window. @param {Model} model @param {Lane} lane @param {number} slice @param {{from: number, to: number}} window */
export function queryOf(model, { content, rank }, slice, { from, to }) {
  const { run, iteration, queries } = model.document;
  const { sort, slices, threadId } = content;
  const measure = commandOf(model, rank, from, to);
  const start = rank.clock(slices.start[slice]);
  if (queries) {
    const table = sort === "kernel" ? model.value(rank.signature[slice], "table") : null;
    const values = { table: String(table), thread: threadId, ...valuesOf(model, rank, from, to) };
    const query = filled(queries[sort], values);
    return sort === "gap" ? { sql: "", command: query } : { sql: query, command: measure };
  }
  const table = {
    step: "microbatches",
    gap: "gpu_gaps",
    path: "path_segments",
    kernel: "kernels",
    range: "",
    call: "",
  }[sort];
  const where = `run = '${run.replaceAll("'", "''")}' AND iteration = ${iteration} AND rank = ${rank.rank}`;
  const column = sort === "step" ? "span_start_ns" : "start_ns";
  const row = sort === "kernel" ? `kernel_id = ${rank.kernelId[slice]}` : `${column} = ${start}`;
  return { sql: `SELECT * FROM ${table} WHERE ${where} AND ${row}`, command: measure };
}

/** A window on the clock of a rank. @param {Model} model @param {Rank} rank @param {number} from on the axis @param {number} to */
function valuesOf(model, rank, from, to) {
  const at = model.at(rank);
  const [start, end] = [rank.clock(from - at), rank.clock(to - at)];
  const times = { start_ns: String(start), end_ns: String(end), start_s: seconds(start), end_s: seconds(end) };
  return { rank: String(rank.rank), ...times };
}

/** The command that measures a window. @param {Model} model @param {Rank} rank @param {number} from on the axis @param {number} to */
export function commandOf(model, rank, from, to) {
  const { overlap_command: command, overlap_options: options } = model.document;
  return `${command} ${filled(options, valuesOf(model, rank, from, to))}`;
}

/** A text with values in the place of names in braces. @param {string} text @param {Record<string, string>} values */
function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);
}
