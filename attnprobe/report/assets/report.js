"use strict";
// A report's page: its texts, print, colour scheme and width. Texts of users reach the page as textContent.
(() => {
  const { drawn } = AttnprobeReport.data;
  const { byId, dark, setPrinting, isNarrow } = AttnprobeReport.plots;
  const { curve, explorer, download } = AttnprobeReport;

  function startTexts() {
    const payloads = JSON.parse(byId("report-texts").textContent);
    const place = byId("text-map");
    if (!place || !payloads.length) return;
    const choice = byId("text-choice");
    const show = () => {
      place.replaceChildren();
      AttnprobeTokenMap.mount(place, payloads[choice ? Number(choice.value) : 0], {});
    };
    if (choice) choice.addEventListener("change", show);
    show();
  }

  function redraw() {
    if (drawn.length) curve.draw();
    if (explorer.isShown) explorer.draw();
  }

  const folded = [...document.querySelectorAll("details")];
  for (const one of folded) one.open = false;
  let open = [];
  window.addEventListener("beforeprint", () => {
    open = folded.map((one) => one.open);
    for (const one of folded) one.open = true;
    setPrinting(true);
    redraw();
  });
  window.addEventListener("afterprint", () => {
    folded.forEach((one, place) => (one.open = open[place]));
    setPrinting(false);
    redraw();
  });
  dark.addEventListener("change", redraw);
  let wasNarrow = isNarrow();
  window.addEventListener("resize", () => {
    if (wasNarrow !== isNarrow()) {
      wasNarrow = isNarrow();
      redraw();
    }
  });
  for (const button of document.querySelectorAll("[data-download]")) {
    button.addEventListener("click", () => download(button.dataset.download));
  }
  if (drawn.length) curve.start();
  if (explorer.isShown) explorer.start();
  redraw();
  startTexts();
})();
