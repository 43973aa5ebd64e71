"use strict";
// Numbers of a token map: decoding, and what any view of it gives each token.
globalThis.AttnprobeTokenMap = (() => {
  // Kinds that are no content: shown apart, and outside the colour scale unless asked for.
  const SCAFFOLD = new Set(["sink", "learned_sink", "template", "marker"]);

  // Bytes [from, to) of base64 text, without decoding the rest.
  function bytes(text, from, to) {
    const first = Math.floor(from / 3);
    const raw = atob(text.slice(4 * first, 4 * Math.ceil(to / 3)));
    const out = new Uint8Array(to - from);
    for (let i = 0; i < out.length; i++) out[i] = raw.charCodeAt(from - 3 * first + i);
    return out.buffer;
  }

  // How many numbers of some bytes each there are in base64 text.
  function count(text, size) {
    const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
    return ((text.length / 4) * 3 - padding) / size;
  }

  // Little-endian numbers, as every browser has them in memory.
  const numbers = (text, from = 0, to = count(text, 4)) => new Int32Array(bytes(text, 4 * from, 4 * to));

  function read(payload) {
    const starts = numbers(payload.starts);
    const stops = numbers(payload.stops);
    const nTokens = starts.length;
    const { spans, pieces } = payload;
    const nRows = payload.n_rows;
    const nLayers = payload.layers.length;
    const nSpans = payload.n_measured_spans;
    const mass = new Float64Array(65536);
    for (let code = 1; code < 65536; code++) mass[code] = Math.exp((code - 65535) * payload.step);
    const visible = numbers(payload.visible);
    const sentences = numbers(payload.sentences);

    const spanOf = new Int32Array(nTokens);
    const pieceOf = new Int32Array(nTokens);
    pieces.forEach(([span, start, stop], piece) => {
      spanOf.fill(span, start, stop);
      pieceOf.fill(piece, start, stop);
    });
    const blockOf = new Int32Array(pieces.length);
    payload.blocks.forEach(([, first, last], block) => blockOf.fill(block, first, last));
    const spanSize = new Int32Array(spans.length);
    for (const span of spanOf) spanSize[span]++;

    // A cell is what is shown as one: a token, or the tokens that are pieces of the same characters.
    const cellOf = new Int32Array(nTokens);
    const firsts = [];
    for (let t = 0; t < nTokens; t++) {
      const joins = t > 0 && pieceOf[t] === pieceOf[t - 1] && starts[t] < stops[t] && starts[t] === starts[t - 1]
        && stops[t] === stops[t - 1];
      if (!joins) firsts.push(t);
      cellOf[t] = firsts.length - 1;
    }
    const cells = Int32Array.from(firsts.concat(nTokens));

    const masses = (text, from, to) =>
      Float64Array.from(new Uint16Array(bytes(text, 2 * from, 2 * to)), (code) => mass[code]);

    const headPlace = new Map();
    if (payload.row_heads) payload.row_heads.heads.forEach(([layer, head], i) => headPlace.set(`${layer}:${head}`, i));

    // Range of layer indices that a view averages.
    function layersOf(view) {
      if (view.source !== "band") return [view.layer, view.layer + 1];
      const band = payload.bands[view.band];
      return [band.first, band.stop];
    }

    // Tokens that a row sees, mean over the view's layers and rows.
    function visibleTokens(view) {
      const [first, stop] = layersOf(view);
      let sum = 0;
      for (let layer = first; layer < stop; layer++) {
        for (let row = 0; row < nRows; row++) {
          if (view.row === null || view.row === row) sum += visible[layer * nRows + row];
        }
      }
      return sum / ((stop - first) * (view.row === null ? nRows : 1));
    }

    function learnedSink(view) {
      if (!payload.learned_sink) return 0;
      const [first, stop] = layersOf(view);
      const all = masses(payload.learned_sink, 0, nLayers * payload.n_heads);
      let sum = 0, n = 0;
      for (let layer = first; layer < stop; layer++) {
        for (let head = 0; head < payload.n_heads; head++) {
          if (view.source === "head" && head !== view.head) continue;
          sum += all[layer * payload.n_heads + head];
          n++;
        }
      }
      return sum / n;
    }

    // Masses of stretches, from one map of several.
    function stretches(grid, place) {
      if (grid.kind === "token") {
        return { kind: "token", mass: masses(grid.mass, place * nTokens, (place + 1) * nTokens) };
      }
      const edges = numbers(grid.edges);
      const n = edges.length - 1;
      return { kind: grid.kind, edges, sums: masses(grid.mass, place * n, (place + 1) * n) };
    }

    function meanOverRows(view) {
      let found;
      if (view.source === "band") {
        found = { kind: "token", mass: masses(payload.band_mass, view.band * nTokens, (view.band + 1) * nTokens) };
      } else if (view.source === "layer") {
        found = payload.by_layer && stretches(payload.by_layer, view.layer);
      } else {
        const place = payload.chosen.findIndex(([layer, head]) => layer === view.layer && head === view.head);
        if (place >= 0) {
          found = { kind: "token", mass: masses(payload.chosen_mass, place * nTokens, (place + 1) * nTokens) };
        } else {
          found = payload.by_head && stretches(payload.by_head, view.layer * payload.n_heads + view.head);
        }
      }
      if (!found) return { kind: "none", mass: new Float64Array(nTokens), spanMass: null };
      if (found.kind !== "token") {
        found.mass = new Float64Array(nTokens);
        found.sums.forEach((sum, i) => {
          found.mass.fill(sum / (found.edges[i + 1] - found.edges[i]), found.edges[i], found.edges[i + 1]);
        });
      }
      found.spanMass = new Float64Array(spans.length);
      for (let t = 0; t < nTokens; t++) found.spanMass[spanOf[t]] += found.mass[t];
      spans.forEach((span, i) => {
        if (span.kind === "learned_sink") found.spanMass[i] = learnedSink(view);
      });
      return found;
    }

    // One answer token, mean over heads: the heaviest tokens of each layer, so a lower and an upper bound.
    function heaviest(view) {
      const [first, stop] = layersOf(view);
      const n = stop - first;
      const low = new Float64Array(nTokens);
      const slack = new Float64Array(nTokens); // last listed masses of the layers that list the token
      let bound = 0;
      const listed = new Set();
      for (let layer = first; layer < stop; layer++) {
        const { k } = payload.keys;
        const from = (layer * nRows + view.row) * k;
        const mass = masses(payload.keys.mass, from, from + k);
        const token = numbers(payload.keys.token, from, from + k);
        const last = token[k - 1] < 0 ? 0 : mass[k - 1]; // a list that is not full leaves nothing out
        bound += last / n;
        token.forEach((t, i) => {
          if (t < 0) return;
          low[t] += mass[i] / n;
          slack[t] += last / n;
          listed.add(t);
        });
      }
      const high = (t) => low[t] + Math.max(0, bound - slack[t]);
      const spanMass = rowSpans(view);
      if (spanMass) return { kind: "keys", mass: low, high, listed, spanMass };
      const least = new Float64Array(spans.length);
      for (const t of listed) least[spanOf[t]] += low[t];
      return { kind: "keys", mass: low, high, listed, spanMass: least, isLeast: true };
    }

    // Span masses of one answer token, mean over heads; null where they are not kept.
    function rowSpans(view) {
      const kept = payload.row_spans;
      if (!kept || (kept.of === "band" && view.source !== "band")) return null;
      const [first, stop] = kept.of === "band" ? [view.band, view.band + 1] : layersOf(view);
      const sums = new Float64Array(spans.length);
      for (let place = first; place < stop; place++) {
        const from = (place * nRows + view.row) * nSpans;
        masses(kept.mass, from, from + nSpans).forEach((value, i) => { sums[i] += value / (stop - first); });
      }
      return sums;
    }

    // One answer token, one head: each span's mass and heaviest token.
    function tops(view) {
      const place = headPlace.get(`${view.layer}:${view.head}`);
      const mass = new Float64Array(nTokens);
      if (place === undefined) return { kind: "none", mass, spanMass: null };
      const from = (place * nRows + view.row) * nSpans;
      const top = masses(payload.row_heads.top_mass, from, from + nSpans);
      const token = numbers(payload.row_heads.top_token, from, from + nSpans);
      const spanMass = new Float64Array(spans.length);
      spanMass.set(masses(payload.row_heads.mass, from, from + nSpans));
      const listed = new Set();
      token.forEach((t, i) => {
        if (t < 0) return;
        mass[t] = top[i];
        listed.add(t);
      });
      const high = (t) => (listed.has(t) ? mass[t] : top[spanOf[t]] ?? 0);
      return { kind: "tops", mass, high, listed, spanMass };
    }

    // What a view gives: {kind, mass [token], spanMass [span] or null (of which no more is known than that it is at
    // least so much, with isLeast), ...}. Kind "token": masses of single tokens;
    // "sentence" and "block": means over stretches; "keys" and "tops": known for some tokens only; "none": not kept.
    function values(view) {
      let found;
      if (view.row === null) found = meanOverRows(view);
      else if (view.source === "head") found = tops(view);
      else if (payload.keys) found = heaviest(view);
      else found = { kind: "none", mass: new Float64Array(nTokens), spanMass: rowSpans(view) };
      found.visible = visibleTokens(view);
      return found;
    }

    return {
      payload, nTokens, nRows, starts, stops, spanOf, spanSize, pieceOf, blockOf, cells, cellOf, sentences, values,
      scaffold: spans.map((span) => SCAFFOLD.has(span.kind)),
      nCells: cells.length - 1,
      cellStart: (cell) => starts[cells[cell]],
      cellStop: (cell) => stops[cells[cell]],
      cellEnd: (cell) => (cell + 1 < cells.length - 1 ? starts[cells[cell + 1]] : payload.text.length),
    };
  }

  return { read };
})();
