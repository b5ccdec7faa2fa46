/** Numbers and names as people write them, and elements of the page made of them. Text never becomes markup. */

/** @param {number} ns */
export function duration(ns) {
  const size = Math.abs(ns);
  for (const [factor, unit] of /** @type {[number, string][]} */ ([
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "µs"],
  ])) {
    if (size >= factor) {
      const value = ns / factor;
      return `${value.toFixed(size / factor >= 99.95 ? 1 : size / factor >= 9.995 ? 2 : 3)} ${unit}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

/** @param {number} ns an exact integer, with separators */
export function exact(ns) {
  return `${Math.round(ns).toLocaleString("en-US")} ns`;
}

/** An instant in seconds, exact to the nanosecond. @param {bigint} ns */
export function seconds(ns) {
  const size = ns < 0n ? -ns : ns;
  return `${ns < 0n ? "-" : ""}${size / 1_000_000_000n}.${String(size % 1_000_000_000n).padStart(9, "0")}`;
}

/** @param {number} part @param {number} whole */
export function share(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "0 %";
}

/**
 * An element with text or children.
 * @param {string} tag
 * @param {Record<string, string>} attributes
 * @param {(Node | string)[]} children
 * @returns {HTMLElement}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** An element that must be there. @template {HTMLElement} T @param {string} id @returns {T} */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element ${id}`);
  return /** @type {T} */ (found);
}

/** A table of names and values. @param {[string, string][]} entries */
export function facts(entries) {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of entries) list.append(element("dt", {}, name), element("dd", {}, value));
  return list;
}

/** Put a text on the clipboard; where the page may not, into a field that the reader can copy from. @param {string} text */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = /** @type {HTMLTextAreaElement} */ (element("textarea", { class: "copying" }));
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** A text with a button that copies it. @param {string} text */
export function copyable(text) {
  const button = element("button", { type: "button", class: "copy" }, "copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "copied" : "select and copy";
  });
  return element("div", { class: "sql" }, element("pre", {}, element("code", {}, text)), button);
}
