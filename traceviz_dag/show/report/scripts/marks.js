/** Findings on the timeline: the ranks that they name, and the places in time that hold most of each. */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./lanes.js").Row} Row */
/** @typedef {import("./painter.js").View} View */
/** @typedef {{finding: Finding, start: number, length: number}} Place ns from the first kernel of its rank */

const LINE = 2;
const TICK = 6;
const NARROWEST = 4;
const TINT = 0.14;

export class Marks {
  /** @param {Model} model */
  constructor(model) {
    this.findings = model.document.findings;
    /** @type {Finding | null} the finding whose places alone are marked; null marks those of all that are no notes */
    this.chosen = null;
    /** @type {Map<number, Place[]>} rank → places */
    this.places = new Map();
    this.only(undefined);
  }

  /** Mark the places of one finding alone. @param {string | undefined} number as an address has it */
  only(number) {
    this.chosen = this.findings.find((finding) => String(finding.finding) === number) ?? null;
    this.places.clear();
    for (const finding of this.findings) {
      if (this.chosen === null ? finding.severity !== "finding" : finding !== this.chosen) continue;
      for (const [rank, start, length] of finding.places) {
        const there = this.places.get(rank);
        if (there === undefined) this.places.set(rank, [{ finding, start, length }]);
        else there.push({ finding, start, length });
      }
    }
  }

  /** Whether a finding names a rank. @param {Rank} rank */
  blames(rank) {
    return this.findings.some((finding) => finding.rank === rank.rank && finding.severity === "finding");
  }

  /**
   * The findings that are marked at an instant of a rank.
   * @param {Model} model
   * @param {Rank | null} rank
   * @param {number} instant ns on the axis
   * @param {number} slack
   * @returns {Finding[]}
   */
  at(model, rank, instant, slack) {
    if (rank === null) return [];
    const own = instant - model.at(rank);
    const places = this.places.get(rank.rank) ?? [];
    const there = places.filter(({ start, length }) => start - slack <= own && own <= start + length + slack);
    return [...new Set(there.map((place) => place.finding))];
  }

  /**
   * A bracket above each place; those of a finding that was chosen are tinted, too.
   * @param {CanvasRenderingContext2D} context
   * @param {Model} model
   * @param {View} view
   * @param {Row[]} rows
   * @param {number} above pixels from the canvas's top to the first row's
   * @param {string} ink
   * @param {string} colour
   */
  draw(context, model, view, rows, above, ink, colour) {
    const left = view.left / view.scale;
    const right = (view.left + view.width) / view.scale;
    const perNs = (right - left) / (view.to - view.from);
    for (const row of rows) {
      if (row.kind !== "rank" || row.rank === null) continue;
      const top = row.top + above;
      for (const { start, length } of this.places.get(row.rank.rank) ?? []) {
        const begin = left + (start + model.at(row.rank) - view.from) * perNs;
        const from = Math.max(begin, left);
        const width = Math.min(Math.max(begin + length * perNs, begin + NARROWEST), right) - from;
        if (width <= 0 || begin > right) continue;
        context.fillStyle = ink;
        context.fillRect(from, top, width, LINE);
        if (begin >= left) context.fillRect(from, top, 1, TICK);
        if (begin + length * perNs <= right) context.fillRect(from + width - 1, top, 1, TICK);
        if (this.chosen === null) continue;
        context.globalAlpha = TINT;
        context.fillStyle = colour;
        context.fillRect(from, top, width, row.height);
        context.globalAlpha = 1;
      }
    }
  }
}

/** A finding in a line. @param {Finding} finding */
export function statementOf(finding) {
  return `${finding.rule.replaceAll("_", " ")}: ${finding.statement}`;
}
