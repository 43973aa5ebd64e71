"use strict";
// The plots, choices and downloads of a report. Texts of users reach the page as textContent, and plots through plotText.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const drawn = data.series.filter((series) => Object.keys(series.curves).length);
  const byId = (id) => document.getElementById(id);
  const ALL = "all";

  // ---- values

  function decoded(text) {
    if (!text) return null;
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  for (const series of data.series) {
    for (const norms of Object.values(series.curves)) {
      for (const curves of Object.values(norms)) {
        for (const name of ["layers", "layer_bounds", "heads", "head_bounds"]) curves[name] = decoded(curves[name]);
      }
    }
    for (const name of Object.keys(series.ratios)) series.ratios[name] = decoded(series.ratios[name]);
  }

  const known = (values) => Array.from(values, (value) => (Number.isFinite(value) ? value : null));

  function part(array, start, n) {
    return array ? known(array.subarray(start, start + n)) : null;
  }

  // The curve of a choice: of everything, of a layer, or of a head in it; null where the series does not have it.
  function curveOf(series, view, norm, layer, head) {
    const curves = (series.curves[view] || {})[norm];
    if (!curves) return null;
    const n = series.documents.length;
    if (layer === ALL) return { values: curves.values, low: curves.low, high: curves.high, uniform: curves.uniform };
    const place = series.layers.indexOf(Number(layer));
    const isHead = head !== ALL;
    const array = isHead ? curves.heads : curves.layers;
    if (place < 0 || !array || (isHead && Number(head) >= series.n_heads)) return null;
    const start = (isHead ? place * series.n_heads + Number(head) : place) * n;
    const bounds = isHead ? curves.head_bounds : curves.layer_bounds;
    const half = bounds ? bounds.length / 2 : 0;
    const low = part(bounds, start, n);
    return {
      values: part(array, start, n),
      low: low && low.every((value) => value !== null) ? low : null,
      high: part(bounds, half + start, n),
      uniform: curves.uniform,
    };
  }

  // ---- looks

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const isDark = () => dark.matches && !printing;
  const LIGHT_LINES = ["#0072B2", "#D55E00", "#00795A", "#A8478A", "#8A5A00", "#5A5F66"];
  const DARK_LINES = ["#56B4E9", "#E69F00", "#2FBF94", "#E08FC0", "#D9CC3C", "#A6ABB3"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross"];
  const line = (number) => (isDark() ? DARK_LINES : LIGHT_LINES)[number % LIGHT_LINES.length];
  const isNarrow = () => window.innerWidth < 760;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Plotly reads a few HTML tags in labels; what users wrote must not become one.
  const plotText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  function faded(colour, alpha) {
    const at = (place) => parseInt(colour.slice(place, place + 2), 16);
    return `rgba(${at(1)},${at(3)},${at(5)},${alpha})`;
  }

  function looks() {
    const ink = printing ? "#000000" : css("--ink");
    const grid = printing ? "#dddddd" : css("--line");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, color: ink, automargin: true };
    return {
      ink,
      axis,
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: css("--text-font"), size: 13, color: ink },
        hoverlabel: { bgcolor: css("--panel"), bordercolor: grid, font: { color: css("--ink"), family: css("--text-font") } },
        margin: { l: 10, r: 10, t: 12, b: 10 },
        legend: { orientation: "h", x: 0, yanchor: "top", traceorder: "normal", font: { size: 12 } },
        dragmode: false,
        modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: ink },
      },
    };
  }

  const CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: true,
    showEditInChartStudio: false,
    showSendToCloud: false,
    plotlyServerURL: "",
    topojsonURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const INSIDE = 300; // pixels of height between the axes
  const BELOW = 58; // of ticks and title
  const ON_PAPER = 680; // of width, whatever the screen's

  // The legend stands below the axis title, however many lines it takes.
  function draw(id, traces, layout) {
    const place = byId(id);
    const width = printing ? ON_PAPER : place.clientWidth;
    const named = traces.filter((trace) => trace.type !== "heatmap" && trace.showlegend !== false);
    const entry = 50 + 7 * Math.max(...named.map((trace) => trace.name.length), 0);
    const lines = Math.ceil(named.length / Math.max(1, Math.floor(width / entry)));
    const height = 12 + INSIDE + BELOW + 20 * lines;
    place.style.height = `${height}px`;
    const size = printing ? { width, height, autosize: false } : { autosize: true };
    const legend = { ...layout.legend, y: -BELOW / INSIDE };
    return Plotly.react(place, traces, { ...layout, ...size, legend }, CONFIG);
  }

  // ---- the curve

  const isShare = (norm) => norm === "share" || norm === "log_share" || norm === "mass";
  const figures = (norm) => (isShare(norm) ? ".2%" : ".3f");

  function chooser(parent, key, label, options, change) {
    const box = document.createElement("label");
    const select = document.createElement("select");
    select.id = key;
    for (const [value, text] of options) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = text;
      select.append(option);
    }
    box.append(document.createTextNode(label), select);
    box.hidden = options.length === 1;
    select.addEventListener("change", change);
    byId(parent).append(box);
    return select;
  }

  const numbers = (values) => [...new Set(values)].sort((a, b) => a - b);
  const ordered = (names, has) => Object.entries(names).filter(([name]) => drawn.some((series) => has(series, name)));
  const controls = {};

  function curveControls() {
    const views = ordered(data.views, (series, view) => series.curves[view]);
    const norms = ordered(data.norms, (series, norm) => series.curves.raw[norm]);
    const layers = numbers(drawn.flatMap((series) => series.layers));
    controls.norm = chooser("curve-controls", "curve-norm", "norm", norms, drawCurve);
    controls.view = chooser("curve-controls", "curve-view", "view", views, drawCurve);
    const asLayers = [[ALL, "mean over all"], ...layers.map((number) => [String(number), String(number)])];
    controls.layer = chooser("curve-controls", "curve-layer", "layer", asLayers, drawCurve);
    const most = Math.max(...drawn.map((series) => series.n_heads));
    const asHeads = [[ALL, "mean over all"], ...Array.from({ length: most }, (_, head) => [String(head), String(head)])];
    controls.head = chooser("curve-controls", "curve-head", "head", asHeads, drawCurve);
    if (new Set(drawn.map((series) => series.documents.length)).size > 1) {
      const axes = [["position", "position"], ["relative", "relative, 0 first to 1 last"]];
      controls.axis = chooser("curve-controls", "curve-axis", "across", axes, drawCurve);
    }
  }

  function along(series, relative) {
    const last = Math.max(series.documents.length - 1, 1);
    return series.documents.map((_, position) => (relative ? position / last : position));
  }

  const atPosition = (series) =>
    series.documents.map((name, position) => {
      const tokens = series.tokens[position];
      const named = name === String(position) ? "" : ` ${plotText(short(name, 60))}`;
      return `position ${position}${named}, ${tokens === null ? "?" : Math.round(10 * tokens) / 10} tokens`;
    });

  function band(series, x, curve, colour, name) {
    if (!curve.low || !curve.high) return [];
    const common = { x, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip", showlegend: false };
    return [
      { ...common, y: curve.low, meta: "low", name },
      { ...common, y: curve.high, meta: "high", name, fill: "tonexty", fillcolor: faded(colour, 0.2) },
    ];
  }

  function curveTraces(series, number, norm, curve, relative, name, look) {
    const colour = line(number);
    const x = along(series, relative);
    const label = plotText(short(name, 60));
    const interval = curve.low
      ? curve.low.map((low, place) => [low, curve.high[place]])
      : series.documents.map(() => [null, null]);
    const text = atPosition(series).map((where, place) => {
      const [low, high] = interval[place];
      const shown = (value) => (isShare(norm) ? `${(100 * value).toFixed(1)} %` : value.toFixed(3));
      return low === null ? where : `${where}<br>95 %: ${shown(low)} to ${shown(high)}`;
    });
    const traces = band(series, x, curve, colour, label);
    if (curve.uniform) {
      const line2 = { color: drawn.length === 1 ? look.ink : colour, width: 1.2, dash: "dash" };
      const uniform = { x, y: curve.uniform, mode: "lines", line: line2, meta: "uniform", hoverinfo: "skip" };
      traces.push({ ...uniform, name: "uniform: every token alike", showlegend: number === 0, legendrank: 2000 });
    }
    traces.push({
      x,
      y: curve.values,
      text,
      name: label,
      meta: "curve",
      mode: "lines+markers",
      line: { color: colour, width: 2.5 },
      marker: { color: colour, size: 8, symbol: SYMBOLS[number % SYMBOLS.length] },
      hovertemplate: `<b>%{y:${figures(norm)}}</b><br>%{text}<extra>${label}</extra>`,
    });
    return traces;
  }

  function memberTraces(series, norm) {
    return series.members
      .filter((member) => member.values[norm])
      .map((member, place) => ({
        x: along(series, false),
        y: member.values[norm],
        meta: "member",
        name: series.kind === "study" ? "single questions" : "single prompts",
        showlegend: place === 0,
        legendgroup: "members",
        mode: "lines",
        line: { color: isDark() ? "rgba(166,171,179,.4)" : "rgba(110,115,122,.35)", width: 1 },
        hovertemplate: `%{y:${figures(norm)}}<extra>${plotText(short(member.id, 40))}</extra>`,
      }));
  }

  function positionAxis(look, most, relative) {
    const title = relative ? "relative position (0 = first, 1 = last)" : "position of the document (0 = first)";
    const ticks = relative ? {} : most <= 25 ? { dtick: 1 } : {};
    return { ...look.axis, ...ticks, title: { text: title, standoff: 8 }, showgrid: false, zeroline: false };
  }

  function valueAxis(look, norm) {
    const names = { share: "share of documents' attention", log_share: "share per head", mass: "mass", density: "density" };
    const title = names[norm] || "advantage (nats)";
    const format = isShare(norm) ? { tickformat: norm === "mass" ? ".1%" : ".0%" } : {};
    // A geometric interval of a share may pass 1, where nothing is to be seen.
    const from = norm === "advantage" ? {} : { rangemode: "tozero", ...(isShare(norm) ? { autorangeoptions: { clipmax: 1 } } : {}) };
    return { ...look.axis, ...format, ...from, title: { text: title, standoff: 8 }, zeroline: norm === "advantage" };
  }

  function drawCurve() {
    controls.head.disabled = controls.layer.value === ALL;
    if (controls.head.disabled) controls.head.value = ALL;
    const [norm, view] = [controls.norm.value, controls.view.value];
    const [layer, head] = [controls.layer.value, controls.head.value];
    const relative = Boolean(controls.axis) && controls.axis.value === "relative";
    const look = looks();
    const traces = [];
    const missing = [];
    const notes = [];
    drawn.forEach((series, number) => {
      const curve = curveOf(series, view, norm, layer, head);
      if (!curve) return missing.push(series.name);
      if (drawn.length === 1 && layer === ALL && view === "raw") traces.push(...memberTraces(series, norm));
      const name = drawn.length > 1 ? series.name : "curve";
      traces.push(...curveTraces(series, number, norm, curve, relative, name, look));
      const prefix = drawn.length > 1 ? `${series.name}: ` : "";
      const { head: first, tail: last } = series.curves[view][norm];
      const minus = norm === "advantage" ? " - " : "/";
      if (layer === ALL) notes.push(`${prefix}head${minus}middle ${first}, tail${minus}middle ${last}`);
      if (curve.low) notes.push(layer === ALL ? "band: 95 %, all positions at once" : "band: 95 %, each position alone");
    });
    if (layer !== ALL) notes.unshift(`layer ${layer}, ${head === ALL ? "mean over its heads" : `head ${head}`}`);
    if (missing.length) notes.push(`not there in this choice: ${missing.join(", ")}`);
    const most = Math.max(...drawn.map((series) => series.documents.length));
    const layout = {
      ...look.layout,
      xaxis: positionAxis(look, most, relative),
      yaxis: valueAxis(look, norm),
      hovermode: "closest",
    };
    byId("curve-caption").textContent = [...new Set(notes)].join("; ") + ".";
    return draw("curve-plot", traces, layout);
  }

  // ---- layers and heads

  const QUANTITIES = [
    ["head_middle", "head/middle of the share"],
    ["tail_middle", "tail/middle of the share"],
    ["document_mass", "mass of all documents"],
  ];
  const explored = drawn.filter((series) => series.curves.raw.share && series.curves.raw.share.heads);
  let chosen = null; // the place of a layer and a head; at first the strongest

  const hasMiddle = () => explored[Number(controls.source.value)].middle.length > 0;
  const seriesShown = () => explored[Number(controls.source.value)];

  function explorerControls() {
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
    if (!chosen) chosen = most ? { layer: most.place, head: most.head } : { layer: 0, head: 0 };
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
    trace.colorbar = { ...scale.colorbar, thickness: 12, outlinewidth: 0, tickfont: { color: look.ink }, len: 0.95 };
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
    const name = QUANTITIES.find(([key]) => key === quantity)[1];
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
    const traces = [
      ...curveTraces(series, 0, "share", mean, false, "mean over all", look),
      ...curveTraces(series, 1, "share", { ...own, uniform: null }, false, `layer ${layer}, head ${chosen.head}`, look),
    ];
    const layout = { ...look.layout, xaxis: positionAxis(look, series.documents.length, false), yaxis: valueAxis(look, "share") };
    const at = chosen.layer * series.n_heads + chosen.head;
    const words = QUANTITIES.filter(([key]) => key === "document_mass" || series.middle.length)
      .map(([key, name]) => `${name} ${inWords(key, part(series.ratios[key], at, 1)[0])}`)
      .join(", ");
    byId("explorer-status").textContent = `Layer ${layer}, head ${chosen.head}: ${words}.`;
    byId("explorer-curve").setAttribute("aria-label", `Curve of layer ${layer}, head ${chosen.head}, beside the mean: ${words}`);
    return draw("explorer-curve", traces, layout);
  }

  // ---- downloads

  function csv(header, rows) {
    const cell = (value) => {
      if (value === null || value === undefined) return "";
      if (typeof value === "number") return String(value);
      const text = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
      return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    return [header, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  function* curveRows() {
    for (const series of drawn) {
      for (const [view, norms] of Object.entries(series.curves)) {
        for (const norm of Object.keys(norms)) {
          const choices = [[ALL, ALL]];
          for (const layer of series.layers) {
            choices.push([String(layer), ALL]);
            for (let head = 0; head < series.n_heads; head++) choices.push([String(layer), String(head)]);
          }
          for (const [layer, head] of choices) {
            const curve = curveOf(series, view, norm, layer, head);
            if (!curve) continue;
            for (let position = 0; position < series.documents.length; position++) {
              const at = (values) => (values ? values[position] : null);
              yield [
                ...[series.name, series.kind, view, norm, layer, head, position, series.documents[position]],
                ...[series.tokens[position], at(curve.values), at(curve.low), at(curve.high)],
                curve.low ? (layer === ALL ? "simultaneous" : "pointwise") : "",
                at(curve.uniform),
              ];
            }
          }
        }
      }
    }
  }

  const TABLES = {
    curves: () => [
      [
        ...["series", "kind", "view", "norm", "layer", "head", "position", "document", "tokens", "value"],
        ...["low", "high", "interval", "uniform"],
      ],
      [...curveRows()],
    ],
    budget: () => [
      ["series", "kind", "mass"],
      data.series.flatMap((series) => Object.entries(series.budget).map(([kind, mass]) => [series.name, kind, mass])),
    ],
    prompts: () => {
      const headers = [...new Set(data.series.flatMap((series) => series.prompts.header))];
      const rows = data.series.flatMap((series) =>
        series.prompts.rows.map((row) => {
          const cells = new Map(series.prompts.header.map((name, place) => [name, row[place]]));
          return [series.name, ...headers.map((name) => cells.get(name))];
        }),
      );
      return [["series", ...headers], rows];
    },
  };

  function download(name) {
    const [header, rows] = TABLES[name]();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(header, rows)], { type: "text/csv;charset=utf-8" }));
    link.download = `attnprobe-${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  // ---- texts

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

  // ---- the page

  function redraw() {
    if (drawn.length) drawCurve();
    if (explored.length) drawExplorer();
  }

  const folded = [...document.querySelectorAll("details")];
  for (const one of folded) one.open = false;
  let open = [];
  window.addEventListener("beforeprint", () => {
    open = folded.map((one) => one.open);
    for (const one of folded) one.open = true;
    printing = true;
    redraw();
  });
  window.addEventListener("afterprint", () => {
    folded.forEach((one, place) => (one.open = open[place]));
    printing = false;
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
  if (drawn.length) curveControls();
  if (explored.length) explorerControls();
  redraw();
  startTexts();
})();
