/* Tables that scroll can be scrolled by keys. The theme wraps them after the page was read. */
addEventListener("load", () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) wrap.tabIndex = 0;
});
