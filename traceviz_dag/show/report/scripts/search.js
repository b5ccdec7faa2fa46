/** Search and filters: which kernels a text or a choice of categories names. */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */

const SEARCHED = ["name", "module", "operator", "category", "dimension", "group_description"];

/**
 * Whether each signature holds a text, in any of the fields that are searched. A text between slashes is a regular
 * expression.
 * @param {Model} model
 * @param {string} text
 * @returns {Uint8Array | null} null for an expression that is none
 */
export function matching(model, text) {
  const pattern = /^\/(.+)\/$/.exec(text);
  /** @type {(word: string) => boolean} */
  let holds;
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1], "i");
      holds = (word) => expression.test(word);
    } catch {
      return null;
    }
  } else {
    const wanted = text.toLowerCase();
    holds = (word) => word.toLowerCase().includes(wanted);
  }
  const fields = SEARCHED.map((field) => model.fieldOf.get(field)).filter((place) => place !== undefined);
  const byField = fields.map((place) => model.values[place].map((value) => value !== null && holds(String(value))));
  return Uint8Array.from(model.rows, (row) => (fields.some((place, i) => byField[i][row[place]]) ? 1 : 0));
}

/**
 * Kernels with one of some signatures, in the order of the ranks and of time.
 * @param {Model} model
 * @param {Uint8Array} found
 * @param {(kernel: number, rank: Rank) => boolean} shown
 * @returns {{rank: Rank, kernel: number}[]}
 */
export function hits(model, found, shown) {
  const result = [];
  for (const rank of model.ranks) {
    for (let kernel = 0; kernel < rank.signature.length; kernel++) {
      if (found[rank.signature[kernel]] && shown(kernel, rank)) result.push({ rank, kernel });
    }
  }
  return result;
}
