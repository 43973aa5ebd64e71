"use strict";
// Overview of a token map: the whole text as a strip, with what is on screen.
AttnprobeTokenMap.overview = (() => {
  const { element } = AttnprobeTokenMap.text;
  const NARROWEST = 12; // pixels of a block whose beginning gets a line

  // `text` is what AttnprobeTokenMap.text.lay gave, `goTo(token)` shows a token.
  return function overview(model, text, scroller, goTo) {
    const { spans } = model.payload;
    const canvas = element("canvas");
    const onScreen = element("div", { class: "tm-on-screen" });
    const strip = element("div", { class: "tm-overview", role: "img",
      "aria-label": "overview of the whole text, first token at the left; click to go there" }, canvas, onScreen);

    // Every column shows the heaviest of its tokens that are in the colour scale.
    function draw(mass, inScale, alpha) {
      const { clientWidth, clientHeight } = canvas;
      if (!clientWidth) return;
      const ratio = window.devicePixelRatio || 1;
      const width = (canvas.width = Math.round(clientWidth * ratio));
      const height = (canvas.height = Math.round(clientHeight * ratio));
      const best = new Float64Array(width);
      for (let t = 0; t < model.nTokens; t++) {
        if (!inScale(t)) continue;
        const from = Math.floor((t * width) / model.nTokens);
        const to = Math.max(from + 1, Math.floor(((t + 1) * width) / model.nTokens));
        for (let x = from; x < to; x++) best[x] = Math.max(best[x], mass[t]);
      }
      const style = getComputedStyle(strip);
      const colour = (name) => style.getPropertyValue(name).trim();
      const shade = colour("--tm-rgb");
      const pen = canvas.getContext("2d");
      const bottom = height - Math.round(7 * ratio);
      for (let x = 0; x < width; x++) {
        if (best[x] === 0) continue;
        pen.fillStyle = `rgb(${shade} / ${alpha(best[x])})`;
        pen.fillRect(x, 0, 1, bottom);
      }
      for (const block of text.blocks) {
        const start = Math.round((block.start * width) / model.nTokens);
        const end = Math.round((block.stop * width) / model.nTokens);
        const span = spans[block.span];
        if (span.kind === "document") {
          pen.fillStyle = colour(span.document % 2 ? "--ink" : "--accent");
          pen.fillRect(start, bottom + ratio, Math.max(1, end - start), 3 * ratio);
        }
        pen.fillStyle = colour("--line");
        if (span.kind !== "marker" && end - start >= NARROWEST * ratio) pen.fillRect(start, 0, 1, bottom);
      }
      markOnScreen();
    }

    // The position that is shown at a height of the window, by the chunk there.
    function tokenAtHeight(y) {
      let low = 0, high = text.chunks.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (text.chunks[middle].element.getBoundingClientRect().bottom < y) low = middle + 1;
        else high = middle;
      }
      const { element: target, first, last } = text.chunks[low];
      const box = target.getBoundingClientRect();
      const part = Math.max(0, Math.min(0.999, (y - box.top) / Math.max(1, box.height)));
      const start = model.sentences[first];
      return start + part * (model.sentences[last] - start);
    }

    function markOnScreen() {
      const box = scroller.getBoundingClientRect();
      const from = tokenAtHeight(box.top);
      const to = tokenAtHeight(box.bottom);
      onScreen.style.left = `${(100 * from) / model.nTokens}%`;
      onScreen.style.width = `${(100 * (to - from)) / model.nTokens}%`;
    }

    let isWaiting = false;
    scroller.addEventListener("scroll", () => {
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => {
        isWaiting = false;
        markOnScreen();
      });
    }, { passive: true });
    function jump(event) {
      const box = strip.getBoundingClientRect();
      const part = Math.max(0, Math.min(0.999999, (event.clientX - box.left) / box.width));
      goTo(Math.floor(part * model.nTokens));
    }
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      jump(event);
    });
    strip.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
    return { element: strip, draw, tokenAtHeight };
  };
})();
