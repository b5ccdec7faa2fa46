/** Fills rectangles into an array of pixels: thousands a millisecond, with a graphics card or without. */

/** A colour such as #5394D2 as a pixel. @param {string} colour */
export function pixel(colour) {
  const value = Number.parseInt(colour.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** A colour between two, by share of the second. @param {number} first @param {number} second @param {number} share */
export function mixed(first, second, share) {
  let result = 0xff000000;
  for (let shift = 0; shift < 24; shift += 8) {
    const low = (first >> shift) & 0xff;
    const high = (second >> shift) & 0xff;
    result |= Math.round(low + (high - low) * share) << shift;
  }
  return result >>> 0;
}

/** A picture of some width and height. */
export class Raster {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.image = new ImageData(Math.max(width, 1), Math.max(height, 1));
    this.width = this.image.width;
    this.height = this.image.height;
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** @param {number} colour */
  clear(colour) {
    this.pixels.fill(colour);
  }

  /** @param {number} left @param {number} top @param {number} right @param {number} bottom @param {number} colour */
  fill(left, top, right, bottom, colour) {
    const from = Math.max(Math.floor(left), 0);
    const to = Math.min(Math.max(Math.round(right), from + 1), this.width);
    const last = Math.min(Math.round(bottom), this.height);
    for (let y = Math.max(Math.round(top), 0); y < last; y++) {
      const row = y * this.width;
      if (to - from === 1) this.pixels[row + from] = colour;
      else if (to > from) this.pixels.fill(colour, row + from, row + to);
    }
  }
}
