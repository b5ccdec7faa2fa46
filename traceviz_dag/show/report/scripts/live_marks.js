/** Marks of a live timeline: findings, notes and bookmarks. */

import { bookmarkChips, bookmarkParts, findingParts, SIGNS } from "./live_panel.js";
import { byId, duration } from "./words.js";

/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

export class LiveMarks {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Map<string, any[]>} lane → places of findings in it */
    this.placed = new Map();
    for (const mark of timeline.about.marks) {
      if (mark.kind !== "finding") continue;
      for (const place of mark.places) this.placed.set(place.lane, [...(this.placed.get(place.lane) ?? []), place]);
    }
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
        words: `${mark.label}: ${mark.statement}`,
      })),
    );
    const kept = (bookmarks ?? []).map((/** @type {any} */ one) => ({ ...one, sign: SIGNS.bookmark, words: one.note }));
    return [...found.filter((/** @type {any} */ one) => one.sign), ...kept];
  }

  /** Show them as a list. */
  list() {
    this.timeline.panel(
      findingParts(this.timeline.about.marks, (mark) => {
        const place = mark.places[0] ?? mark;
        if (place.lane) {
          this.timeline.lane = place.lane;
          this.timeline.reveal(place.lane);
        }
        if (mark.places.length) {
          this.timeline.select(place.from, place.to);
          this.timeline.show(place.from, place.to);
        } else this.timeline.looking.show(place.from, place.to);
        this.timeline.draw();
      }),
    );
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
      if (one.lane) {
        this.timeline.lane = one.lane;
        this.timeline.reveal(one.lane);
      }
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
