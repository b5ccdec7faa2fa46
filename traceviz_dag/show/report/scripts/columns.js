/** Takes the page's data apart: the counterpart of show/report/columns.py. */

/**
 * @typedef {object} Described
 * @property {string} name
 * @property {number} count
 * @property {number} bytes bytes a value
 * @property {boolean} differences whether values are differences to the one before
 * @property {boolean} signed whether signs are in the lowest bit
 */

/** Base64 of deflated bytes as bytes. @param {string} text @returns {Promise<Uint8Array>} */
export async function inflated(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * The document, and its columns as exact integers in doubles.
 * @template T
 * @param {Uint8Array} bytes
 * @returns {{document: T, columns: Map<string, Float64Array>}}
 */
export function unpacked(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const document = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = new Map();
  let at = 4 + length;
  for (const described of document.columns) {
    const size = described.count * described.bytes;
    columns.set(described.name, column(described, bytes.subarray(at, at + size)));
    at += size;
  }
  return { document, columns };
}

/**
 * @param {Described} described
 * @param {Uint8Array} bytes all first bytes, then all second bytes …
 * @returns {Float64Array}
 */
function column({ count, bytes: width, differences, signed }, bytes) {
  const values = new Float64Array(count);
  for (let plane = 0, weight = 1; plane < width; plane++, weight *= 256) {
    const from = plane * count;
    for (let i = 0; i < count; i++) values[i] += bytes[from + i] * weight;
  }
  if (signed) {
    for (let i = 0; i < count; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  }
  if (differences) {
    for (let i = 1; i < count; i++) values[i] += values[i - 1];
  }
  return values;
}
