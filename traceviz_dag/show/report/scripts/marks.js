/** Marks of a timeline: findings, notes, bookmarks and where training steps start. */

import { bookmarkChips, bookmarkParts, findingParts, SIGNS } from "./panel.js";
import { changeAddress } from "./state.js";
import { byId, duration, element } from "./words.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

export class Marks {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {any} the finding whose places alone are marked; null marks those of all that are no notes */
    this.chosen = null;
    /** @type {Map<string, any[]>} lane → places of findings in it */
    this.placed = new Map();
    /** @type {Set<string>} lanes that findings blame */
    this.blamed = new Set();
    this.only(undefined);
  }

  /** Mark the places of one finding alone. @param {string | undefined} number as an address has it */
  only(number) {
    const { marks } = this.timeline.about;
    const found = marks.filter((/** @type {any} */ mark) => mark.kind === "finding" || mark.kind === "note");
    this.chosen = found.find((/** @type {any} */ mark) => String(mark.number) === number) ?? null;
    this.placed.clear();
    this.blamed.clear();
    for (const mark of found) {
      if (mark.kind === "finding" && mark.lane !== null) this.blamed.add(mark.lane);
      if (this.chosen === null ? mark.kind !== "finding" : mark !== this.chosen) continue;
      for (const place of mark.places)
        this.placed.set(place.lane, [...(this.placed.get(place.lane) ?? []), { ...place, mark }]);
    }
    changeAddress({ finding: this.chosen && String(number) });
  }

  /** Where training steps start: of the rank that keys act on, where ranks have theirs. @returns {number[]} */
  get starts() {
    const { about, lanes, lane } = this.timeline;
    const root = lanes.rootOf(lane);
    return about.marks.flatMap((/** @type {any} */ mark) =>
      mark.kind === "iteration" && (mark.lane === null || mark.lane === root) ? [mark.from] : [],
    );
  }

  /**
   * What lies in time beside the lanes: places of findings and notes, then bookmarks.
   * @returns {{from: number, to: number, sign: string, words: string}[]}
   */
  get inTime() {
    const { marks, bookmarks } = this.timeline.about;
    const found = marks.flatMap((/** @type {any} */ mark) =>
      (mark.places.length || mark.lane === null ? mark.places : [mark]).map((/** @type {any} */ place) => ({
        ...place,
        sign: SIGNS[mark.kind],
        words: wordsOf(mark),
      })),
    );
    const kept = (bookmarks ?? []).map((/** @type {any} */ one) => ({ ...one, sign: SIGNS.bookmark, words: one.note }));
    return [...found.filter((/** @type {any} */ one) => one.sign), ...kept];
  }

  /** What the findings that are marked at a time of a lane state. @param {string} lane @param {number} at @param {number} slack */
  at(lane, at, slack) {
    const there = (this.placed.get(lane) ?? []).filter((one) => one.from - slack <= at && at <= one.to + slack);
    return [...new Set(there.map((one) => wordsOf(one.mark)))];
  }

  /** Show them as a list. */
  list() {
    this.timeline.panel(
      findingParts(this.timeline.about.marks, (mark) =>
        this.timeline.soon(async () => {
          await this.open(String(mark.number));
          const place = mark.places[0] ?? mark;
          if (mark.places.length) this.timeline.select(place.from, place.to);
          this.timeline.show(place.from, place.to);
        }),
      ),
    );
  }

  /** Mark one finding alone, and open the rank at fault or the one that holds most of it. @param {string} number */
  async open(number) {
    this.only(number);
    const lane = this.chosen?.lane ?? this.chosen?.places[0]?.lane;
    if (!lane) return;
    await this.timeline.open(lane);
    this.timeline.reveal(lane);
  }

  /** What is said of the finding that is marked alone. @returns {HTMLElement[]} */
  get told() {
    return this.chosen ? [element("p", {}, wordsOf(this.chosen))] : [];
  }

  /** Ask for the note of a bookmark at what is shown. */
  bookmark() {
    const { from, to } = this.timeline.looking;
    if (this.timeline.about.bookmarks === null)
      return this.timeline.say("No bookmarks are kept where two sources lie beside each other.");
    const words = `${duration(Math.max(from, 0))} + ${duration(to - from)}`;
    const one = { from: Math.round(from), to: Math.round(to), lane: this.timeline.lane };
    const { field, parts } = bookmarkParts(words, (note) => {
      this.timeline.forget();
      this.timeline.canvas.focus();
      void this.timeline.soon(async () =>
        this.showBookmarks(await this.timeline.source.change("bookmarks", { ...one, note })),
      );
    });
    this.timeline.panel(parts);
    return field.focus();
  }

  /** Show bookmarks as buttons. @param {any[] | null} kept */
  showBookmarks(kept) {
    this.timeline.about.bookmarks = kept;
    const go = (/** @type {any} */ one) => {
      if (one.lane) this.timeline.reveal(one.lane);
      this.timeline.looking.show(one.from, one.to);
      this.timeline.draw();
    };
    const forget = (/** @type {any} */ one) =>
      this.timeline.soon(async () =>
        this.showBookmarks(await this.timeline.source.change("bookmarks", { ...one, forget: true })),
      );
    byId("bookmarks").replaceChildren(...bookmarkChips(kept ?? [], go, forget));
  }
}

/** @param {any} mark */
function wordsOf(mark) {
  return `${mark.label.replaceAll("_", " ")}: ${mark.statement}`;
}
