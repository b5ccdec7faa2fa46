/** The map of who waited for whom: a cell shows its dimensions, and what the late rank did meanwhile. */

import { byId, copyable, duration, element } from "./words.js";

/**
 * @typedef {[number, number, string | null, number, number, ...number[]]} Wait row and column of the map, dimension, how
 *   often, how long in ns, and of that each part of what the late rank did
 * @typedef {{sql: string, rows: string[], columns: string[], row_keys: number[], column_keys: number[], did: string[],
 *   waits: Wait[]}} Pairs
 */

/** @param {Pairs} pairs @param {number} row @param {number} column */
function shown(pairs, row, column) {
  const waits = pairs.waits.filter((wait) => wait[0] === row && wait[1] === column);
  const all = waits.reduce((sum, wait) => sum + wait[4], 0);
  const head = element("tr");
  for (const name of ["dimension", "waits", "wait", ...pairs.did]) {
    head.append(element("th", { scope: "col" }, name));
  }
  const body = element("tbody");
  for (const [, , dimension, count, ...lengths] of waits) {
    const line = element("tr");
    const cells = [dimension ?? "unknown", count.toLocaleString("en-US"), ...lengths.map((length) => duration(length))];
    for (const cell of cells) line.append(element("td", {}, cell));
    body.append(line);
  }
  const thead = element("thead");
  thead.append(head);
  const table = element("table");
  table.append(thead, body);
  const scroll = element("div", { class: "scroll", tabindex: "0" });
  scroll.append(table);
  const sql = pairs.sql
    .replace("{row}", String(pairs.row_keys[row]))
    .replace("{column}", String(pairs.column_keys[column]));
  return [
    element("h3", {}, `${pairs.rows[row]} waited for ${pairs.columns[column]}: ${duration(all)}`),
    scroll,
    copyable(sql),
  ];
}

/** Cells answer a click, and the arrow keys go from one to the next; only one of them is a stop of the Tab key. */
export function listenToPairs() {
  const source = document.getElementById("pairs-rows");
  if (!(source instanceof HTMLTemplateElement)) return;
  const pairs = /** @type {Pairs} */ (JSON.parse(source.content.textContent ?? ""));
  const cells = /** @type {SVGAElement[]} */ ([...document.querySelectorAll("a.cell")]);
  const panel = byId("pair");
  cells.forEach((cell, place) => {
    cell.setAttribute("tabindex", place ? "-1" : "0");
    cell.addEventListener("click", (event) => {
      event.preventDefault();
      for (const other of cells) other.classList.toggle("picked", other === cell);
      panel.replaceChildren(...shown(pairs, Number(cell.dataset.row), Number(cell.dataset.column)));
      panel.hidden = false;
    });
    cell.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = step === undefined ? undefined : cells[place + step];
      if (next === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      cell.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });
}
