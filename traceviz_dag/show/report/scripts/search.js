/** Search and filters: which kernels, ranges and calls a text or a choice of categories names. */

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Rank} Rank */
/** @typedef {import("./details.js").Chosen} Chosen */
/** @typedef {{signatures: Uint8Array, hosts: Uint8Array}} Found per signature, and per name of ranges and calls */

const SEARCHED = ["name", "module", "operator", "category", "dimension", "group_description"];

/**
 * Whether each signature holds a text, in any of the fields that are searched, and each name of a range or call. A text
 * between slashes is a regular expression.
 * @param {Model} model
 * @param {string} text
 * @returns {Found | null} null for an expression that is none
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
  return {
    signatures: Uint8Array.from(model.rows, (row) => (fields.some((place, i) => byField[i][row[place]]) ? 1 : 0)),
    hosts: Uint8Array.from(model.document.host_names ?? [], (name) => (holds(name) ? 1 : 0)),
  };
}

/**
 * What was found, in the order of the ranks, kernels first, and of time.
 * @param {Model} model
 * @param {Found} found
 * @param {(kernel: number, rank: Rank) => boolean} shown
 * @returns {Chosen[]}
 */
export function hits(model, found, shown) {
  /** @type {Chosen[]} */
  const result = [];
  for (const rank of model.ranks) {
    for (let kernel = 0; kernel < rank.signature.length; kernel++) {
      if (found.signatures[rank.signature[kernel]] && shown(kernel, rank))
        result.push({ kind: "kernel", rank, index: kernel });
    }
    for (const host of rank.hosts) {
      for (let index = 0; index < host.name.length; index++) {
        if (found.hosts[host.name[index]]) result.push({ kind: "host", rank, index, host });
      }
    }
  }
  return result;
}
