"use strict";
// The heaviest tokens of a view of a token map as a list that leads to them; of stretches, where only these have masses.
AttnprobeTokenMap.heaviest = (() => {
  const { element, blockName } = AttnprobeTokenMap.text;
  const { percent, visibly } = AttnprobeTokenMap.words;
  const MOST = 25;
  const NAMES = { sentence: "Heaviest sentences", block: "Heaviest stretches" };

  // The MOST of n places with the largest masses, heaviest first; of equal ones the first.
  function largest(n, massOf) {
    const found = []; // [place, mass]
    for (let place = 0; place < n; place++) {
      const mass = massOf(place);
      if (!(mass > 0) || (found.length === MOST && mass <= found[MOST - 1][1])) continue;
      const at = found.findIndex(([, other]) => other < mass);
      found.splice(at < 0 ? found.length : at, 0, [place, mass]);
      found.length = Math.min(found.length, MOST);
    }
    return found;
  }

  // `goTo(cell)` shows a token, `leave()` gives the keyboard back to the text.
  return function heaviest(model, goTo, leave) {
    const { payload, cells, cellOf } = model;
    const title = element("summary", {});
    const list = element("ol", { class: "tm-heaviest-list" });
    const root = element("details", { class: "tm-heaviest" }, title, list);

    function entry(cell, text, mass) {
      const token = cells[cell];
      const button = element("button", { type: "button", "data-cell": cell },
        element("bdi", { class: "tm-heaviest-text" }, text ? visibly(text) : `id ${payload.ids_without_text[token]}`),
        element("span", { class: "tm-heaviest-mass" }, percent(mass)),
        element("span", { class: "tm-heaviest-where" }, blockName(model, payload.spans[model.spanOf[token]])));
      button.addEventListener("click", () => goTo(cell));
      return element("li", {}, button);
    }

    function draw(found, inScale) {
      const { edges, sums } = found;
      const ofStretch = (i) => (inScale(edges[i]) ? sums[i] : 0);
      function ofCell(cell) {
        if (!inScale(cells[cell])) return 0;
        let sum = 0;
        for (let t = cells[cell]; t < cells[cell + 1]; t++) sum += found.mass[t];
        return sum;
      }
      const places = edges ? largest(edges.length - 1, ofStretch) : largest(model.nCells, ofCell);
      title.textContent = NAMES[found.kind] ?? "Heaviest tokens";
      root.hidden = places.length === 0;
      list.replaceChildren(...places.map(([place, mass]) => {
        const cell = edges ? cellOf[edges[place]] : place;
        const end = edges ? cellOf[edges[place + 1] - 1] : place;
        return entry(cell, payload.text.slice(model.cellStart(cell), model.cellStop(end)), mass);
      }));
    }

    function focus() {
      root.open = true;
      list.querySelector("button")?.focus();
    }

    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!step) return;
      event.preventDefault();
      const buttons = [...list.querySelectorAll("button")];
      const wanted = buttons.indexOf(document.activeElement) + step;
      buttons[Math.max(0, Math.min(buttons.length - 1, wanted))].focus();
    });
    return { element: root, draw, focus };
  };
})();
