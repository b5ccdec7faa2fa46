/** The words and colours of kinds, on a light or a dark page: the same for every timeline. */

import { pixel } from "./raster.js";

/** @typedef {Record<string, [string, string]>} Words kind → its label and colour */

export class Colours {
  /** @param {Words} words @param {boolean} dark */
  constructor(words, dark) {
    this.words = words;
    this.paper = pixel(dark ? "#16191D" : "#FFFFFF");
    // Dark enough for pale colours, and light enough for the dark ones of communication.
    this.idle = pixel(dark ? "#4B525B" : "#ECEAE6");
    this.header = pixel(dark ? "#1E2227" : "#F3F4F6");
    this.ink = pixel(dark ? "#FFFFFF" : "#000000");
    this.turn = pixel(dark ? "#8A9099" : "#68707A");
    this.match = pixel("#C2185B");
    /** @type {Map<string, number>} */
    this.made = new Map();
  }

  /** The colour of a kind. @param {string} kind */
  of(kind) {
    let found = this.made.get(kind);
    if (found === undefined) {
      found = pixel(hue(this.words, kind));
      this.made.set(kind, found);
    }
    return found;
  }
}

/** What a kind is called. @param {Words} words @param {string} kind */
export function labelOf(words, kind) {
  return words[kind]?.[0] ?? (kind.replaceAll("_", " ") || "other");
}

/** The colour of a kind, as #RRGGBB. @param {Words} words @param {string} kind */
export function hue(words, kind) {
  return (words[kind] ?? words[""])[1];
}
