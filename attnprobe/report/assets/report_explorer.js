"use strict";
// Layers and heads of a report: a map, and the curve of the head that is chosen in it.
AttnprobeReport.explorer = (() => {
  const { ALL, drawn, part, curveOf } = AttnprobeReport.data;
  const { byId, isDark, looks, draw, chooser, curveTraces, positionAxis, valueAxis } = AttnprobeReport.plots;
  const QUANTITIES = [
    ["head_middle", "head/middle of the share"],
    ["tail_middle", "tail/middle of the share"],
    ["document_mass", "mass of all documents"],
  ];
  const explored = drawn.filter((series) => series.curves.raw.share && series.curves.raw.share.heads);
  const controls = {};
  let chosen = null; // the place of a layer and a head; at first those that give documents most mass

  const hasMiddle = () => explored[Number(controls.source.value)].middle.length > 0;
  const seriesShown = () => explored[Number(controls.source.value)];

  function start() {
    const names = explored.map((series, number) => [String(number), series.name]);
    controls.source = chooser("explorer-controls", "explorer-source", "of", names, () => {
      chosen = null;
      fillCells();
      drawExplorer();
    });
    const quantities = explored.some((series) => series.middle.length) ? QUANTITIES : QUANTITIES.slice(2);
    controls.quantity = chooser("explorer-controls", "explorer-quantity", "colour", quantities, drawExplorer);
    controls.cellLayer = chooser("explorer-controls", "explorer-layer", "layer", [], () => pick(controls.cellLayer.selectedIndex, chosen.head));
    controls.cellHead = chooser("explorer-controls", "explorer-head", "head", [], () => pick(chosen.layer, controls.cellHead.selectedIndex));
    fillCells();
    byId("explorer-focus").addEventListener("keydown", (event) => {
      const step = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      pick(chosen.layer + step[0], chosen.head + step[1]);
    });
  }

  function fillCells() {
    const series = seriesShown();
    const fill = (select, values) => {
      select.replaceChildren(
        ...values.map((value) => {
          const option = document.createElement("option");
          option.textContent = String(value);
          return option;
        }),
      );
    };
    fill(controls.cellLayer, series.layers);
    fill(controls.cellHead, Array.from({ length: series.n_heads }, (_, head) => head));
  }

  function heaviest(series) {
    const masses = part(series.ratios.document_mass, 0, series.layers.length * series.n_heads);
    const at = masses.reduce((best, value, place) => (value > masses[best] ? place : best), 0);
    return { layer: Math.floor(at / series.n_heads), head: at % series.n_heads };
  }

  function pick(layer, head) {
    const series = seriesShown();
    const inside = (value, n) => Math.min(Math.max(value, 0), n - 1);
    chosen = { layer: inside(layer, series.layers.length), head: inside(head, series.n_heads) };
    Plotly.relayout(byId("explorer-map"), { shapes: [marked()] });
    return drawHead();
  }

  function marked() {
    const { layer, head } = chosen;
    const line3 = { color: isDark() ? "#ffffff" : "#000000", width: 2.5 };
    return { type: "rect", x0: head - 0.5, x1: head + 0.5, y0: layer - 0.5, y1: layer + 0.5, line: line3 };
  }

  const inWords = (quantity, value) =>
    value === null ? "undefined" : quantity === "document_mass" ? `${(100 * value).toFixed(1)} %` : value.toFixed(2);

  function drawExplorer() {
    const series = seriesShown();
    if (!hasMiddle()) controls.quantity.value = "document_mass";
    const quantity = controls.quantity.value;
    const isRatio = quantity !== "document_mass";
    const values = series.ratios[quantity];
    const rows = series.layers.map((_, layer) =>
      part(values, layer * series.n_heads, series.n_heads).map((value) => (isRatio && value === 0 ? 1e-9 : value)),
    );
    const cells = series.layers.flatMap((layer, place) => rows[place].map((value, head) => ({ layer, place, head, value })));
    const most = cells.filter((cell) => cell.value !== null).sort((a, b) => b.value - a.value)[0];
    if (!chosen) chosen = heaviest(series);
    const look = looks();
    const scale = isRatio ? ratioScale(rows) : massScale();
    const trace = {
      type: "heatmap",
      z: rows.map((row) => row.map((value) => (value === null ? null : isRatio ? Math.log2(value) : value))),
      customdata: rows.map((row) => row.map((value) => inWords(quantity, value))),
      text: rows.map((row, layer) => row.map(() => String(series.layers[layer]))),
      hovertemplate: "layer %{text}, head %{x}<br><b>%{customdata}</b><extra></extra>",
      xgap: 1,
      ygap: 1,
      ...scale,
    };
    const [, name] = QUANTITIES.find(([key]) => key === quantity);
    const title = { text: name, side: "right", font: { size: 12 } };
    trace.colorbar = { ...scale.colorbar, title, thickness: 12, outlinewidth: 0, tickfont: { color: look.ink }, len: 0.95 };
    const n = series.layers.length;
    const every = Math.max(1, Math.ceil(n / 12));
    const ticks = series.layers.map((_, place) => place).filter((place) => place % every === 0);
    const layout = {
      ...look.layout,
      xaxis: { ...look.axis, title: { text: "head", standoff: 6 }, showgrid: false, zeroline: false, ...(series.n_heads <= 16 ? { dtick: 1 } : {}) },
      yaxis: {
        ...look.axis,
        title: { text: "layer", standoff: 6 },
        tickvals: ticks,
        ticktext: ticks.map((place) => String(series.layers[place])),
        showgrid: false,
        zeroline: false,
      },
      shapes: [marked()],
    };
    const done = draw("explorer-map", [trace], layout);
    const found = most ? `; highest in layer ${most.layer}, head ${most.head}: ${inWords(quantity, most.value)}` : "";
    byId("explorer-map").setAttribute("aria-label", `Map of ${name} by layer and head of ${series.name}${found}`);
    const map = byId("explorer-map");
    map.removeAllListeners("plotly_click");
    map.on("plotly_click", (event) => pick(event.points[0].y, event.points[0].x));
    return done.then(drawHead);
  }

  function ratioScale(rows) {
    const sizes = rows.flat().filter((value) => value !== null).map((value) => Math.abs(Math.log2(value))).sort((a, b) => a - b);
    const limit = Math.max(1, Math.ceil(sizes.length ? sizes[Math.floor(0.98 * (sizes.length - 1))] : 1));
    const step = Math.max(1, Math.round(limit / 3));
    const ticks = [];
    for (let at = -Math.floor(limit / step) * step; at <= limit; at += step) ticks.push(at);
    const middle = isDark() ? "#2b2f36" : "#f4f4f4";
    const ends = isDark() ? ["#8f7fe0", "#f0a040"] : ["#542788", "#b35806"];
    return {
      zmin: -limit,
      zmax: limit,
      colorscale: [[0, ends[0]], [0.5, middle], [1, ends[1]]],
      colorbar: { tickvals: ticks, ticktext: ticks.map((at) => (at < 0 ? `1/${2 ** -at}` : String(2 ** at))) },
    };
  }

  function massScale() {
    return { zmin: 0, colorscale: "Viridis", colorbar: { tickformat: ".0%" } };
  }

  function drawHead() {
    const series = seriesShown();
    const look = looks();
    const layer = series.layers[chosen.layer];
    controls.cellLayer.selectedIndex = chosen.layer;
    controls.cellHead.selectedIndex = chosen.head;
    const mean = curveOf(series, "raw", "share", ALL, ALL);
    const own = curveOf(series, "raw", "share", String(layer), String(chosen.head));
    const common = { norm: "share", view: "raw", look };
    const traces = [
      ...curveTraces(series, 0, { ...common, curve: mean, name: "mean over all" }),
      ...curveTraces(series, 1, {
        ...common, curve: { ...own, uniform: null }, name: `layer ${layer}, head ${chosen.head}`,
      }),
    ];
    const layout = { ...look.layout, xaxis: positionAxis(look, series.documents.length, false), yaxis: valueAxis(look, "share", "raw") };
    const at = chosen.layer * series.n_heads + chosen.head;
    const words = QUANTITIES.filter(([key]) => key === "document_mass" || series.middle.length)
      .map(([key, name]) => `${name} ${inWords(key, part(series.ratios[key], at, 1)[0])}`)
      .join(", ");
    byId("explorer-status").textContent = `Layer ${layer}, head ${chosen.head}: ${words}.`;
    byId("explorer-curve").setAttribute("aria-label", `Curve of layer ${layer}, head ${chosen.head}, beside the mean: ${words}`);
    return draw("explorer-curve", traces, layout);
  }

  return { start, draw: drawExplorer, isShown: explored.length > 0 };
})();
