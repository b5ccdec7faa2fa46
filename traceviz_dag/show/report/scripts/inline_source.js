/** Answers what a timeline shows from the page's own data, as a server does for a live page. */

import { commandOf, factsOf, queryOf, titleOf } from "./inline_facts.js";
import { measured } from "./measure.js";
import { COMMUNICATION, COMPUTATION, KERNELS } from "./model.js";

/** @typedef {import("./model.js").Lane} Lane */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./source.js").Band} Band */
/** @typedef {import("./source.js").Place} Place */
/** @typedef {import("./source.js").Shares} Shares */
/** @typedef {import("./source.js").Source} Source */

const MOST_MEASURED = 64;
const HITS_A_PAGE = 100;
const MOST_NAMES = 15;
/** Dots a bin may be wide before kernels are drawn instead. */
const WIDEST_BIN = 3;
/** Of a rank's row: what micro-batches take above kernels, and computation above communication. */
const STEPS_SHARE = 0.45;
const COMPUTATION_SHARE = 0.6;
const SEARCHED = ["name", "module", "operator", "category", "dimension", "group_description"];

/** @implements {Source} */
export class InlineSource {
  quick = true;
  /** @type {(words: string) => void} */
  say = () => {};

  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {any[]} */
    this.bookmarks = [];
    /** What was searched for last, and its hits as keys of lanes and rows. */
    this.found = { asked: "", hits: /** @type {[Lane, number][]} */ ([]) };
    /** Per signature and name of the host, whether the last pattern matches it. */
    this.matching = { pattern: "", signatures: new Uint8Array(0), hosts: new Uint8Array(0), words: "" };
    /** @type {Record<string, (values: any) => any>} */
    this.answers = {
      about: (values) => this.about(values),
      lanes: ({ lane }) => this.lanes(lane),
      detail: ({ slice }) => this.detail(...this.sliceOf(slice)),
      measure: (values) => this.measure(values),
      neighbour: (values) => this.neighbour(values),
      gap: (values) => this.gap(values),
      iteration: (values) => this.iteration(values),
      follow: ({ slice }) => this.follow(...this.sliceOf(slice)),
      members: ({ slice }) => this.members(...this.sliceOf(slice)),
      search: (values) => this.search(values),
      matched: (values) => this.matched(values),
    };
  }

  /** @param {string} what @param {import("./source.js").Values} values */
  async ask(what, values = {}) {
    return this.answers[what](values);
  }

  /** Keep or forget a bookmark, as long as the page is open. @param {string} _what @param {any} body */
  async change(_what, { forget, ...one }) {
    const others = this.bookmarks.filter((each) => JSON.stringify(each) !== JSON.stringify(one));
    this.bookmarks = forget ? others : [...others, one];
    return this.bookmarks;
  }

  /** @param {string} name */
  pattern(name) {
    return name;
  }

  /** What the page begins with, on some clocks; on the usual ones where these are refused. @param {{clocks?: string}} values */
  about({ clocks = "" }) {
    const { model } = this;
    if (!model.align(clocks)) model.align(model.usual);
    const { document, ranks } = model;
    const { categories, parts, words, groupings, kinds } = document;
    return {
      ...{ length: model.end, words, groupings, bookmarks: this.bookmarks, notes: [] },
      lanes: ranks.map((rank) => this.root(rank)),
      marks: this.marks,
      kinds: [...new Set([...categories, ...parts, ...kinds])],
      within: Object.fromEntries(
        parts
          .filter((part) => !categories.includes(part))
          .map((part) => [
            part,
            categories.filter((kind) => kind.includes(part === "memory_alone" ? "memory" : "communication")),
          ]),
      ),
      open: document.ranks.flatMap(({ open }, place) =>
        open ? [ranks[place].key, ...threads(ranks[place]).keys()] : [],
      ),
      clocks: model.axis.name,
      usual: model.usual,
      sentence: model.axis.sentence ?? "",
      ...(model.path.length && {
        path: model.path.map(({ rank, start, length }) => {
          const from = start + model.at(rank);
          return { lane: rank.key, from, to: from + length };
        }),
      }),
    };
  }

  /** @param {Rank} rank @returns {import("./source.js").Lane} */
  root({ key, label, member }) {
    return { key, label, parent: null, kind: member.toLowerCase(), rows: 1, holds: true, dimension: "" };
  }

  /** Where training steps and findings lie. */
  get marks() {
    const { model } = this;
    const steps = model.ranks.flatMap((rank) =>
      rank.windows.map(({ step, start, end }) => {
        const at = model.at(rank);
        const label = step === null ? "training step" : `training step ${step}`;
        return { kind: "iteration", from: start + at, to: end + at, lane: rank.key, label, places: [] };
      }),
    );
    const findings = model.document.findings.map(
      ({ finding, rule, severity, statement, rank: number, places, ...of }) => {
        const rank = number === null ? undefined : model.byRank.get(number);
        const from = rank ? model.at(rank) : 0;
        return {
          kind: { finding: "finding", note: "note" }[severity] ?? "",
          ...{ from, to: rank ? from + rank.length : model.end, lane: rank?.key ?? null },
          ...{ number: finding, label: rule, statement },
          culprit: Object.entries({ rank: number, stage: of.stage, dimension: of.dimension })
            .flatMap(([name, value]) => (value === null ? [] : [`${name} ${value}`]))
            .join(", "),
          places: places.flatMap(([of, start, length]) => {
            const placed = model.byRank.get(of);
            const begin = placed ? model.at(placed) + start : 0;
            return placed ? [{ lane: placed.key, from: begin, to: begin + length }] : [];
          }),
        };
      },
    );
    return [...steps, ...findings.filter(({ kind }) => kind)];
  }

  /** The lanes below one. @param {string} key */
  lanes(key) {
    const rank = this.model.rankOf(key);
    if (!rank) return [];
    const shown = [...this.model.lanesOf(rank).values()].filter((lane) => lane.parent !== null);
    const told = (/** @type {Lane[]} */ some) =>
      some.map(({ key, label, parent, kind, slices, dimension }) => {
        return { key, label, parent, kind, rows: slices.start.length, holds: false, dimension };
      });
    if (key !== rank.key) return told(shown.filter((lane) => lane.parent === key));
    const heads = [...threads(rank)].map(([key, label]) => {
      return { key, label, parent: rank.key, kind: "thread", rows: 0, holds: true, dimension: "" };
    });
    return [...told(shown.filter((lane) => lane.parent === key)), ...heads];
  }

  /** @param {string} text @returns {[Lane, number]} */
  sliceOf(text) {
    const [, key, row] = /^(.+)#(\d+)$/.exec(text) ?? ["", "", ""];
    const lane = this.model.lane(key);
    if (!lane || Number(row) >= lane.slices.start.length) throw new Error("This slice is not on the page.");
    return [lane, Number(row)];
  }

  /** @param {Rank} rank @param {import("./model.js").Slices} slices @param {number} row */
  times(rank, { start, length }, row) {
    const from = start[row] + this.model.at(rank);
    return { from, to: from + length[row] };
  }

  /** Where a slice lies: of kernels in the lane of their stream, where theirs is not shown. @param {Lane} lane @param {number} row @returns {Place} */
  place(lane, row) {
    if (lane.parent === null) return this.ofKernel(lane.rank, lane.slice(row));
    const { key, label, around, rank, slices } = lane;
    return { ...this.times(rank, slices, row), slice: `${key}#${row}`, lane: key, around, label };
  }

  /** The lanes that show a kernel. @param {Rank} rank @param {number} kernel */
  holding(rank, kernel) {
    return [...this.model.lanesOf(rank).values()].filter(
      (lane) => lane.parent !== null && lane.content.sort === "kernel" && lane.row(kernel) >= 0,
    );
  }

  /** @param {Rank} rank @param {number} kernel */
  ofKernel(rank, kernel) {
    const [lane] = this.holding(rank, kernel);
    return this.place(lane, lane.row(kernel));
  }

  /** Everything known of a slice. @param {Lane} lane @param {number} row */
  detail(lane, row) {
    const place = this.place(lane, row);
    const [shown] = this.sliceOf(place.slice);
    const slice = lane.slice(row);
    const kernel = lane.content.sort === "kernel";
    return {
      ...place,
      ...titleOf(this.model, lane, slice),
      ...factsOf(this.model, shown, slice),
      also: kernel ? this.holding(lane.rank, slice).map(({ key }) => key) : [],
      peers: this.members(lane, row).filter((one) => one.around[0] !== lane.rank.key),
      launch: this.follow(lane, row, false),
      ...queryOf(this.model, shown, slice, place),
    };
  }

  /**
   * From a kernel to the call that launched it, and back.
   * @param {Lane} lane
   * @param {number} row
   * @param {boolean} [times] whether the time of a launch is an answer, too, where the page does not have its call
   * @returns {any}
   */
  follow({ rank, content, ...lane }, row, times = true) {
    const slice = lane.chosen === null ? row : lane.chosen[row];
    if (content.sort === "call")
      return content.more.launched[slice] ? this.ofKernel(rank, content.more.launched[slice] - 1) : null;
    if (content.sort !== "kernel") return null;
    const call = rank.callOf(slice);
    const calls = call && [...this.model.lanesOf(rank).values()].find((each) => each.content === call.content);
    if (calls) return this.place(calls, call.slice);
    const start = rank.callStart(slice);
    if (start === null || !times) return null;
    const from = start + this.model.at(rank);
    return { from, to: from + Math.max(rank.launchLength?.[slice] ?? 0, 1) };
  }

  /** The same communication on all ranks. @param {Lane} lane @param {number} row @returns {Place[]} */
  members(lane, row) {
    if (lane.content.sort !== "kernel") return [];
    const found = [...this.model.membersOf(lane.rank, lane.slice(row))].sort(([a], [b]) => a.rank - b.rank);
    return found.map(([rank, kernel]) => this.ofKernel(rank, kernel));
  }

  /** The slice after or before one; without one, the one that runs at a time, or the nearest. @param {any} values */
  neighbour({ slice, lane: key, time, way, without = [], least = 0 }) {
    const step = way === "next" ? 1 : -1;
    const hidden = new Set(without);
    let [lane, row] = slice === undefined ? [this.ownLane(key), -1] : this.sliceOf(slice);
    if (!lane) return null;
    if (slice === undefined) {
      const own = Number(time) - this.model.at(lane.rank);
      row = step > 0 ? lane.slices.firstAfter(own) : lane.slices.startingBefore(own) - 1;
    } else row += step;
    for (; row >= 0 && row < lane.slices.start.length; row += step)
      if (lane.shows(row, hidden, least)) return this.place(lane, row);
    return null;
  }

  /** A lane, or the first one of a rank that has slices. @param {string} key */
  ownLane(key) {
    const rank = this.model.rankOf(key);
    const lanes = rank ? [...this.model.lanesOf(rank).values()] : [];
    return lanes.find(
      (lane) => lane.slices.start.length && (lane.key === key || (lane.parent !== null && lane.around.includes(key))),
    );
  }

  /** The next gap of a rank. @param {any} values */
  gap({ lane: key, time, way }) {
    const rank = this.model.rankOf(key);
    const lane = rank && [...this.model.lanesOf(rank).values()].find(({ kind }) => kind === "gaps");
    if (!lane) return null;
    const own = Number(time) - this.model.at(lane.rank);
    const row = way === "next" ? lane.slices.startingBefore(own + 1) : lane.slices.startingBefore(own) - 1;
    return row >= 0 && row < lane.slices.start.length ? this.place(lane, row) : null;
  }

  /** The next training step of a rank. @param {any} values */
  iteration({ lane, time, way }) {
    const key = (this.model.rankOf(lane) ?? this.model.ranks[0])?.key;
    const steps = this.marks.filter((mark) => mark.kind === "iteration" && mark.lane === key);
    const at = Number(time);
    return (
      (way === "next" ? steps.find(({ from }) => from > at + 1) : steps.findLast(({ from }) => from < at - 1)) ?? null
    );
  }

  /**
   * Which signatures a text is in, in any of the fields that are searched, and which names of ranges and calls. One
   * between slashes is a regular expression.
   * @param {string} text
   */
  matches(text) {
    if (text === this.matching.pattern) return this.matching;
    const { model } = this;
    const expression = /^\/(.+)\/$/.exec(text);
    const wanted = text.toLowerCase();
    /** @type {(word: string) => boolean} */
    let holds = (word) => word.toLowerCase().includes(wanted);
    let words = "";
    if (expression) {
      try {
        const made = new RegExp(expression[1], "i");
        holds = (word) => made.test(word);
      } catch {
        holds = () => false;
        words = "no such expression";
      }
    }
    const fields = SEARCHED.flatMap((field) => model.fieldOf.get(field) ?? []);
    const byField = fields.map((place) => model.values[place].map((value) => value !== null && holds(String(value))));
    const signatures = Uint8Array.from(model.rows, (row) =>
      fields.some((place, i) => byField[i][row[place]]) ? 1 : 0,
    );
    const hosts = Uint8Array.from(model.document.names, (name) => (holds(name) ? 1 : 0));
    this.matching = { pattern: text, signatures, hosts, words };
    return this.matching;
  }

  /** Whether the last pattern matches a row. @param {Lane} lane @param {number} row */
  isMatched({ rank, content, chosen }, row) {
    const slice = chosen === null ? row : chosen[row];
    if (content.thread) return this.matching.hosts[content.name(slice)] > 0;
    return content.sort === "kernel" && this.matching.signatures[rank.signature[slice]] > 0;
  }

  /** A page of what a text finds, in the order of the ranks, kernels first, and of time. @param {any} values */
  search({ pattern, page = 0, name, lane: [within] = [], dimension, without = [], least = 0 }) {
    const { words } = this.matches(pattern);
    const asked = JSON.stringify([pattern, within, dimension, without, least]);
    if (this.found.asked !== asked) {
      const hidden = new Set(without);
      const lanes = this.model.ranks.flatMap((rank) => this.searched(rank, within, dimension));
      /** @type {[Lane, number][]} */
      const hits = [];
      for (const lane of lanes) {
        for (let row = 0; row < lane.slices.start.length; row++)
          if (this.isMatched(lane, row) && lane.shows(row, hidden, least)) hits.push([lane, row]);
      }
      const exact =
        name === undefined
          ? -1
          : hits.findIndex(([lane, row]) => titleOf(this.model, lane, lane.slice(row)).full_name === name);
      if (exact > 0) hits.unshift(...hits.splice(exact, 1));
      this.found = { asked, hits };
    }
    const { hits } = this.found;
    const before = page * HITS_A_PAGE;
    const shown = hits.slice(before, before + HITS_A_PAGE).map(([lane, row]) => {
      const place = this.place(lane, row);
      return { ...place, name: titleOf(this.model, lane, lane.slice(row)).title, duration: place.to - place.from };
    });
    const total = hits.length;
    const where = this.model.document.whole ? "" : " of the kernels on this page";
    const said = words || (where && `${total.toLocaleString("en-US")} found${where}`);
    return {
      hits: shown,
      total,
      page,
      pages: Math.max(Math.ceil(total / HITS_A_PAGE), 1),
      before,
      ...(said && { words: said }),
    };
  }

  /** The lanes of a rank that are searched. @param {Rank} rank @param {string} [within] key of a lane @param {string} [dimension] */
  searched(rank, within = rank.key, dimension = "") {
    const lanes = [...this.model.lanesOf(rank).values()];
    const one = lanes.find((lane) => lane.key === within);
    if (one) return [one];
    if (dimension) return lanes.filter((lane) => lane.dimension === dimension && within === rank.key);
    if (within !== rank.key) return lanes.filter((lane) => lane.parent === within);
    return lanes.filter((lane) => lane.content.thread || lane.key === `${rank.key}/${KERNELS}`).reverse();
  }

  /** Where slices lie that a text finds: those less than a pixel apart are one stretch. @param {any} values */
  matched({ pattern, lane: keys, from, to, pixels, without = [], least = 0 }) {
    this.matches(pattern);
    const apart = (Number(to) - Number(from)) / pixels;
    const hidden = new Set(without);
    /** @type {Record<string, [number[], number[]]>} */
    const found = {};
    for (const key of keys) {
      const lane = this.model.lane(key) ?? this.model.lane(`${key}/${KERNELS}`);
      if (!lane) continue;
      /** @type {[number[], number[]]} */
      const [starts, ends] = [[], []];
      const at = this.model.at(lane.rank);
      const last = lane.slices.startingBefore(Number(to) - at);
      for (let row = lane.slices.firstAfter(Number(from) - at); row < last; row++) {
        if (!this.isMatched(lane, row) || !lane.shows(row, hidden, least)) continue;
        const place = this.times(lane.rank, lane.slices, row);
        if (ends.length && place.from - ends[ends.length - 1] < apart)
          ends[ends.length - 1] = Math.max(place.to, ends[ends.length - 1]);
        else {
          starts.push(place.from);
          ends.push(place.to);
        }
      }
      found[key] = [starts, ends];
    }
    return found;
  }

  /** The exact measures of a window, of the ranks of some lanes, and of all beside them. @param {any} values */
  measure({ from: first, to: last, lane: keys }) {
    const { model } = this;
    const [from, to] = [Number(first), Number(last)];
    const shown = model.ranks.slice(0, MOST_MEASURED);
    const wanted = keys.length ? keys.map((/** @type {string} */ key) => model.rankOf(key)) : shown;
    const commands = wanted.map((/** @type {Rank} */ rank) => commandOf(model, rank, from, to));
    if (!model.document.whole) {
      const refusal =
        "This page leaves kernels out, so a window cannot be measured to the nanosecond here. Measure it from the traces:";
      return { from, to, measures: [], top: [], commands, refusal };
    }
    const measures = wanted.flatMap((/** @type {Rank} */ rank) => this.measuresOf(rank, from, to));
    const beside = keys.length ? shown.flatMap((rank) => this.measuresOf(rank, from, to)) : measures;
    const top = wanted.flatMap((/** @type {Rank} */ rank) => this.topOf(rank, from, to));
    return { from, to, measures, top, commands, beside, beside_of: model.ranks.length };
  }

  /** @param {Rank} rank @param {number} from @param {number} to */
  measuresOf(rank, from, to) {
    const at = this.model.at(rank);
    return this.model.devicesOf(rank).flatMap((device) => {
      const { dimensions, kernels, ...own } = measured(this.model, rank, from - at, to - at, device);
      const lane = { lane: rank.key, label: rank.label, device: /^\d+$/.test(device) ? `gpu:${device}` : device };
      const ns = (/** @type {Record<string, number>} */ times) =>
        Object.fromEntries(Object.entries(times).map(([name, time]) => [`${name}_ns`, time]));
      const each = this.model.fieldOf.has("dimension") ? [...dimensions] : [];
      return [
        { ...lane, dimension: "all", kernels, ...ns({ ...own, busy: own.window - own.idle }) },
        ...each.map(([dimension, times]) => ({ ...lane, dimension, kernels: null, ...ns(times) })),
      ];
    });
  }

  /** The names that took most time in a window. @param {Rank} rank @param {number} from @param {number} to */
  topOf(rank, from, to) {
    const { slices, content } = /** @type {Lane} */ (this.model.lane(`${rank.key}/${KERNELS}`));
    const at = this.model.at(rank);
    /** @type {Map<number, {lane: string, name: string, count: number, total_ns: number, share: number}>} */
    const found = new Map();
    let all = 0;
    const last = slices.startingBefore(to - at);
    for (let kernel = slices.firstAfter(from - at); kernel < last; kernel++) {
      const start = slices.start[kernel];
      const time = Math.min(start + slices.length[kernel], to - at) - Math.max(start, from - at);
      const code = content.name(kernel);
      const one = found.get(code) ?? { lane: rank.key, name: content.names[code], count: 0, total_ns: 0, share: 0 };
      found.set(code, one);
      if (start >= from - at) one.count++;
      one.total_ns += time;
      all += time;
    }
    const ordered = [...found.values()].sort((a, b) => b.total_ns - a.total_ns).slice(0, MOST_NAMES);
    return ordered.map((one) => ({ ...one, share: all ? one.total_ns / all : 0 }));
  }

  /**
   * What lanes show, and headings; or the strip above them.
   * @param {any} values
   * @param {Record<string, number[]>} means
   */
  tiles({ lane: keys = [], overview, from: first, to: last, pixels, without = [], least = 0 }, means) {
    const view = { from: Number(first), to: Number(last), pixels };
    const { ranks, byRank, document } = this.model;
    if (overview) return { shown: [], strip: this.shares(view, ranks, `mean of all ${document.member}s`) };
    const hidden = new Set(without);
    const shown = keys.map((/** @type {string} */ key) => {
      if (means[key]) {
        const shares = this.shares(
          view,
          means[key].flatMap((number) => byRank.get(number) ?? []),
        );
        return { lane: key, bands: [{ top: 0, bottom: 1, shares }] };
      }
      const lane = this.model.lane(key);
      const rank = /** @type {Rank} */ (this.model.rankOf(key));
      const at = this.model.at(rank);
      const bands = lane
        ? [{ top: 0, bottom: 1, boxes: this.boxes(view, lane, hidden, least) }]
        : this.bands(view, rank, hidden, least);
      return { lane: key, ground: [at, at + rank.length], bands };
    });
    return { shown, strip: null };
  }

  /**
   * A rank in one row: micro-batches above, below them shares, or kernels where these are wide.
   * @param {Window} view
   * @param {Rank} rank
   * @param {Set<string>} hidden
   * @param {number} least
   * @returns {Band[]}
   */
  bands(view, rank, hidden, least) {
    const lanes = this.model.lanesOf(rank);
    const binned = rank.bins.length > 0;
    const steps = lanes.get(`${rank.key}/microbatches`);
    const below = steps && binned ? STEPS_SHARE : 0;
    const boxes = (/** @type {Lane | undefined} */ lane) => lane && this.boxes(view, lane, hidden, least);
    /** @type {Band[]} */
    const found = steps ? [{ top: 0, bottom: below || 1, boxes: boxes(steps) }] : [];
    if (!binned) return found;
    const wide = (view.pixels * this.model.document.bin_ns) / (view.to - view.from);
    const close = wide > WIDEST_BIN * (window.devicePixelRatio || 1) && rank.kernels.start.length > 0;
    if (!close || !this.model.document.whole) found.push({ top: below, bottom: 1, shares: this.shares(view, [rank]) });
    if (!close) return found;
    const middle = below + (1 - below) * COMPUTATION_SHARE;
    return [
      ...found,
      { top: below, bottom: middle, boxes: boxes(lanes.get(`${rank.key}/${COMPUTATION}`)) },
      { top: middle, bottom: 1, boxes: boxes(lanes.get(`${rank.key}/${COMMUNICATION}`)) },
    ];
  }

  /**
   * Shares of what ranks did, dot by dot.
   * @param {Window} view
   * @param {Rank[]} ranks the mean of these
   * @param {string} label
   * @returns {Shares}
   */
  shares({ from: first, to: last, pixels }, ranks, label = "") {
    const { parts, bin_ns: bin } = this.model.document;
    const count = parts.length;
    const dot = (last - first) / pixels;
    const times = new Float64Array(pixels * count);
    const whole = new Float64Array(pixels);
    for (const rank of ranks) {
      const { bins, length } = rank;
      const at = this.model.at(rank);
      const end = Math.min(Math.ceil((at + length - first) / dot), pixels);
      for (let x = Math.max(Math.floor((at - first) / dot), 0); x < end; x++) {
        const start = first + x * dot - at;
        const low = Math.max(Math.floor(start / bin), 0);
        const high = Math.min(Math.max(Math.ceil((start + dot) / bin), low + 1), bins.length / count);
        for (let i = low; i < high; i++) {
          whole[x] += bin;
          for (let part = 0; part < count; part++) times[x * count + part] += bins[i * count + part];
        }
      }
    }
    return { label, from: first, cell: dot, whole, kinds: parts, times };
  }

  /**
   * What is drawn of a lane: slices of a dot that are thinner than it are one cell, of the kind that fills most of it.
   * @param {Window} view
   * @param {Lane} lane
   * @param {Set<string>} hidden
   * @param {number} least
   */
  boxes({ from: first, to: last, pixels }, lane, hidden, least) {
    const { slices, content, rank, key } = lane;
    const at = this.model.at(rank);
    const dot = (last - first) / pixels;
    const cover = new Float64Array(content.kinds.length);
    /** @type {Record<"start" | "end" | "busy" | "count" | "kind" | "row" | "name" | "wait", number[]>} */
    const found = { start: [], end: [], busy: [], count: [], kind: [], row: [], name: [], wait: [] };
    let cell = -1;
    let longest = 0;
    const end = slices.startingBefore(last - at);
    for (let row = slices.firstAfter(first - at); row < end; row++) {
      if (!lane.shows(row, hidden, least)) continue;
      const start = slices.start[row] + at;
      const length = slices.length[row];
      const slice = lane.slice(row);
      const kind = content.kind(slice);
      const here = Math.floor((start - first) / dot);
      const before = found.start.length - 1;
      if (length < dot && here === cell) {
        cover[kind] += length;
        found.busy[before] = Math.min(found.busy[before] + length, dot);
        found.count[before]++;
        if (cover[kind] > cover[found.kind[before]]) found.kind[before] = kind;
        if (length > longest) found.row[before] = row;
        longest = Math.max(length, longest);
        continue;
      }
      cell = length < dot ? here : -1;
      cover.fill(0);
      cover[kind] = length;
      longest = length;
      const single = length >= dot;
      const from = single ? start : first + here * dot;
      found.start.push(from);
      found.end.push(single ? start + length : from + dot);
      found.busy.push(length);
      found.count.push(single ? 1 : 2);
      found.kind.push(kind);
      found.row.push(row);
      found.name.push(content.name(slice));
      found.wait.push(single && content.sort === "kernel" ? this.waited(rank, slice, length) : 0);
    }
    return { ...found, lane: key, kinds: content.kinds, names: content.names };
  }

  /** Time of a communication before the last member came; 0 where it is not known. @param {Rank} rank @param {number} kernel @param {number} length */
  waited(rank, kernel, length) {
    const place = this.model.kind[rank.signature[kernel]] === 1 ? rank.waitOf(kernel) : undefined;
    return place === undefined ? 0 : Math.min(Math.max(rank.waitLength[place] - 1, 0), length);
  }
}

/** @typedef {{from: number, to: number, pixels: number}} Window */

/** The threads of a rank: keys and labels. @param {Rank} rank @returns {Map<string, string>} */
function threads({ key, told }) {
  const ofThreads = told.filter(({ thread }) => thread);
  return new Map(
    ofThreads.map((lane) => [`${key}/${lane.key.slice(0, lane.key.lastIndexOf("/"))}`, lane.thread ?? ""]),
  );
}
