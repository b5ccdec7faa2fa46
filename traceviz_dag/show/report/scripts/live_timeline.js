/** The live timeline: draws tiles that it asks for as it moves, with the mouse and the keys of the report. */

import { paintBoxes, paintCounter, paintPlaces, paintStrip } from "./boxes.js";
import { Colours, labelOf } from "./colours.js";
import { Grouping } from "./grouping.js";
import { LiveFilters } from "./live_filters.js";
import { Hits } from "./live_hits.js";
import { isDrawn, Lanes } from "./live_lanes.js";
import { LiveMarks } from "./live_marks.js";
import { detailParts, exactly, measureParts } from "./live_panel.js";
import { whole } from "./live_source.js";
import { Tiles } from "./live_tiles.js";
import { Walk } from "./live_walk.js";
import { LiveWriter } from "./live_writer.js";
import { ABOVE, NEAR, OVERVIEW, Stage } from "./stage.js";
import { address, changeAddress } from "./state.js";
import { byId, copied, duration, element, facts } from "./words.js";

/** @typedef {import("./live_lanes.js").LiveRow} LiveRow */
/** @typedef {import("./live_panel.js").Place} Place */
/** @typedef {import("./live_source.js").Source} Source */

const LABELS = 210;
const FEW = 2;
/** Signs at one place of the ruler that are shown at once. */
const FEW_SIGNS = 6;

export class LiveTimeline extends Stage {
  /**
   * @param {Source} source
   * @param {any} about as the server shows it
   */
  constructor(source, about) {
    super(Math.max(Number(about.length), 1), LABELS);
    this.source = source;
    this.about = about;
    this.end = this.looking.end;
    this.grouping = new Grouping(about.groupings, about.lanes.length);
    this.lanes = new Lanes(source, this.grouping);
    this.lanes.take("", about.lanes);
    this.colours = new Colours(about.words, this.dark.matches);
    this.filters = new LiveFilters(this);
    this.tiles = new Tiles(this);
    this.hits = new Hits(this);
    this.walk = new Walk(this);
    this.marks = new LiveMarks(this);
    this.writer = new LiveWriter(this);
    /** @type {Place | null} */
    this.chosen = null;
    /** @type {any} what is known of the chosen slice */
    this.known = null;
    /** @type {any} the last measures */
    this.measured = null;
    /** @type {string} key of the lane that keys act on */
    this.lane = about.lanes[0]?.key ?? "";
    /** what is asked after a move, in the order of the keys */
    this.queue = Promise.resolve();
    source.say = (words) => this.say(words);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.dark.addEventListener("change", () => {
      this.colours = new Colours(this.about.words, this.dark.matches);
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.tip(null));
    const search = /** @type {HTMLInputElement} */ (byId("search"));
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.soon(() => this.hits.search(search.value, 0));
    });
    byId("shortest").addEventListener("input", () => {
      const found = Number(/** @type {HTMLInputElement} */ (byId("shortest")).value) * 1000;
      this.filters.shortest = Number.isFinite(found) ? Math.max(Math.round(found), 0) : 0;
      this.filters.keep();
    });
    this.grouping.offer(() => {
      this.lanes.layOut();
      this.keepRows();
      this.draw();
    });
    byId("dimension").addEventListener("change", () => {
      this.lanes.dimension = /** @type {HTMLSelectElement} */ (byId("dimension")).value;
      this.lanes.layOut();
      this.filters.keep();
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

  /** Take what is looked at from the page's address. */
  async fromAddress() {
    const known = address();
    const from = Number(known.get("t0") ?? "0");
    const to = Number(known.get("t1") ?? String(this.end));
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) this.looking.show(from, to, false);
    this.filters.read(known);
    this.grouping.read(known);
    const open = known.get("open");
    const first = this.about.lanes.filter((/** @type {any} */ lane) => lane.holds).slice(0, FEW);
    const few = this.about.lanes.length <= FEW ? first.map((/** @type {any} */ lane) => lane.key) : [];
    for (const key of open === undefined ? few : open.split(" ")) await this.lanes.unfold(key);
    this.lanes.pinned = known.get("pinned")?.split(" ") ?? [];
    for (const key of this.lanes.pinned) await this.lanes.reach(key);
    this.lanes.layOut();
    const lane = known.get("lane");
    if (lane && this.lanes.known.has(lane)) this.lane = lane;
    const pattern = known.get("search");
    if (pattern && pattern !== this.hits.page?.pattern) {
      /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
      await this.hits.search(pattern, 0);
    }
    const chosen = known.get("chosen");
    if (chosen) await this.choose({ slice: chosen });
  }

  keepRows() {
    const { open, pinned } = this.lanes;
    changeAddress({ open: [...open].join(" "), pinned: pinned.join(" ") || null, ...this.grouping.address });
  }

  repaint() {
    this.paint();
    void this.tiles.fetch();
  }

  get room() {
    return Math.max(this.canvas.clientHeight - ABOVE, 1);
  }

  /** @returns {LiveRow[]} */
  get visible() {
    return this.lanes.rows.filter((row) => row.top + row.height > this.scroll && row.top < this.scroll + this.room);
  }

  paint() {
    if (!this.fit()) return;
    this.filters.offerDimensions();
    const { context, scale, colours } = this;
    const { raster, view } = this;
    this.scrollWithin(this.lanes.height - this.room);
    raster.clear(colours.paper);
    const visible = this.visible;
    for (const row of visible) {
      const top = Math.round((row.top - this.scroll + ABOVE) * scale);
      const bottom = Math.round((row.top + row.height - this.scroll + ABOVE) * scale);
      raster.fill(view.left, top, raster.width, bottom, isDrawn(row.lane) ? colours.idle : colours.header);
      const tile = this.tiles.known.get(row.lane.key);
      if (tile?.boxes) paintBoxes(raster, view, tile.boxes, colours, top, bottom);
      if (tile?.changes) paintCounter(raster, view, tile.changes, colours.of("computation"), top, bottom);
      const matches = this.tiles.matched.found[row.lane.key];
      if (matches) paintPlaces(raster, view, matches[0], matches[1], colours.ink, bottom - 2 * scale);
      for (const mark of this.marks.placed.get(row.lane.key) ?? [])
        paintPlaces(raster, view, [mark.from], [mark.to], colours.ink, top);
    }
    raster.fill(0, 0, raster.width, ABOVE * scale, colours.paper);
    const all = { ...view, from: 0, to: this.end };
    if (this.tiles.strip)
      paintStrip(raster, all, this.tiles.strip, colours, Math.round(2 * scale), Math.round((OVERVIEW - 2) * scale));
    context.putImageData(raster.image, 0, 0);
    this.writer.write(visible);
    changeAddress({ t0: String(Math.round(this.looking.from)), t1: String(Math.round(this.looking.to)) });
  }

  /** @param {MouseEvent} event */
  under(event) {
    const { at, x, y } = this.timeUnder(event);
    return { at, x, y, row: y >= ABOVE ? this.lanes.rowAt(y - ABOVE + this.scroll) : undefined };
  }

  /**
   * The box of a lane at a time, or the nearest one within some pixels.
   * @param {LiveRow | undefined} row
   * @param {number} at
   * @returns {number} -1 for none
   */
  pick(row, at) {
    const boxes = row && this.tiles.known.get(row.lane.key)?.boxes;
    if (!boxes) return -1;
    const slack = NEAR * this.perPixel;
    let best = -1;
    let distance = slack + 1e-9;
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
      return this.tip(words.length ? words.map((each) => element("p", {}, each)) : null, event);
    }
    this.canvas.classList.toggle("points", x < this.labels && row !== undefined);
    const boxes = row && this.tiles.known.get(row.lane.key)?.boxes;
    const place = x < this.labels ? -1 : this.pick(row, at);
    if (row === undefined || !boxes || place < 0) return this.tip(null);
    const { start, end, busy, count, name, kind, kinds, names } = boxes;
    const word = labelOf(this.about.words, kinds[kind[place]] ?? "");
    const head = name[place] >= 0 ? names[name[place]] : word;
    const several = count[place] > 1;
    const known = /** @type {[string, string][]} */ ([
      ["shown as", word],
      [several ? "cell" : "duration", duration(end[place] - start[place])],
      ...(several
        ? [
            ["slices", String(count[place])],
            ["busy", duration(busy[place])],
          ]
        : []),
      ["at", duration(start[place])],
      ["lane", row.lane.label],
    ]);
    this.tip([element("b", {}, several ? `longest: ${head}` : head), facts(known)], event);
    return undefined;
  }

  /** @param {(Node | string)[] | null} parts @param {PointerEvent} [event] */
  tip(parts, event) {
    const tip = byId("tip");
    tip.hidden = parts === null;
    if (parts === null || event === undefined) return;
    tip.replaceChildren(...parts);
    this.placeTip(tip, event);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const remembered = this.begins(event);
    if (event.shiftKey) this.scroll += event.deltaY || event.deltaX;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.looking.move(event.deltaX / 1000, remembered);
    else this.looking.zoom(Math.exp(event.deltaY * 0.0015), this.under(event).at, remembered);
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
    this.tip(null);
    this.drag(event, event.shiftKey && begun.y >= OVERVIEW, {
      clicked: () => void this.soon(() => this.chooseAt(begun.row, begun.at)),
      selected: () => void this.soon(() => this.measure(false)),
    });
  }

  /** @param {string} key */
  async toggle(key) {
    if (this.lanes.isOpen(key)) this.lanes.fold(key);
    else await this.lanes.unfold(key);
    this.keepRows();
  }

  /** @param {LiveRow | undefined} row @param {number} at */
  async chooseAt(row, at) {
    const boxes = row && this.tiles.known.get(row.lane.key)?.boxes;
    const place = this.pick(row, at);
    if (row && boxes && place >= 0) await this.choose({ slice: `${row.lane.key}#${boxes.row[place]}` });
    else this.forget();
  }

  /** Choose a slice and show all that is known of it. @param {{slice: string}} place */
  async choose(place) {
    const found = await this.source.ask("detail", { slice: place.slice });
    this.known = found;
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

  /** Bring a lane into sight. @param {string} key */
  reveal(key) {
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
    this.known = null;
    changeAddress({ chosen: null });
    this.panel([element("p", { class: "quiet" }, "Nothing is chosen.")]);
  }

  /** The selection, or what is shown, in whole ns. */
  get window() {
    const { from, to } = this.selection ?? this.looking;
    const low = Math.max(Math.round(from), 0);
    return { from: low, to: Math.max(Math.min(Math.round(to), this.end), low + 1) };
  }

  /** Measure exactly the window, of the rank or GPU of the lane, or of all. @param {boolean} all */
  async measure(all) {
    const { from, to } = this.window;
    const root = this.lanes.known.get(this.lanes.rootOf(this.lane));
    const one = !all && root && (root.kind === "rank" || root.kind === "gpu");
    this.say("measuring …");
    const lane = one ? [root.key] : [];
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
    const text = what === "sql" ? this.known?.sql : (this.known?.command ?? this.measured?.commands[0]);
    if (!text)
      return this.say(
        what === "sql" ? "Choose a slice of a table first, to copy its SQL." : "Choose or measure first.",
      );
    return this.say((await copied(text)) ? "copied" : "");
  }

  /** @param {number} step */
  moveLane(step) {
    const { rows } = this.lanes;
    const place = rows.findIndex((row) => row.lane.key === this.lane);
    const row = rows[Math.min(Math.max(place + step, 0), rows.length - 1)];
    if (!row) return;
    this.lane = row.lane.key;
    this.reveal(this.lane);
  }

  /** Set an edge of the selection at the slice, or at the edge of what is shown. @param {"from" | "to"} edge */
  edge(edge) {
    const selection = { ...(this.selection ?? this.looking), [edge]: (this.chosen ?? this.looking)[edge] };
    this.select(selection.from, selection.to);
  }

  get chosenTime() {
    return this.chosen;
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
      back: () => {
        this.selection = null;
        this.forget();
      },
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
    this.say("");
    if (now[action]) now[action]();
    else if (asked[action]) void this.soon(asked[action]);
    else return false;
    this.draw();
    return true;
  }
}
