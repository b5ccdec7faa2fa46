/** The panel of a timeline: details, measures, hits, findings, bookmarks. All texts of others stay text. */

import { copyable, duration, element, facts, share } from "./words.js";

/** @typedef {import("./source.js").Place} Place */

/** Findings, notes and bookmarks as they lie in time. @type {Record<string, string>} */
export const SIGNS = { finding: "▲", note: "△", bookmark: "△" };

const LETTERS = 24;

/** A whole number that may be a text, because it is too large for a number. @param {number | string} value */
export function exactly(value) {
  return BigInt(value).toLocaleString("en-US");
}

/** A fact as a name and its value. @param {{label: string, value: string | number, unit: string}} fact @returns {[string, string]} */
export function line(fact) {
  if (fact.unit === "ns" && Number.isInteger(Number(fact.value))) {
    const size = Number(fact.value);
    const exact = `${exactly(fact.value)} ns`;
    return [fact.label, Math.abs(size) < 1e3 || Math.abs(size) > 1e12 ? exact : `${duration(size)} (${exact})`];
  }
  if (fact.unit === "") return [fact.label, String(fact.value)];
  const value = Number.isInteger(fact.value) ? exactly(fact.value) : String(fact.value);
  return [fact.label, `${value} ${fact.unit}`];
}

/** Names and values, the names no wider than the panel allows. @param {[string, string][]} entries */
function told(entries) {
  const list = facts(entries);
  list.classList.add("told");
  return list;
}

/** A button that does something. @param {string} text @param {() => unknown} act */
export function chip(text, act) {
  const made = element("button", { type: "button", class: "chip" }, text);
  made.addEventListener("click", () => act());
  return made;
}

/** Everything known of a slice. @param {any} found as the server shows it @param {(place: Place) => unknown} go */
export function detailParts(found, go) {
  const parts = [element("h3", { title: found.full_name }, found.title)];
  const known = found.facts.map(line);
  if (found.full_name !== found.title) known.push(["full name", found.full_name]);
  parts.push(told(known));
  if (found.evidence.length) parts.push(element("h4", {}, "Evidence"), told(found.evidence.map(line)));
  if (found.launch)
    parts.push(
      element(
        "p",
        {},
        chip("launch (x)", () => go(found.launch)),
      ),
    );
  if (found.peers.length) {
    const peers = found.peers.map((/** @type {Place} */ peer) => chip(rootName(peer), () => go(peer)));
    parts.push(element("h4", {}, "The same communication"), element("p", { class: "legend" }, ...peers));
  }
  if (found.sql) parts.push(element("h4", {}, "Its row"), copyable(found.sql));
  if (found.command) parts.push(element("h4", {}, "Its window"), copyable(found.command));
  return parts;
}

/** @param {Place} place */
function rootName(place) {
  return (place.around[0] ?? place.lane).replace(":", " ");
}

const MEASURED = /** @type {[string, string][]} */ ([
  ["computation", "compute_ns"],
  ["communication", "communication_ns"],
  ["hidden", "hidden_ns"],
  ["exposed", "exposed_ns"],
  ["memory", "memory_ns"],
  ["busy", "busy_ns"],
  ["idle", "idle_ns"],
]);

/**
 * The exact measures of a window.
 * @param {any} found as the server shows it
 * @param {(name: string) => unknown} find leads to the first slice of a name
 */
export function measureParts(found, find) {
  const length = found.to - found.from;
  const parts = [
    element("h3", {}, `Window of ${duration(length)}`),
    facts([
      ["from", `${exactly(found.from)} ns`],
      ["to", `${exactly(found.to)} ns`],
      ["length", `${exactly(length)} ns`],
    ]),
  ];
  if (found.refusal) parts.push(element("p", {}, found.refusal));
  for (const one of found.measures) {
    const which = one.dimension === "all" ? "" : `, dimension ${one.dimension}`;
    const lines = MEASURED.filter(([, key]) => one.dimension === "all" || /communication|hidden|exposed/.test(key));
    const entries = /** @type {[string, string][]} */ (
      lines.map(([words, key]) => [
        words,
        `${exactly(one[key])} ns (${duration(Number(one[key]))}, ${share(one[key], length)})`,
      ])
    );
    if (one.kernels !== null && one.dimension === "all") entries.unshift(["operations", exactly(one.kernels)]);
    const list = facts(entries);
    list.dataset.measured = `${one.lane} ${one.dimension}`;
    parts.push(element("h4", {}, `${one.label}, ${one.device}${which}`), list);
  }
  if (!found.measures.length && !found.refusal) parts.push(element("p", {}, "No GPU and no rank to measure."));
  const beside = (found.beside ?? found.measures).filter((/** @type {any} */ one) => one.dimension === "all");
  if (beside.length > 1) parts.push(mostExposedFirst(beside, found.beside_of ?? beside.length));
  if (found.top.length) {
    parts.push(element("h4", {}, "Most time by name, sums of durations"));
    const lanes = new Set(found.top.map((/** @type {any} */ one) => one.lane));
    for (const one of found.top) {
      const name = element("button", { type: "button", class: "finder" }, one.name);
      name.addEventListener("click", () => find(one.name));
      const of = lanes.size > 1 ? `, ${one.lane.replace(":", " ")}` : "";
      const words = ` ${one.count}× ${duration(one.total_ns)} (${(100 * one.share).toFixed(1)} %)${of}`;
      parts.push(element("p", {}, name, words));
    }
  }
  for (const command of found.commands) parts.push(copyable(command));
  return parts;
}

/** A table of ranks or GPUs. @param {any[]} measures @param {number} of how many there are */
function mostExposedFirst(measures, of) {
  const which = of > measures.length ? `the first ${measures.length} of ${of}` : "all";
  const table = element("table", {}, element("caption", {}, `${which}, most exposed first`));
  /** @param {string[]} texts @param {string} tag */
  const add = (texts, tag) => table.append(element("tr", {}, ...texts.map((text) => element(tag, {}, text))));
  add(["", "computation", "exposed", "idle"], "th");
  for (const one of measures.toSorted((a, b) => Number(b.exposed_ns) - Number(a.exposed_ns))) {
    const times = [one.compute_ns, one.exposed_ns, one.idle_ns].map((ns) => duration(Number(ns)));
    add([`${one.label}, ${one.device}`, ...times], "td");
  }
  return table;
}

/**
 * What a search found.
 * @param {any} found a page of hits
 * @param {(place: any) => unknown} go
 * @param {(page: number) => unknown} turn
 */
export function hitParts(found, go, turn) {
  const parts = [element("h3", {}, `${exactly(found.total)} found`)];
  if (found.pages > 1) {
    const bar = element("p", {}, `page ${found.page + 1} of ${found.pages} `);
    if (found.page > 0) bar.append(chip("before", () => turn(found.page - 1)));
    if (found.page + 1 < found.pages) bar.append(chip("next", () => turn(found.page + 1)));
    parts.push(bar);
  }
  for (const hit of found.hits) {
    const name = element("button", { type: "button", class: "finder" }, hit.name);
    name.addEventListener("click", () => go(hit));
    parts.push(element("p", {}, name, ` ${duration(hit.duration)} at ${duration(hit.from)}, ${hit.label}`));
  }
  return parts;
}

/** Findings and notes. @param {any[]} marks @param {(mark: any) => unknown} go */
export function findingParts(marks, go) {
  const found = marks.filter((mark) => mark.kind === "finding" || mark.kind === "note");
  const parts = [element("h3", {}, found.length ? "Findings" : "No findings are known of this.")];
  for (const mark of found) {
    const head = chip(`${SIGNS[mark.kind]} ${mark.label}`, () => go(mark));
    parts.push(element("p", {}, head), element("p", {}, mark.statement));
    if (mark.culprit) parts.push(element("p", { class: "quiet" }, mark.culprit));
    if (mark.sql) parts.push(copyable(mark.sql));
  }
  return parts;
}

/**
 * A field for the note of a new bookmark.
 * @param {string} words what is kept
 * @param {(note: string) => unknown} keep
 */
export function bookmarkParts(words, keep) {
  const field = /** @type {HTMLInputElement} */ (
    element("input", { type: "text", maxlength: "500", "aria-label": "note", placeholder: "note" })
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") keep(field.value);
  });
  const save = chip("keep", () => keep(field.value));
  return { field, parts: [element("h3", {}, "Bookmark"), element("p", {}, words), field, " ", save] };
}

/** Bookmarks as buttons. @param {any[]} kept @param {(one: any) => unknown} go @param {(one: any) => unknown} forget */
export function bookmarkChips(kept, go, forget) {
  return kept.flatMap((one) => {
    const whole = one.note || `${duration(one.from)} + ${duration(one.to - one.from)}`;
    const text = whole.length > LETTERS ? `${whole.slice(0, LETTERS - 1)}…` : whole;
    const cross = chip("×", () => forget(one));
    cross.setAttribute("aria-label", `forget ${whole}`);
    return [chip(`△ ${text}`, () => go(one)), cross];
  });
}
