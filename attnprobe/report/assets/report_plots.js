"use strict";
// Looks of a report's plots, and what several of them share. Texts of users reach plotly through plotText.
AttnprobeReport.plots = (() => {
  const { drawn, isPart } = AttnprobeReport.data;
  const byId = (id) => document.getElementById(id);

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const setPrinting = (is) => { printing = is; };
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

  const ABOVE = 34; // pixels of height for the buttons

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
        margin: { l: 10, r: 10, t: ABOVE, b: 10 },
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
    const height = ABOVE + INSIDE + BELOW + 20 * lines;
    place.style.height = `${height}px`;
    const size = printing ? { width, height, autosize: false } : { autosize: true };
    const legend = { ...layout.legend, y: -BELOW / INSIDE };
    return Plotly.react(place, traces, { ...layout, ...size, legend }, CONFIG);
  }

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

  const hoverFormat = (norm, view) => (isPart(norm, view) ? ".2%" : ".3f");

  // The curve with its band and the uniform one; `place` is the series' among those drawn, for colour and symbol.
  function curveTraces(series, place, { norm, view, curve, relative = false, name, look }) {
    const colour = line(place);
    const x = along(series, relative);
    const label = plotText(short(name, isNarrow() ? 34 : 60));
    const interval = curve.low
      ? curve.low.map((low, position) => [low, curve.high[position]])
      : series.documents.map(() => [null, null]);
    const text = atPosition(series).map((where, position) => {
      const [low, high] = interval[position];
      const shown = (value) => (isPart(norm, view) ? `${(100 * value).toFixed(1)} %` : value.toFixed(3));
      return low === null ? where : `${where}<br>95 %: ${shown(low)} to ${shown(high)}`;
    });
    const traces = band(series, x, curve, colour, label);
    if (curve.uniform) {
      const isOver = view === "calibrated";
      const line2 = { color: drawn.length === 1 ? look.ink : colour, width: 1.2, dash: "dash" };
      const uniform = { x, y: curve.uniform, mode: "lines", line: line2, meta: "uniform", hoverinfo: "skip" };
      traces.push({ ...uniform, name: isOver ? "as in the null" : "uniform: every token alike", showlegend: place === 0, legendrank: 2000 });
    }
    traces.push({
      x,
      y: curve.values,
      text,
      name: label,
      meta: "curve",
      mode: "lines+markers",
      line: { color: colour, width: 2.5 },
      marker: { color: colour, size: 8, symbol: SYMBOLS[place % SYMBOLS.length] },
      hovertemplate: `<b>%{y:${hoverFormat(norm, view)}}</b><br>%{text}<extra>${label}</extra>`,
    });
    return traces;
  }

  function positionAxis(look, most, relative) {
    const title = relative ? "relative position (0 = first, 1 = last)" : "position of the document (0 = first)";
    const ticks = relative ? {} : most === 1 ? { range: [-0.5, 0.5], dtick: 1 } : most <= 25 ? { dtick: 1 } : {};
    return { ...look.axis, ...ticks, title: { text: title, standoff: 8 }, showgrid: false, zeroline: false };
  }

  function valueAxis(look, norm, view) {
    const names = { share: "share of the documents' attention", log_share: "share per head", mass: "mass", density: "density" };
    const ratio = norm === "advantage" ? "advantage less the null's (nats)" : `${norm.replace("_", " ")} / the null's`;
    const title = view === "calibrated" ? ratio : names[norm] || "advantage (nats)";
    const format = isPart(norm, view) ? { tickformat: norm === "mass" ? ".1%" : ".0%" } : {};
    // A geometric interval of a share may pass 1, where nothing is to be seen; a point at 1 is seen whole.
    const clip = isPart(norm, view) ? { autorangeoptions: { clipmax: 1.04 } } : {};
    const from = norm === "advantage" ? {} : { rangemode: "tozero", ...clip };
    return { ...look.axis, ...format, ...from, title: { text: title, standoff: 8 }, zeroline: norm === "advantage" };
  }

  return {
    byId, dark, setPrinting, isDark, isNarrow, looks, draw, chooser, plotText, short, hoverFormat, along, curveTraces,
    positionAxis, valueAxis,
  };
})();
