/** Charts and tables that are wider than the window can be scrolled by keys, and are no stop of the Tab key elsewhere. */

/** Keep it so while windows and tabs change. */
export function watchScrolling() {
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
      else target.removeAttribute("tabindex");
    }
  });
  for (const region of document.querySelectorAll("main .scroll")) observer.observe(region);
}
