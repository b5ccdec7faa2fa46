/** The timeline on the page: draws it, and moves it with mouse and keys. */

import { Colours } from "./colours.js";
import { brief, described, extent, launched, query, slicesOf, title } from "./details.js";
import { Rows } from "./lanes.js";
import { Marks, statementOf } from "./marks.js";
import { measuredPanel } from "./measuring.js";
import { Painter } from "./painter.js";
import { picked } from "./picking.js";
import { hits, matching } from "./search.js";
import { ABOVE, NEAR, OVERVIEW, Stage } from "./stage.js";
import { address, changeAddress } from "./state.js";
import { byId, copied, copyable, duration, element, facts } from "./words.js";
import { Writer } from "./writer.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./details.js").Chosen} Chosen */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./painter.js").View} View */
/** @typedef {import("./raster.js").Raster} Raster */

const WIDEST_LABELS = 168;
const MARKED = 6;

export class Timeline extends Stage {
  /** @param {Model} model */
  constructor(model) {
    super(model.end, WIDEST_LABELS);
    this.model = model;
    this.rows = new Rows(model);
    /** @type {Chosen | null} */
    this.chosen = null;
    /** @type {Chosen[]} */
    this.matches = [];
    this.match = -1;
    this.showsPath = false;
    /** @type {Set<number>} categories that are left out, by place */
    this.hiddenCategories = new Set();
    this.shortest = 0;
    this.onPaper = false;
    /** @type {number[]} milliseconds of the last frames, for whoever measures */
    this.frames = [];
    this.painter = new Painter(model, this.rows, new Colours(model.document.words, this.dark.matches));
    this.marks = new Marks(model);
    this.writer = new Writer(this);
    /** The strip above, and what it was made of. */
    this.strip = { made: /** @type {unknown[]} */ ([]), pixels: new Uint32Array(0) };
    this.listen();
    this.fromAddress();
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.dark.addEventListener("change", () => {
      this.painter.coloured(new Colours(this.model.document.words, this.dark.matches));
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.tip(null));
    canvas.addEventListener("dblclick", (event) => this.open(event));
    const search = /** @type {HTMLInputElement} */ (byId("search"));
    search.addEventListener("input", () => this.search(search.value));
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.toMatch(event.shiftKey ? -1 : 1);
    });
    /** @type {HTMLSelectElement} */ (byId("clocks")).addEventListener("change", (event) => {
      this.align(/** @type {HTMLSelectElement} */ (event.target).value);
    });
    this.rows.grouping.offer(() => {
      this.keepRows();
      this.draw();
    });
    for (const box of document.querySelectorAll("#filters input[type=checkbox]")) {
      box.addEventListener("change", () => this.filter());
    }
    byId("shortest").addEventListener("input", () => this.filter());
  }

  /** Take what is looked at from the page's address: clocks, window, open ranks, what is searched, chosen and so on. */
  fromAddress() {
    const known = address();
    this.selection = null;
    this.lay(known.get("clocks") ?? "");
    const from = Number(known.get("t0") ?? "0");
    const to = Number(known.get("t1") ?? String(this.model.end));
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) this.looking.show(from, to, false);
    const ranks = (known.get("rank") ?? "").split(",").flatMap((word) => this.rankNamed(word) ?? []);
    this.rows.grouping.read(known);
    this.rows.open = known.has("rank") ? new Set(ranks.map((rank) => rank.rank)) : this.rows.usuallyOpen();
    this.pathShown(known.get("path") === "yes");
    this.marks.only(known.get("finding"));
    const search = /** @type {HTMLInputElement} */ (byId("search"));
    search.value = known.get("search") ?? "";
    this.search(search.value);
    const chosen = this.chosenNamed(known.get("chosen") ?? "");
    if (chosen !== null || this.chosen !== null || this.marks.chosen !== null) this.choose(chosen);
    if (ranks.length) this.openRank(ranks[0]);
    // What of it meant nothing here leaves the address.
    this.keepRows();
    this.keepClocks();
    changeAddress({
      finding: this.marks.chosen && String(this.marks.chosen.finding),
      ...(this.chosen === null && { chosen: null }),
    });
    this.draw();
  }

  /** @param {string} word @returns {Rank | undefined} */
  rankNamed(word) {
    return /^\d+$/.test(word) ? this.model.byRank.get(Number(word)) : undefined;
  }

  /** What an address names as chosen: its kind, rank and place. @param {string} text @returns {Chosen | null} */
  chosenNamed(text) {
    const [, kind, word, row, place] = /^(kernel|step|gap|path|host)\.(\d+)(?:\.(\d+))?\.(\d+)$/.exec(text) ?? [];
    const rank = this.rankNamed(word ?? "");
    if (rank === undefined) return null;
    const host = kind === "host" ? rank.hosts[Number(row)] : undefined;
    if ((kind === "host") !== (host !== undefined) || (kind === "host") !== (row !== undefined)) return null;
    const chosen = { kind: /** @type {Chosen["kind"]} */ (kind), rank, index: Number(place), ...(host && { host }) };
    return Number.isFinite(extent(chosen).start) ? chosen : null;
  }

  /** Lay the ranks on some clocks, or on the usual ones. @param {string} name */
  lay(name) {
    if (!this.model.align(name)) this.model.align(this.model.usual);
    this.looking.end = this.model.end;
    /** @type {HTMLSelectElement} */ (byId("clocks")).value = this.model.axis.name;
    byId("clocks-sentence").textContent = this.model.axis.sentence ?? "";
  }

  /** @param {string} name */
  align(name) {
    this.lay(name);
    // Where it was on the axis is another time of each rank now.
    this.selection = null;
    this.looking.show(this.looking.from, this.looking.to, false);
    this.keepClocks();
    this.draw();
  }

  keepClocks() {
    const { axis, usual } = this.model;
    changeAddress({ clocks: axis.name === usual ? null : axis.name });
  }

  /** Keep in the address which ranks are open and which pipelines are folded. */
  keepRows() {
    /** @param {Set<number>} ranks */
    const listed = (ranks) => [...ranks].sort((a, b) => a - b).join(",");
    const open = listed(this.rows.open);
    const opened = open === listed(this.rows.usuallyOpen()) ? null : open;
    changeAddress({ rank: opened, ...this.rows.grouping.address });
  }

  /**
   * Draw for paper, at once and in light colours, or for the screen again.
   * @param {boolean} onPaper
   */
  print(onPaper) {
    this.painter.coloured(new Colours(this.model.document.words, this.dark.matches && !onPaper));
    this.onPaper = onPaper;
    if (onPaper) this.paint();
    else this.draw();
  }

  repaint() {
    const started = performance.now();
    this.paint();
    this.frames.push(performance.now() - started);
    if (this.frames.length > 500) this.frames.shift();
  }

  paint() {
    if (!this.fit()) return;
    const { canvas, context, scale } = this;
    const { raster, view } = this;
    const { colours } = this.painter;
    raster.clear(colours.paper);
    const room = canvas.clientHeight - ABOVE;
    this.rows.layOut(room);
    this.scrollWithin(this.rows.height - room);
    /** @type {Map<number, [number, number]>} */
    const bands = new Map();
    const visible = this.rows.rows.filter((row) => row.top + row.height > this.scroll && row.top < this.scroll + room);
    for (const row of visible) {
      const top = Math.round((row.top - this.scroll + ABOVE) * scale);
      const bottom = Math.round((row.top + row.height - this.scroll + ABOVE) * scale);
      this.painter.row(raster, view, row, top, bottom);
      if (row.kind === "rank" && row.rank) bands.set(row.rank.place, [top, bottom]);
    }
    if (this.showsPath) this.painter.path(raster, view, bands);
    this.overview(raster, view);
    context.putImageData(raster.image, 0, 0);
    this.writer.write(visible);
    changeAddress({ t0: String(Math.round(this.looking.from)), t1: String(Math.round(this.looking.to)) });
  }

  /**
   * A call and what it launched, of which one is chosen.
   * @param {Chosen} chosen
   * @returns {{call: Chosen, kernel: Chosen} | null}
   */
  pairOf(chosen) {
    const { rank, index, host } = chosen;
    if (host?.kind === "call" && host.launched[index])
      return { call: chosen, kernel: { kind: "kernel", rank, index: host.launched[index] - 1 } };
    const found = chosen.kind === "kernel" ? rank.callOf(index) : null;
    return found && { call: { kind: "host", rank, ...found }, kernel: chosen };
  }

  /** Whether a row shows what is chosen. @param {Row} row @param {Chosen} chosen */
  holds(row, chosen) {
    if (row.kind === "rank") return !this.rows.open.has(chosen.rank.rank);
    if (chosen.kind === "step") return row.kind === "steps";
    if (chosen.kind === "gap" || chosen.kind === "path") return row.kind === (chosen.kind === "gap" ? "gaps" : "path");
    if (chosen.host || row.host) return row.host === chosen.host;
    if (!row.lane) return false;
    const slice = row.lane.chosen?.indexOf(chosen.index) ?? chosen.index;
    return slice >= 0;
  }

  /**
   * The strip above: the mean of all ranks over the whole axis. It is the same at each move and costs the most of all
   * rows where there are many ranks, so it is kept.
   * @param {Raster} raster
   * @param {View} view
   */
  overview(raster, view) {
    const { scale, strip } = this;
    const { colours, hiddenParts } = this.painter;
    const { axis, end, ranks } = this.model;
    const made = [raster, colours, axis, hiddenParts];
    if (made.some((each, place) => each !== strip.made[place])) {
      raster.fill(0, 0, raster.width, ABOVE * scale, colours.paper);
      const [top, bottom] = [Math.round(2 * scale), Math.round((OVERVIEW - 2) * scale)];
      this.painter.shares(raster, { ...view, from: 0, to: end }, ranks, top, bottom);
      this.strip = { made, pixels: raster.pixels.slice(0, raster.width * Math.round(ABOVE * scale)) };
    } else raster.pixels.set(strip.pixels);
  }

  /** @param {MouseEvent} event @returns {{at: number, row: Row | undefined, x: number, y: number}} */
  under(event) {
    const { at, x, y } = this.timeUnder(event);
    const row = y >= ABOVE ? this.rows.rowAt(y - ABOVE + this.scroll) : undefined;
    return { at, row, x, y };
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (event.buttons) return;
    const { at, row, x, y } = this.under(event);
    this.canvas.classList.toggle("points", x < this.labels && row !== undefined);
    const near = row !== undefined && y - ABOVE + this.scroll - row.top <= MARKED;
    const marked = near && x >= this.labels ? this.marks.at(this.model, row.rank, at, NEAR * this.perPixel) : [];
    this.tip(x < this.labels ? null : picked(this, row, at, y), event, marked);
  }

  /**
   * Show what lies under the mouse.
   * @param {Chosen | null} chosen
   * @param {PointerEvent} [event]
   * @param {import("./model.js").Finding[]} marked findings that are marked there
   */
  tip(chosen, event, marked = []) {
    const tip = byId("tip");
    tip.hidden = chosen === null && !marked.length;
    if (tip.hidden || event === undefined) return;
    tip.replaceChildren(...marked.map((finding) => element("p", { class: "attention" }, statementOf(finding))));
    if (chosen !== null) {
      // The name is in the heading; all of it is in the panel once it is chosen.
      const known = described(this.model, chosen).filter(([name]) => name !== "full name");
      tip.append(element("b", {}, brief(this.model, chosen)), facts(known));
    }
    this.placeTip(tip, event);
  }

  /** @param {PointerEvent} event */
  press(event) {
    this.canvas.focus();
    const begun = this.under(event);
    if (begun.x < this.labels) {
      if (begun.row) this.fold(begun.row);
      return;
    }
    this.tip(null);
    this.drag(event, event.shiftKey || document.body.classList.contains("measuring"), {
      clicked: () => this.choose(picked(this, begun.row, begun.at, begun.y)),
      selected: () => this.measure(begun.row?.rank ?? null),
      ended: (next) => this.hover(next),
    });
  }

  /** @param {MouseEvent} event */
  open(event) {
    const { row, x } = this.under(event);
    if (x >= this.labels && row?.rank) this.fold(row);
  }

  /** Fold or unfold a pipeline; open or close a rank. @param {Row} row */
  fold(row) {
    if (row.kind === "group") {
      this.rows.grouping.toggle(row.key);
    } else if (row.rank) {
      if (!this.rows.open.delete(row.rank.rank)) this.rows.open.add(row.rank.rank);
    }
    this.keepRows();
    this.draw();
  }

  /** Open a rank's lanes and bring them into sight. @param {Rank} rank */
  openRank(rank) {
    this.rows.open.add(rank.rank);
    this.rows.grouping.bring(rank.rank);
    this.keepRows();
    this.reveal(rank);
  }

  /** @param {Rank} rank */
  reveal(rank) {
    const room = this.canvas.clientHeight - ABOVE;
    this.rows.layOut(room);
    const row = this.rows.rows.find((each) => each.rank === rank);
    if (row && (row.top < this.scroll || row.top + row.height > this.scroll + room)) this.scrollTo(row.top - room / 3);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const { at, x } = this.under(event);
    const begins = this.begins(event);
    if (event.ctrlKey || event.metaKey || (!event.shiftKey && x >= this.labels && !this.scrolls(event))) {
      this.looking.zoom(1.0018 ** event.deltaY, at, begins);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.looking.move((event.deltaX || event.deltaY) / 1000, begins);
    } else this.scrollTo(this.scroll + event.deltaY);
    this.draw();
  }

  /** Whether a wheel moves the rows: over their labels, or sideways. @param {WheelEvent} event */
  scrolls(event) {
    return Math.abs(event.deltaX) > Math.abs(event.deltaY);
  }

  /** @param {Chosen | null} chosen */
  choose(chosen) {
    this.chosen = chosen;
    changeAddress({ chosen: chosen && placeOf(chosen) });
    const panel = byId("details");
    if (chosen === null) {
      const finding = this.marks.chosen;
      panel.replaceChildren(
        ...(finding ? [element("p", {}, statementOf(finding))] : []),
        element("p", { class: "quiet" }, "Click anything on the timeline to see all that is known of it."),
      );
      this.draw();
      return;
    }
    const sql = query(this.model, chosen);
    panel.replaceChildren(
      element("h3", { title: title(this.model, chosen) }, brief(this.model, chosen)),
      facts(described(this.model, chosen)),
      copyable(sql),
    );
    this.draw();
  }

  /** Measure the selection, else what is shown. @param {Rank | null} first the rank whose numbers come first */
  measure(first) {
    const window = this.selection ?? this.looking;
    // Nothing is known of the time before and after.
    const from = Math.round(Math.min(Math.max(window.from, 0), this.model.end - 1));
    const to = Math.round(Math.max(Math.min(window.to, this.model.end), from + 1));
    this.select(from, to);
    const rank = first ?? this.chosen?.rank ?? this.model.ranks[0];
    if (rank !== undefined) byId("details").replaceChildren(...measuredPanel(this.model, rank, from, to));
  }

  /** @param {string} text */
  search(text) {
    const words = byId("matches");
    changeAddress({ search: text || null });
    const found = matching(this.model, text);
    this.painter.found = text && found ? found.signatures : null;
    this.painter.foundHosts = text && found ? found.hosts : null;
    this.matches = text && found ? hits(this.model, found, this.rows.shows) : [];
    this.match = -1;
    const where = this.model.document.whole ? "" : " of the kernels on this page";
    words.textContent = text ? `${this.matches.length.toLocaleString("en-US")} found${where}` : "";
    if (found === null) words.textContent = "no such expression";
    this.draw();
  }

  /** @param {number} step */
  toMatch(step) {
    if (!this.matches.length) return;
    this.match = (this.match + step + this.matches.length) % this.matches.length;
    byId("matches").textContent =
      `${(this.match + 1).toLocaleString("en-US")} of ${this.matches.length.toLocaleString("en-US")}`;
    this.goTo(this.matches[this.match]);
  }

  /**
   * Search for a name, and go to the first slice that has all of it, of one rank where there is one.
   * @param {string} name
   * @param {string | undefined} rank
   */
  toName(name, rank) {
    /** @type {HTMLInputElement} */ (byId("search")).value = name;
    this.search(name);
    const exact = this.matches.flatMap((each, place) => (title(this.model, each) === name ? [place] : []));
    const own = exact.find((place) => String(this.matches[place].rank.rank) === rank);
    this.match = (own ?? exact[0] ?? 0) - 1;
    this.toMatch(1);
  }

  /** Choose something and bring it into sight. @param {Chosen} chosen */
  goTo(chosen) {
    const { start, length } = extent(chosen);
    const at = start + this.model.at(chosen.rank);
    const { from, to } = this.looking;
    if (at < from || at + length > to || length < (to - from) / 400) {
      const half = Math.max(length * 10, Math.min((to - from) / 2, this.model.end / 50));
      this.looking.show(at + length / 2 - half, at + length / 2 + half);
    }
    this.openRank(chosen.rank);
    this.choose(chosen);
  }

  /** Show the categories that are ticked, and what is long enough. */
  filter() {
    this.hiddenCategories.clear();
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (
      document.querySelectorAll("#filters input[type=checkbox]")
    )) {
      if (!box.checked) this.hiddenCategories.add(Number(box.value));
    }
    this.shortest = Number(/** @type {HTMLInputElement} */ (byId("shortest")).value) * 1000 || 0;
    this.rows.filter((kernel, rank) => {
      if (this.hiddenCategories.has(this.model.category[rank.signature[kernel]])) return false;
      return rank.kernels.length[kernel] >= this.shortest;
    });
    this.filterShares();
    this.search(/** @type {HTMLInputElement} */ (byId("search")).value);
  }

  /** Shares know computation by category, and communication and memory operations as a whole; the page says so. */
  filterShares() {
    const { categories, parts } = this.model.document;
    /** @param {(name: string) => boolean} of @returns {"all" | "none" | "some"} how many of these are shown */
    const shown = (of) => {
      const places = categories.flatMap((word, place) => (of(word) ? [place] : []));
      const left = places.filter((place) => !this.hiddenCategories.has(place)).length;
      return left === places.length ? "all" : left ? "some" : "none";
    };
    const communication = shown((name) => name.includes("communication"));
    /** @param {string} part */
    const hides = (part) => {
      if (categories.includes(part)) return shown((name) => name === part) === "none";
      if (part === "memory_alone") return shown((name) => name.startsWith("memory")) === "none";
      return communication === "none";
    };
    this.painter.hiddenParts = Uint8Array.from(parts, (part) => (hides(part) ? 1 : 0));
    const notes = [];
    if (communication === "some") notes.push("communication of all categories");
    if (this.shortest > 0) notes.push("kernels of any length");
    this.say(notes.length ? `From afar, shares count ${notes.join(" and ")}: zoom in to see kernels alone.` : "");
  }

  /** The next slice of what is chosen, in its lane; whether there is one. @param {number} step */
  next(step) {
    const rank = this.chosen?.rank ?? this.model.ranks[0];
    if (!rank) return false;
    if (this.chosen === null || this.chosen.kind !== "kernel") {
      /** @type {Chosen} */
      const like = this.chosen ?? { kind: rank.steps.start.length ? "step" : "kernel", rank, index: -1 };
      const count = slicesOf(like).start.length;
      const index = (this.chosen?.index ?? (step > 0 ? -1 : count)) + step;
      if (index < 0 || index >= count) return false;
      this.goTo({ ...like, index });
      return true;
    }
    const { index } = this.chosen;
    const lane = [...this.rows.lanesOf(rank).values()].find((each) => each.chosen?.includes(index));
    const place = (lane?.chosen?.indexOf(index) ?? -1) + step;
    if (!lane?.chosen || place < 0 || place >= lane.chosen.length) return false;
    this.goTo({ kind: "kernel", rank, index: lane.chosen[place] });
    return true;
  }

  /** The next gap of a rank. @param {number} step */
  gap(step) {
    const rank = this.chosen?.rank ?? this.model.ranks[0];
    if (!rank?.gaps.start.length) return;
    const here = this.chosen ? extent(this.chosen).start : this.looking.from - this.model.at(rank);
    const { start } = rank.gaps;
    let index = step > 0 ? start.findIndex((each) => each > here) : start.findLastIndex((each) => each < here);
    if (index < 0) index = step > 0 ? 0 : start.length - 1;
    this.goTo({ kind: "gap", rank, index });
  }

  /** Show the next training step. */
  step() {
    const rank = this.chosen?.rank ?? this.model.ranks[0];
    if (!rank?.windows.length) return;
    const at = this.model.at(rank);
    const next = rank.windows.find((each) => each.start + at > this.looking.from + 1) ?? rank.windows[0];
    this.looking.show(next.start + at, next.end + at);
  }

  /**
   * Show where a finding is: its marks alone, the rank at fault, and the place that holds most of it.
   * @param {string} number as an address has it
   */
  toFinding(number) {
    this.marks.only(number);
    const found = this.marks.chosen;
    if (found === null) return;
    changeAddress({ finding: number });
    const rank = this.model.byRank.get(found.rank ?? found.places[0]?.[0] ?? -1);
    if (rank) this.openRank(rank);
    this.choose(null);
    this.act("all");
  }

  /** Move to where the chosen kernel was launched, or to what the chosen call launched. */
  launch() {
    if (this.chosen === null) return;
    const pair = this.pairOf(this.chosen);
    if (pair) return this.goTo(this.chosen.host ? pair.kernel : pair.call);
    if (this.chosen.kind !== "kernel") return;
    const { rank, index } = this.chosen;
    const launch = launched(rank, index);
    if (launch === null) return;
    const at = rank.kernels.start[index] - launch.before + this.model.at(rank);
    const half = (this.looking.to - this.looking.from) / 2;
    this.looking.show(at - half, at + half);
    this.select(at, at + Math.max(launch.length, 1));
  }

  /** Bookmark what is shown. */
  bookmark() {
    const { from, to } = this.looking;
    const rank = this.chosen ? `, ${this.chosen.rank.member} ${this.chosen.rank.rank}` : "";
    const button = element(
      "button",
      { type: "button", class: "chip" },
      `${duration(Math.max(from, 0))} + ${duration(to - from)}${rank}`,
    );
    button.addEventListener("click", () => {
      this.looking.show(from, to);
      this.draw();
    });
    byId("bookmarks").append(button);
  }

  /**
   * Do what a key asks for; false where it is not the timeline's, or there is no further slice.
   * @param {string} action
   */
  act(action) {
    /** @type {Record<string, () => unknown>} */
    const actions = {
      ...this.moves,
      next: () => this.next(1),
      previous: () => this.next(-1),
      gap: () => this.gap(1),
      gapBefore: () => this.gap(-1),
      step: () => this.step(),
      launch: () => this.launch(),
      measure: () => this.measure(null),
      nextMatch: () => this.toMatch(1),
      previousMatch: () => this.toMatch(-1),
      bookmark: () => this.bookmark(),
      copy: () => this.copy(),
      path: () => !byId("path-button").hidden && this.togglePath(),
    };
    const found = actions[action];
    if (found === undefined) return false;
    const done = found() !== false;
    this.draw();
    return done;
  }

  /** Copy the query of what is chosen. */
  copy() {
    const { chosen } = this;
    const what = chosen?.kind === "gap" && this.model.document.queries ? "command" : "SQL";
    if (chosen === null) this.say("Choose a slice first, to copy its SQL.");
    else void copied(query(this.model, chosen)).then((done) => this.say(done ? `${what} copied` : ""));
  }

  togglePath() {
    this.pathShown(!this.showsPath);
  }

  /** @param {boolean} shown */
  pathShown(shown) {
    this.showsPath = shown;
    byId("path-button").setAttribute("aria-pressed", String(shown));
    changeAddress({ path: shown ? "yes" : null });
  }

  get chosenTime() {
    if (this.chosen === null) return null;
    const { start, length } = extent(this.chosen);
    const from = start + this.model.at(this.chosen.rank);
    return { from, to: from + length };
  }

  /** Forget selection and choice; whether there were any. */
  back() {
    const had = this.selection !== null || this.chosen !== null || this.marks.chosen !== null;
    this.selection = null;
    this.marks.only(undefined);
    changeAddress({ finding: null });
    this.choose(null);
    return had;
  }
}

/** How an address names something: kind, rank, row of the host, place. @param {Chosen} chosen */
function placeOf({ kind, rank, index, host }) {
  return [kind, rank.rank, ...(host ? [rank.hosts.indexOf(host)] : []), index].join(".");
}
