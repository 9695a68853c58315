// Nothing here is needed to read the page: it unfolds what a link leads to, and zooms drawings.
(() => {
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));  // ids are plain ASCII
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      fold.open = true;
    }
    target.scrollIntoView({ block: target.matches("tr") ? "center" : "start" });
    if (target.hasAttribute("tabindex")) target.focus({ preventScroll: true });
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
  for (const drawing of document.querySelectorAll(".drawing")) {
    const svg = drawing.querySelector("svg");
    const canvas = drawing.querySelector(".canvas");
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    let scale = 1;
    const zoom = (to) => {
      scale = Math.min(3, Math.max(0.1, to));
      svg.setAttribute("width", width * scale);
      svg.setAttribute("height", height * scale);
    };
    const room = () => canvas.clientWidth || width;
    const tools = drawing.querySelector(".tools");
    const buttons = [
      ["−", "Smaller", () => zoom(scale / 1.25)],
      ["+", "Larger", () => zoom(scale * 1.25)],
      ["Fit", "Fit the width", () => zoom(room() / width)],
      ["1:1", "Actual size", () => zoom(1)],
    ];
    for (const [text, label, action] of buttons) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", action);
      tools.append(button);
    }
    tools.hidden = false;
    // As large as it fits while it can be read, its first box in the middle.
    const start = () => {
      zoom(Math.min(1, Math.max(0.8, room() / width)));
      const first = svg.querySelector(".box rect:not(.behind)");
      const middle = first ? Number(first.getAttribute("x")) + first.getAttribute("width") / 2 : 0;
      canvas.scrollLeft = middle * scale - canvas.clientWidth / 2;
    };
    start();
    drawing.closest("details")?.addEventListener("toggle", start, { once: true });
  }
  reveal();
})();
