/** Which ranks lie below one heading, by pipeline, by node or none: one choice for every timeline. */

import { byId, element } from "./words.js";

/**
 * @typedef {object} Group
 * @property {string} key
 * @property {string} label
 * @property {number[]} ranks
 * @property {boolean} [first] whether it has a rank at fault, or one that a note names
 * @property {boolean} [holds] whether folding it folds away the groups that are held
 * @property {boolean} [held]
 */

/** @typedef {Record<string, Group[]>} Groupings the choices but the one without headings */

const NONE = "rank";
const MOST_UNFOLDED = 256;
const HOLDER = "others";

export class Grouping {
  /** @param {Groupings} offered @param {number} ranks how many there are */
  constructor(offered, ranks) {
    this.offered = offered;
    this.many = ranks > MOST_UNFOLDED;
    /** the choice of a page that nobody has touched */
    this.usual = offered.pipeline ? "pipeline" : NONE;
    /** @type {Group[]} */
    this.groups = [];
    /** @type {Set<string>} keys of groups that are folded */
    this.folded = new Set();
    this.choice = this.usual;
    this.choose(this.usual);
  }

  /** Lay the ranks below other headings, or below none. @param {string | undefined} choice */
  choose(choice) {
    this.choice = choice === NONE || (choice && this.offered[choice]) ? choice : this.usual;
    this.groups = this.laid(this.offered[this.choice] ?? []);
    this.folded = this.usuallyFolded();
  }

  /** Groups as they follow one another; of very many ranks, one row holds those without a fault. @param {Group[]} groups */
  laid(groups) {
    const named = groups.filter((group) => group.first);
    const first = named.length || !this.many ? named : groups.slice(0, 1);
    const others = groups.filter((group) => !first.includes(group));
    if (!this.many || others.length < 2) return [...first, ...others];
    const held = others.flatMap((group) => group.ranks);
    const label = `${others.length} other ${this.choice}s`;
    return [
      ...first,
      { key: HOLDER, label, ranks: held, holds: true },
      ...others.map((each) => ({ ...each, held: true })),
    ];
  }

  /** @returns {Set<string>} the groups that a page folds by itself: of very many ranks, those without a fault */
  usuallyFolded() {
    if (!this.many) return new Set();
    return new Set(this.groups.filter((group) => group.holds || group.held).map((group) => group.key));
  }

  /** The groups whose headings are shown. */
  get shown() {
    return this.groups.filter((group) => !group.held || !this.folded.has(HOLDER));
  }

  /** Whether a group shows its ranks. @param {Group} group */
  unfolds(group) {
    return !group.holds && !this.folded.has(group.key);
  }

  /** Fold a group, or unfold it. @param {string} key */
  toggle(key) {
    if (!this.folded.delete(key)) this.folded.add(key);
  }

  /** Unfold what a rank lies below. @param {number} rank */
  bring(rank) {
    for (const group of this.groups) if (group.ranks.includes(rank)) this.folded.delete(group.key);
  }

  /** What an address says of it; null where it is as usual. */
  get address() {
    /** @param {Set<string>} keys */
    const listed = (keys) => [...keys].sort().join(",");
    const folded = listed(this.folded);
    return {
      by: this.choice === this.usual ? null : this.choice,
      folded: folded === listed(this.usuallyFolded()) ? null : folded,
    };
  }

  /** Take what an address says. @param {Map<string, string>} known */
  read(known) {
    this.choose(known.get("by"));
    const folded = known.get("folded");
    if (folded !== undefined)
      this.folded = new Set(folded.split(",").filter((key) => this.groups.some((group) => group.key === key)));
    const select = /** @type {HTMLSelectElement} */ (byId("grouping"));
    select.value = this.choice;
  }

  /** Offer the choice, where there is one. @param {() => unknown} chosen what follows */
  offer(chosen) {
    const select = /** @type {HTMLSelectElement} */ (byId("grouping"));
    const choices = [...Object.keys(this.offered), NONE];
    select.replaceChildren(...choices.map((choice) => element("option", { value: choice }, choice)));
    select.value = this.choice;
    /** @type {HTMLElement} */ (select.parentElement).hidden = choices.length < 2;
    select.addEventListener("change", () => {
      this.choose(select.value);
      chosen();
    });
  }
}
