"use strict";
// Numbers of a report: decoding, and the curve of any choice.
globalThis.AttnprobeReport = {};
AttnprobeReport.data = (() => {
  const ALL = "all";
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const drawn = data.series.filter((series) => Object.keys(series.curves).length);

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
  const part = (array, start, n) => (array ? known(array.subarray(start, start + n)) : null);

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

  // Calibrated values are ratios, whatever they are ratios of.
  const isPart = (norm, view) => view !== "calibrated" && (norm === "share" || norm === "log_share" || norm === "mass");

  return { ALL, data, drawn, part, curveOf, isPart };
})();
