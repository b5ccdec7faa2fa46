/** The timeline: draws what its source knows, and moves it with mouse and keys. The same on every page. */

import { Colours, labelOf } from "./colours.js";
import { Filters } from "./filters.js";
import { Grouping } from "./grouping.js";
import { Hits } from "./hits.js";
import { isDrawn, isRoot, Lanes } from "./lanes.js";
import { Marks } from "./marks.js";
import { Painter } from "./painter.js";
import { detailParts, exactly, line, measureParts } from "./panel.js";
import { whole } from "./source.js";
import { ABOVE, NEAR, OVERVIEW, Stage } from "./stage.js";
import { address, changeAddress } from "./state.js";
import { Tiles } from "./tiles.js";
import { Walk } from "./walk.js";
import { byId, copied, duration, element, facts } from "./words.js";
import { Writer } from "./writer.js";

/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./source.js").Boxes} Boxes */
/** @typedef {import("./source.js").Place} Place */
/** @typedef {import("./source.js").Source} Source */

const LABELS = 200;
const FEW = 2;
/** Signs at one place of the ruler that are shown at once. */
const FEW_SIGNS = 6;
/** Pixels from the top of a row within which the mouse is at its marks. */
const MARKED = 6;
/** Milliseconds that the mouse rests on a slice before a source that takes its time is asked about it. */
const RESTS = 250;
/** Of a row that is lower, the band of micro-batches has no room beside another one. */
const TWO_BANDS = 14;

export class Timeline extends Stage {
  /** @param {Source} source @param {any} about as the source shows it */
  constructor(source, about) {
    super(Math.max(Number(about.length), 1), LABELS);
    this.source = source;
    this.about = about;
    this.end = this.looking.end;
    this.grouping = new Grouping(about.groupings, about.lanes.length);
    this.lanes = new Lanes(source, this.grouping);
    this.lanes.take("", about.lanes);
    this.onPaper = false;
    this.colours = new Colours(about.words, this.dark.matches);
    this.filters = new Filters(this);
    this.tiles = new Tiles(this);
    this.hits = new Hits(this);
    this.walk = new Walk(this);
    this.marks = new Marks(this);
    this.writer = new Writer(this);
    /** @type {any} the last measures */
    this.measured = null;
    this.showsPath = false;
    /** @type {string} key of the lane that keys act on */
    this.lane = about.lanes[0]?.key ?? "";
    /** what is asked after a move, in the order of the keys */
    this.queue = Promise.resolve();
    /** the slice under the mouse */
    this.hovered = "";
    source.say = (words) => this.say(words);
    this.marks.showBookmarks(about.bookmarks);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.dark.addEventListener("change", () => this.print(this.onPaper));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.tip([]));
    canvas.addEventListener("dblclick", (event) => {
      const { row, x } = this.under(event);
      if (x >= this.labels && row) void this.soon(() => this.toggle(this.lanes.rootOf(row.lane.key)));
    });
    this.grouping.offer(() => {
      this.keepRows();
      this.draw();
    });
    byId("clocks").addEventListener("change", () => {
      void this.soon(() => this.lay(/** @type {HTMLSelectElement} */ (byId("clocks")).value));
    });
    for (const link of document.querySelectorAll("a.perfetto")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        this.soon(() => this.perfetto(/** @type {HTMLAnchorElement} */ (link).getAttribute("href") ?? ""));
      });
    }
  }

  /** Do what needs answers, after all that was asked for before; faults are reported. @param {() => Promise<unknown>} act */
  soon(act) {
    this.queue = this.queue.then(act).then(
      () => this.draw(),
      (error) => this.say(String(error.message ?? error)),
    );
    return this.queue;
  }

  /** Lay the ranks on other clocks, where the source has a choice. @param {string} [clocks] the usual ones for none */
  async lay(clocks = "") {
    const { bookmarks, clocks: before } = this.about;
    if (before === undefined) return;
    this.about = { ...(await this.source.ask("about", { clocks })), bookmarks };
    this.end = Math.max(Number(this.about.length), 1);
    this.looking.end = this.end;
    /** @type {HTMLSelectElement} */ (byId("clocks")).value = this.about.clocks;
    byId("clocks-sentence").textContent = this.about.sentence;
    changeAddress({ clocks: this.about.clocks === this.about.usual ? null : this.about.clocks });
    if (before === this.about.clocks) return;
    // Where something was on the axis is another time of each rank now.
    this.selection = null;
    this.looking.show(this.looking.from, this.looking.to, false);
    this.tiles.clear();
    this.marks.only(this.marks.chosen && String(this.marks.chosen.number));
    if (this.chosen) await this.choose(this.chosen);
  }

  /** The lanes that are open from the start. @returns {string[]} */
  get usuallyOpen() {
    const { lanes, open } = this.about;
    if (open) return open;
    return lanes.length <= FEW ? lanes.flatMap((/** @type {any} */ lane) => (lane.holds ? [lane.key] : [])) : [];
  }

  /** Take what is looked at from the page's address. */
  async fromAddress() {
    const known = address();
    this.selection = null;
    await this.lay(known.get("clocks"));
    const from = Number(known.get("t0") ?? "0");
    const to = Number(known.get("t1") ?? String(this.end));
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) this.looking.show(from, to, false);
    this.filters.read(known);
    this.grouping.read(known);
    this.lanes.open.clear();
    for (const key of known.get("open")?.split(" ") ?? this.usuallyOpen) await this.lanes.unfold(key);
    this.lanes.pinned = known.get("pinned")?.split(" ") ?? [];
    for (const key of this.lanes.pinned) await this.lanes.reach(key);
    const lane = known.get("lane");
    if (lane && this.lanes.known.has(lane)) this.lane = lane;
    this.pathShown(known.get("path") === "yes");
    const finding = known.get("finding");
    if (finding) await this.marks.open(finding);
    // What of it meant nothing here leaves the address.
    this.keepRows();
    const pattern = known.get("search") ?? "";
    /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
    if (pattern !== (this.hits.page?.pattern ?? "")) {
      await this.hits.search(pattern);
      if (pattern && !known.has("chosen") && !this.source.quick) this.hits.list();
    }
    const chosen = known.get("chosen");
    if (chosen) {
      changeAddress({ chosen: null });
      await this.choose({ slice: chosen });
    } else if (this.chosen !== null || this.marks.chosen !== null) this.forget();
  }

  /** Keep in the address which lanes are open and pinned, and how ranks are grouped. */
  keepRows() {
    const { open, pinned } = this.lanes;
    /** @param {Iterable<string>} keys */
    const listed = (keys) => [...keys].sort().join(" ");
    const opened = listed(open) === listed(this.usuallyOpen) ? null : listed(open);
    changeAddress({ open: opened, pinned: pinned.join(" ") || null, ...this.grouping.address });
  }

  /** Draw for paper, at once and in light colours, or for the screen again. @param {boolean} onPaper */
  print(onPaper) {
    this.colours = new Colours(this.about.words, this.dark.matches && !onPaper);
    this.onPaper = onPaper;
    if (onPaper) this.repaint();
    else this.draw();
  }

  get room() {
    return Math.max(this.canvas.clientHeight - ABOVE, 1);
  }

  /** @returns {Row[]} */
  get visible() {
    return this.lanes.rows.filter((row) => row.top + row.height > this.scroll && row.top < this.scroll + this.room);
  }

  repaint() {
    if (!this.fit()) return;
    this.filters.offerDimensions();
    this.lanes.room = this.room;
    this.lanes.layOut();
    this.scrollTo(Math.min(this.scroll, this.lanes.height - this.room));
    this.tiles.ask();
    const { context, scale, colours, raster, view, visible } = this;
    raster.clear(colours.paper);
    const painter = new Painter(raster, view, colours);
    const left = (/** @type {string} */ kind) => this.filters.leavesOut(kind);
    /** @type {Map<string, number>} */
    const bottoms = new Map();
    for (const row of visible) {
      const top = Math.round((row.top - this.scroll + ABOVE) * scale);
      const bottom = Math.round((row.top + row.height - this.scroll + ABOVE) * scale);
      this.paintRow(painter, row, top, bottom - (row.height > 6 ? 1 : 0), left);
      if (isRoot(row.lane)) bottoms.set(row.lane.key, bottom);
    }
    if (this.showsPath) painter.path(this.about.path, bottoms);
    raster.fill(0, 0, raster.width, ABOVE * scale, colours.paper);
    const whole = new Painter(raster, { ...view, from: 0, to: this.end }, colours);
    const { strip } = this.tiles;
    if (strip) whole.shares(strip, left, Math.round(2 * scale), Math.round((OVERVIEW - 2) * scale));
    context.putImageData(raster.image, 0, 0);
    this.writer.write(visible);
    changeAddress({ t0: String(Math.round(this.looking.from)), t1: String(Math.round(this.looking.to)) });
  }

  /** @param {Painter} painter @param {Row} row @param {number} top @param {number} bottom @param {(kind: string) => boolean} left */
  paintRow(painter, row, top, bottom, left) {
    const { raster, view, colours, scale } = this;
    const { lane } = row;
    const { ground } = this.tiles.known.get(lane.key) ?? {};
    if (lane.ranks || !isDrawn(lane))
      raster.fill(lane.ranks ? 0 : view.left, top, raster.width, bottom, colours.header);
    else painter.places([ground?.[0] ?? view.from], [ground?.[1] ?? view.to], colours.idle, top, bottom);
    if (lane.ranks && !this.grouping.folded.has(lane.key)) return;
    for (const { boxes, changes, shares, ...band } of this.bandsOf(row)) {
      const [from, to] = [band.top, band.bottom].map((share) => top + Math.round((bottom - top) * share));
      if (shares) painter.shares(shares, left, from, to);
      if (boxes) painter.boxes(boxes, from, to);
      if (changes) painter.counter(changes, from, to);
    }
    const matches = this.tiles.matched.found[lane.key];
    if (matches) painter.places(matches[0], matches[1], colours.match, bottom - 2 * scale, bottom);
  }

  /** What a row shows, from above: one band where it is too low for several. @param {Row} row @returns {import("./source.js").Band[]} */
  bandsOf({ lane, height }) {
    const bands = this.tiles.known.get(lane.key)?.bands ?? [];
    const low = height < TWO_BANDS ? bands.find((band) => band.shares) : undefined;
    return low ? [{ ...low, top: 0, bottom: 1 }] : bands;
  }

  /** @param {MouseEvent} event */
  under(event) {
    const { at, x, y } = this.timeUnder(event);
    return { at, x, y, row: y >= ABOVE ? this.lanes.rowAt(y - ABOVE + this.scroll) : undefined };
  }

  /**
   * The box of a lane under the mouse, or the nearest one within some pixels.
   * @param {Row | undefined} row
   * @param {number} at
   * @param {number} y
   * @returns {{boxes: Boxes, place: number} | null}
   */
  pick(row, at, y) {
    if (!row) return null;
    const share = (y - ABOVE + this.scroll - row.top) / row.height;
    /** @param {import("./source.js").Band} band */
    const away = ({ top, bottom }) => Math.max(top - share, share - bottom, 0);
    for (const { boxes } of this.bandsOf(row).toSorted((a, b) => away(a) - away(b))) {
      const place = boxes ? this.nearest(boxes, at) : -1;
      if (boxes && place >= 0) return { boxes, place };
    }
    return null;
  }

  /** @param {Boxes} boxes @param {number} at @returns {number} -1 for none */
  nearest(boxes, at) {
    let best = -1;
    let distance = NEAR * this.perPixel + 1e-9;
    for (let i = 0; i < boxes.start.length; i++) {
      const away = Math.max(boxes.start[i] - at, at - boxes.end[i], 0);
      // As they are drawn above each other: slices above cells, of slices the last one begun.
      const below = away === distance && boxes.count[i] > 1 && best >= 0 && boxes.count[best] === 1;
      if (away <= distance && !below) {
        best = i;
        distance = away;
      }
    }
    return best;
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (event.buttons) return;
    const { at, row, x, y } = this.under(event);
    if (y >= OVERVIEW && y < ABOVE) {
      const near = this.marks.inTime.filter((one) => Math.abs(one.from - at) <= 2 * NEAR * this.perPixel);
      const words = [...new Set(near.map((one) => `${one.sign} ${one.words}`))].slice(0, FEW_SIGNS);
      this.hovered = "";
      return this.tip(
        words.map((each) => element("p", {}, each)),
        event,
      );
    }
    this.canvas.classList.toggle("points", x < this.labels && row !== undefined);
    const found = x < this.labels ? null : this.pick(row, at, y);
    const near = row !== undefined && x >= this.labels && y - ABOVE + this.scroll - row.top <= MARKED;
    const marked = near ? this.marks.at(row.lane.key, at, NEAR * this.perPixel) : [];
    const parts = marked.map((words) => element("p", { class: "attention" }, words));
    const slice = found ? `${found.boxes.lane}#${found.boxes.row[found.place]}` : "";
    if (found && row) this.glance(slice, parts, event);
    this.hovered = slice;
    return this.tip([...parts, ...(found && row ? this.briefly(row, found.boxes, found.place) : [])], event);
  }

  /** What a box itself shows. @param {Row} row @param {Boxes} boxes @param {number} place */
  briefly(row, { start, end, busy, count, name, kind, kinds, names }, place) {
    const word = labelOf(this.about.words, kinds[kind[place]] ?? "");
    const head = name[place] >= 0 ? names[name[place]] : word;
    const several = count[place] > 1;
    const known = /** @type {[string, string][]} */ ([
      ["shown as", word],
      [several ? "cell" : "duration", duration(end[place] - start[place])],
      ...(several
        ? [
            ["slices", count[place] > 2 ? exactly(count[place]) : "several"],
            ["busy", duration(busy[place])],
          ]
        : []),
      ["at", duration(start[place])],
      ["lane", row.lane.label],
    ]);
    return [element("b", {}, several ? `longest: ${head}` : head), facts(known)];
  }

  /** Show all that is known of a slice beside the mouse, where it rests there. @param {string} slice @param {HTMLElement[]} above @param {PointerEvent} event */
  glance(slice, above, event) {
    if (slice === this.hovered && !this.source.quick) return;
    setTimeout(
      async () => {
        if (slice !== this.hovered || byId("tip").hidden) return;
        // A slice that is gone, or a server that is busy, leaves what the box itself shows.
        const found = await this.source.ask("detail", { slice }).catch(() => null);
        if (!found || slice !== this.hovered || byId("tip").hidden) return;
        const known = [...found.facts, ...found.evidence].map(line);
        this.tip([...above, element("b", {}, found.title), facts(known)], event);
      },
      this.source.quick ? 0 : RESTS,
    );
  }

  /** @param {(Node | string)[]} parts @param {PointerEvent} [event] */
  tip(parts, event) {
    const tip = byId("tip");
    tip.hidden = parts.length === 0;
    if (tip.hidden || event === undefined) return;
    tip.replaceChildren(...parts);
    this.placeTip(tip, event);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const { at, x } = this.under(event);
    const begins = this.begins(event);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey || (!event.shiftKey && !sideways && x >= this.labels))
      this.looking.zoom(1.0018 ** event.deltaY, at, begins);
    else if (event.shiftKey || sideways) this.looking.move((event.deltaX || event.deltaY) / 1000, begins);
    else this.scrollTo(this.scroll + event.deltaY);
    this.draw();
  }

  /** @param {PointerEvent} event */
  press(event) {
    this.canvas.focus();
    const begun = this.under(event);
    if (begun.row) this.lane = begun.row.lane.key;
    if (begun.x < this.labels) {
      if (begun.row) void this.soon(() => this.toggle(this.lane));
      return;
    }
    this.tip([]);
    this.drag(event, event.shiftKey && begun.y >= OVERVIEW, {
      clicked: () => void this.soon(() => this.chooseAt(begun.row, begun.at, begun.y)),
      selected: () => void this.soon(() => this.measure(false)),
      ended: (next) => this.hover(next),
    });
  }

  /** Open what is below a lane, or close it. @param {string} key */
  async toggle(key) {
    if (this.lanes.isOpen(key)) this.lanes.fold(key);
    else await this.lanes.unfold(key);
    this.keepRows();
  }

  /** Open a lane. @param {string} key */
  async open(key) {
    await this.lanes.unfold(key);
    this.lanes.bring(key);
    this.keepRows();
  }

  /** @param {Row | undefined} row @param {number} at @param {number} y */
  async chooseAt(row, at, y) {
    const found = this.pick(row, at, y);
    if (found) await this.choose({ slice: `${found.boxes.lane}#${found.boxes.row[found.place]}` });
    else this.forget();
  }

  /** Choose a slice and show all that is known of it. @param {{slice: string}} place */
  async choose({ slice }) {
    const found = await this.source.ask("detail", { slice });
    this.chosen = found;
    this.lane = found.lane;
    changeAddress({ chosen: found.slice });
    this.panel(detailParts(found, (to) => this.soon(() => this.goTo(to))));
  }

  /** @param {(Node | string)[]} parts */
  panel(parts) {
    byId("details").replaceChildren(...parts);
    byId("details").scrollTop = 0;
  }

  /** Choose a slice and bring it into sight. @param {Place} place */
  async goTo(place) {
    for (const key of place.around) await this.lanes.unfold(key);
    this.keepRows();
    this.reveal(place.lane);
    this.show(place.from, place.to);
    await this.choose(place);
  }

  /** Bring a lane into sight, which keys act on then. @param {string} key */
  reveal(key) {
    this.lane = key;
    this.lanes.bring(key);
    const row = this.lanes.rowOf(key);
    if (row === undefined) return;
    if (row.top < this.scroll) this.scrollTo(row.top);
    if (row.top + row.height > this.scroll + this.room) this.scrollTo(row.top + row.height - this.room);
  }

  /** Bring a time into sight; what is too short to be seen is shown larger. @param {number} from @param {number} to */
  show(from, to) {
    const { looking } = this;
    const length = looking.to - looking.from;
    const least = (length * NEAR) / (this.canvas.clientWidth - this.labels);
    if (to - from > length || to - from < least) {
      const around = Math.max((to - from) * 2, Math.min(length, (to - from) * 100), 20);
      looking.show((from + to - around) / 2, (from + to + around) / 2);
    } else if (from < looking.from || to > looking.to) {
      looking.show((from + to - length) / 2, (from + to + length) / 2);
    }
  }

  forget() {
    this.chosen = null;
    changeAddress({ chosen: null });
    this.panel([...this.marks.told, element("p", { class: "quiet" }, "Nothing is chosen.")]);
  }

  /** Forget selection and choice; whether there were any. */
  back() {
    const had = this.selection !== null || this.chosen !== null || this.marks.chosen !== null;
    this.selection = null;
    this.marks.only(undefined);
    this.forget();
    return had;
  }

  /** Show where a finding is: its marks alone, the rank at fault, and all of the time. @param {string} number as an address has it */
  async toFinding(number) {
    await this.marks.open(number);
    this.forget();
    this.act("all");
  }

  /** The selection, or what is shown, in whole ns. */
  get window() {
    const { from, to } = this.selection ?? this.looking;
    const low = Math.min(Math.max(Math.round(from), 0), this.end - 1);
    return { from: low, to: Math.max(Math.min(Math.round(to), this.end), low + 1) };
  }

  /** Measure exactly the window, of the rank or GPU of the lane, or of all. @param {boolean} all */
  async measure(all) {
    const { from, to } = this.window;
    const root = this.lanes.known.get(this.lanes.rootOf(this.lane));
    const lane = !all && root && isRoot(root) ? [root.key] : [];
    this.say("measuring …");
    this.measured = await this.source.ask("measure", { from: whole(from), to: whole(to), lane });
    this.say("");
    this.panel(measureParts(this.measured, (name) => this.soon(() => this.hits.find(name))));
    document.body.dataset.measured = `${exactly(from)} ${exactly(to)}`;
  }

  /** The Perfetto UI, at the window that is shown. @param {string} link */
  async perfetto(link) {
    const { from, to } = this.window;
    const found = await this.source.ask("perfetto", { from: whole(from), to: whole(to) });
    window.open(found ? `${link}&visStart=${found.from}&visEnd=${found.to}` : link, "_blank", "noopener");
  }

  /** @param {"sql" | "command"} what */
  async copy(what) {
    const sql = what === "sql" ? this.chosen?.sql : "";
    const text = sql || (this.chosen?.command ?? (what === "command" && this.measured?.commands[0]));
    if (!text) return this.say("Choose a slice first, or measure, to copy its query or command.");
    return this.say((await copied(text)) ? `${sql ? "SQL" : "command"} copied` : "");
  }

  /** @param {number} step */
  moveLane(step) {
    const { rows } = this.lanes;
    const place = rows.findIndex((row) => row.lane.key === this.lane);
    const row = rows[Math.min(Math.max(place + step, 0), rows.length - 1)];
    if (row) this.reveal(row.lane.key);
  }

  /** Set an edge of the selection at the slice, or at the edge of what is shown. @param {"from" | "to"} edge */
  edge(edge) {
    const selection = { ...(this.selection ?? this.looking), [edge]: (this.chosen ?? this.looking)[edge] };
    this.select(selection.from, selection.to);
  }

  /** Draw the critical path, where the source knows it. @param {boolean} shown */
  pathShown(shown) {
    this.showsPath = shown && this.about.path !== undefined;
    document.getElementById("path-button")?.setAttribute("aria-pressed", String(this.showsPath));
    changeAddress({ path: this.showsPath ? "yes" : null });
  }

  /** Do what a key asks for; false where it is not the timeline's. @param {string} action */
  act(action) {
    /** @type {Record<string, () => unknown>} */
    const now = {
      ...this.moves,
      findings: () => this.marks.list(),
      timeline: () => this.canvas.focus(),
      bookmark: () => this.marks.bookmark(),
      hits: () => this.hits.list(),
      laneDown: () => this.moveLane(1),
      laneUp: () => this.moveLane(-1),
      pin: () => {
        this.lanes.pin(this.lane);
        this.keepRows();
      },
      lower: () => this.lanes.shift(this.lane, 1),
      higher: () => this.lanes.shift(this.lane, -1),
      selectFrom: () => this.edge("from"),
      selectTo: () => this.edge("to"),
      back: () => this.back(),
    };
    /** @type {Record<string, () => Promise<unknown>>} */
    const asked = {
      next: () => this.walk.neighbour("next"),
      previous: () => this.walk.neighbour("previous"),
      gap: () => this.walk.gap("next"),
      gapBefore: () => this.walk.gap("previous"),
      step: () => this.walk.iteration("next"),
      stepBefore: () => this.walk.iteration("previous"),
      launch: () => this.walk.launch(),
      peer: () => this.walk.peer(),
      path: () => this.walk.path(),
      measure: () => this.measure(false),
      measureAll: () => this.measure(true),
      nextMatch: () => this.hits.step(1),
      previousMatch: () => this.hits.step(-1),
      toggle: () => this.toggle(this.lane),
      copy: () => this.copy("sql"),
      copyCommand: () => this.copy("command"),
    };
    if (!now[action] && !asked[action]) return false;
    this.say(this.filters.caveat);
    if (now[action]) now[action]();
    else void this.soon(asked[action]);
    this.draw();
    return true;
  }
}
