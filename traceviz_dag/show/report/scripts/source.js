/**
 * What a timeline asks of its source, in two kinds: ``InlineSource`` answers from the page's own data, ``ServedSource``
 * asks a server. Times count from the begin of the axis. Questions and answers are those of ``show/web/live/answers.py``.
 */

/**
 * @typedef {object} Lane
 * @property {string} key
 * @property {string} label
 * @property {string | null} parent
 * @property {string} kind
 * @property {number} rows
 * @property {boolean} holds
 * @property {string} dimension of communication; empty of all other lanes
 * @property {number[]} [ranks] of a heading
 */

/**
 * @typedef {object} Boxes slices of a lane, and cells of several, by start
 * @property {string} lane that their rows are of
 * @property {ArrayLike<number>} start
 * @property {ArrayLike<number>} end
 * @property {ArrayLike<number>} busy
 * @property {ArrayLike<number>} row of the slice, or of the longest of several
 * @property {ArrayLike<number>} count
 * @property {ArrayLike<number>} name place in names, -1 for none
 * @property {ArrayLike<number>} kind place in kinds
 * @property {string[]} kinds
 * @property {string[]} names
 * @property {ArrayLike<number>} [wait] of a single communication, its time until the last member came
 */

/**
 * @typedef {object} Changes what a counter does
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {Float64Array} least
 * @property {Float64Array} most
 * @property {Float64Array} last
 */

/**
 * @typedef {object} Shares what ranks did, cell by cell, as parts of their time
 * @property {string} label what they are of
 * @property {number} from begin of the first cell
 * @property {number} cell length of each
 * @property {ArrayLike<number>} whole per cell, time of the ranks that are there
 * @property {string[]} kinds from below; the last one lies beside others, and is a strip at the top
 * @property {ArrayLike<number>} times per cell and kind
 */

/**
 * @typedef {object} Band a part of a lane's height
 * @property {number} top share of the height
 * @property {number} bottom
 * @property {Boxes} [boxes]
 * @property {Changes} [changes]
 * @property {Shares} [shares]
 */

/** @typedef {{lane: string, bands: Band[], ground?: [number, number]}} Shown ground: when the lane's rank was there */
/** @typedef {{shown: Shown[], strip: Shares | null}} Tiles */
/** @typedef {Record<string, string | number | string[]>} Values */
/** @typedef {{from: number, to: number, slice: string, lane: string, around: string[], label: string}} Place */

/**
 * @typedef {object} Source
 * @property {boolean} quick whether it answers at once, also while one types
 * @property {(words: string) => void} say where it reports that it waits
 * @property {(what: string, values?: Values) => Promise<any>} ask
 * @property {(what: string, body: object) => Promise<any>} change what is kept
 * @property {(values: Values, means: Record<string, number[]>) => Tiles | Promise<Tiles>} tiles of lanes, and the means of ranks below headings
 * @property {(name: string) => string} pattern that finds a name
 */

/** @param {number} ns as a server reads it */
export function whole(ns) {
  return BigInt(Math.round(ns)).toString();
}
