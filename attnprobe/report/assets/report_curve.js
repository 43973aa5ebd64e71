"use strict";
// The curve of a report, with its choices.
AttnprobeReport.curve = (() => {
  const { ALL, data, drawn, curveOf } = AttnprobeReport.data;
  const { byId, isDark, looks, draw, chooser, plotText, short, hoverFormat, along, curveTraces, positionAxis, valueAxis } =
    AttnprobeReport.plots;

  const numbers = (values) => [...new Set(values)].sort((a, b) => a - b);
  const ordered = (names, has) => Object.entries(names).filter(([name]) => drawn.some((series) => has(series, name)));
  const controls = {};

  function start() {
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

  function memberTraces(series, norm, view) {
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
        hovertemplate: `%{y:${hoverFormat(norm, view)}}<extra>${plotText(short(member.id, 40))}</extra>`,
      }));
  }

  const has = (view, norm, layer = ALL, head = ALL) => drawn.some((series) =>
    curveOf(series, view, norm, layer, head)?.values.some((value) => value !== null));

  // Only what there is can be chosen: each choice leaves the later ones what it has.
  function offer() {
    const norms = [...controls.norm.options].map((option) => option.value);
    const keep = (select, isThere) => {
      for (const option of select.options) option.disabled = !isThere(option.value);
      if (!select.selectedOptions[0]?.disabled) return;
      const other = [...select.options].find((option) => !option.disabled);
      if (other) select.value = other.value;
    };
    keep(controls.view, (view) => norms.some((norm) => has(view, norm)));
    const view = controls.view.value;
    keep(controls.norm, (norm) => has(view, norm));
    const norm = controls.norm.value;
    keep(controls.layer, (layer) => has(view, norm, layer));
    const layer = controls.layer.value;
    keep(controls.head, (head) => has(view, norm, layer, head));
    controls.head.disabled = layer === ALL;
    if (controls.head.disabled) controls.head.value = ALL;
  }

  // What is said of series: once where it is the same for all of them, else each with its name.
  function said(notes) {
    const texts = new Set(notes.map(([, text]) => text));
    return texts.size > 1 ? notes.map(([name, text]) => `${name}: ${text}`) : [...texts];
  }

  function drawCurve() {
    offer();
    const [norm, view] = [controls.norm.value, controls.view.value];
    const [layer, head] = [controls.layer.value, controls.head.value];
    const relative = Boolean(controls.axis) && controls.axis.value === "relative";
    const look = looks();
    const traces = [];
    const missing = [];
    const notes = [], bands = [], sinks = [];
    drawn.forEach((series, place) => {
      const curve = curveOf(series, view, norm, layer, head);
      if (!curve) return missing.push(series.name);
      const members = drawn.length === 1 && layer === ALL && view === "raw" ? memberTraces(series, norm, view) : [];
      traces.push(...members);
      const name = drawn.length > 1 ? series.name : members.length ? "mean" : "curve";
      traces.push(...curveTraces(series, place, { norm, view, curve, relative, name, look }));
      const prefix = drawn.length > 1 ? `${series.name}: ` : "";
      const { head: first, tail: last } = series.curves[view][norm];
      const minus = norm === "advantage" ? " - " : "/";
      if (layer === ALL) notes.push(`${prefix}head${minus}middle ${first}, tail${minus}middle ${last}`);
      if (view === "raw") sinks.push([series.name, series.sinks]);
      const band = layer === ALL ? "band: 95 %, all positions at once" : "band: 95 %, each position alone";
      bands.push([series.name, curve.low ? band : "no band"]);
    });
    if (layer !== ALL) notes.unshift(`layer ${layer}, ${head === ALL ? "mean over its heads" : `head ${head}`}`);
    if (bands.some(([, text]) => text !== "no band")) notes.push(...said(bands));
    if (missing.length) notes.push(`not there in this choice: ${missing.join(", ")}`);
    const most = Math.max(...drawn.map((series) => series.documents.length));
    const layout = {
      ...look.layout,
      xaxis: positionAxis(look, most, relative),
      yaxis: valueAxis(look, norm, view),
      hovermode: "closest",
    };
    const isEmpty = !has(view, norm, layer, head);
    byId("curve-plot").hidden = isEmpty;
    byId("curve-caption").textContent = isEmpty ? "No row sees any of the documents, so there is no curve."
      : [`${notes.join("; ")}.`, ...said(sinks)].join(" ");
    return isEmpty ? null : draw("curve-plot", traces, layout);
  }

  return { start, draw: drawCurve };
})();
