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
    const visible = payload.visible && numbers(payload.visible);
    const seen = numbers(payload.seen);
    const sentences = numbers(payload.sentences);

    const spanOf = new Int32Array(nTokens);
    const pieceOf = new Int32Array(nTokens);
    pieces.forEach(([span, start, stop], piece) => {
      spanOf.fill(span, start, stop);
      pieceOf.fill(piece, start, stop);
    });

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

    // Whether the page has numbers of a view's head.
    function hasHead(view) {
      if (view.row !== null) return headPlace.has(`${view.layer}:${view.head}`);
      return Boolean(payload.by_head) || payload.chosen.some(([l, h]) => l === view.layer && h === view.head);
    }

    // Range of layer indices that a view averages.
    function layersOf(view) {
      if (view.source !== "band") return [view.layer, view.layer + 1];
      const band = payload.bands[view.band];
      return [band.first, band.stop];
    }

    // Mass that every token would have if each row gave the tokens that it sees the same, mean over layers and rows;
    // exactly 0 where none sees the token, null where it is not known who sees what.
    function evenMass(first, stop, row) {
      if (!visible) return null;
      const rows = row === null ? Array.from({ length: nRows }, (_, r) => r) : [row];
      const firstRow = payload.n_prompt - (payload.rows === "predicting" ? 1 : 0);
      const steps = new Float64Array(nTokens + 1), seers = new Int32Array(nTokens + 1); // differences
      for (let layer = first; layer < stop; layer++) {
        for (const r of rows) {
          const n = visible[layer * nRows + r], end = firstRow + r + 1;
          const share = 1 / (n * (stop - first) * rows.length);
          steps[end - n] += share;
          steps[end] -= share;
          seers[end - n]++;
          seers[end]--;
        }
      }
      const even = new Float64Array(nTokens);
      let sum = 0, count = 0;
      for (let t = 0; t < nTokens; t++) {
        sum += steps[t];
        count += seers[t];
        even[t] = count ? sum : 0;
      }
      return even;
    }

    function spanSums(tokens) {
      const sums = new Float64Array(spans.length);
      tokens.forEach((value, t) => { sums[spanOf[t]] += value; });
      return sums;
    }

    // Density of spans, mean over rows, then over the layers that see them; NaN or null where it is not kept.
    function meanDensity(view) {
      const kept = payload.density;
      if (!kept || (kept.of === "layer" && view.source === "head")) return null;
      const [first, stop] = layersOf(view);
      const perLayer = kept.of === "layer" ? 1 : payload.n_heads;
      const heads = view.source === "head" ? [view.head] : Array.from({ length: perLayer }, (_, head) => head);
      const sums = new Float64Array(spans.length), n = new Int32Array(spans.length);
      for (let layer = first; layer < stop; layer++) {
        for (const head of heads) {
          const from = (layer * perLayer + head) * kept.spans.length;
          masses(kept.values, from, from + kept.spans.length).forEach((value, place) => {
            const i = kept.spans[place];
            if (!seen[layer * nSpans + i]) return;
            sums[i] += value * nTokens;
            n[i]++;
          });
        }
      }
      return sums.map((sum, i) => sum / n[i]);
    }

    // Which spans any of a view's rows sees; null where that is not known.
    function seenSpans(view, even) {
      if (view.row !== null) return even && Array.from(spanSums(even), (sum) => sum > 0);
      const [first, stop] = layersOf(view);
      return spans.map((_, i) => {
        for (let layer = first; layer < stop; layer++) if (i < nSpans && seen[layer * nSpans + i]) return true;
        return false;
      });
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
      found.spanMass = spanSums(found.mass);
      spans.forEach((span, i) => {
        if (span.kind === "learned_sink") found.spanMass[i] = learnedSink(view);
      });
      found.spanDensity = meanDensity(view);
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
      const known = rowSpans(view);
      if (known) return { kind: "keys", mass: low, high, listed, ...known };
      const least = new Float64Array(spans.length);
      for (const t of listed) least[spanOf[t]] += low[t];
      return { kind: "keys", mass: low, high, listed, spanMass: least, isLeast: true };
    }

    // Mass and density of every span for one answer token, mean over heads; null where they are not kept.
    function rowSpans(view) {
      const kept = payload.row_spans;
      if (!kept || (kept.of === "band" && view.source !== "band")) return null;
      const [first, stop] = layersOf(view);
      const reach = (layer) => visible?.[layer * nRows + view.row];
      const ofLayer = kept.of === "layer";
      let isKnown = Boolean(visible); // a band's densities are known where its layers see the same
      for (let layer = first; layer < stop; layer++) isKnown &&= ofLayer || reach(layer) === reach(first);
      const evens = new Map(); // by how many tokens a layer's row sees
      const evenSpans = (layer) => {
        const n = reach(layer);
        if (!evens.has(n)) evens.set(n, spanSums(evenMass(layer, layer + 1, view.row)));
        return evens.get(n);
      };
      const spanMass = new Float64Array(spans.length), densities = new Float64Array(spans.length);
      const seers = new Int32Array(spans.length);
      const places = ofLayer ? Array.from({ length: stop - first }, (_, i) => first + i) : [view.band];
      for (const place of places) {
        const from = (place * nRows + view.row) * nSpans;
        const even = isKnown ? evenSpans(ofLayer ? place : first) : null;
        masses(kept.mass, from, from + nSpans).forEach((value, i) => {
          spanMass[i] += value / places.length;
          if (!even?.[i]) return;
          densities[i] += value / even[i];
          seers[i]++;
        });
      }
      return { spanMass, spanDensity: isKnown ? densities.map((sum, i) => sum / seers[i]) : null };
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
      // Any other token has at most what the heaviest one leaves of its span; both are known but for their rounding.
      const off = payload.relative_error;
      const rest = (span) => Math.min(top[span], Math.max(0, spanMass[span] * (1 + off) - top[span] * (1 - off)));
      const high = (t) => (listed.has(t) ? mass[t] : spanOf[t] < nSpans ? rest(spanOf[t]) : 0);
      const even = visible && spanSums(evenMass(view.layer, view.layer + 1, view.row));
      return { kind: "tops", mass, high, listed, spanMass, spanDensity: even && spanMass.map((m, i) => m / even[i]) };
    }

    // What a view gives: {kind, mass [token], even [token] or null, spanMass [span] or null (of which no more is known
    // than that it is at least so much, with isLeast), spanDensity [span] and spanSeen [span] or nothing, ...}. Kind "token": masses of single tokens;
    // "sentence" and "block": means over stretches; "keys" and "tops": known for some tokens only; "none": not kept.
    function values(view) {
      let found;
      if (view.row === null) found = meanOverRows(view);
      else if (view.source === "head") found = tops(view);
      else if (payload.keys) found = heaviest(view);
      else found = { kind: "none", mass: new Float64Array(nTokens), spanMass: null, ...rowSpans(view) };
      found.isOneRow = view.row !== null;
      found.even = evenMass(...layersOf(view), view.row);
      found.spanSeen = seenSpans(view, found.even);
      return found;
    }

    return {
      payload, nTokens, nRows, starts, stops, spanOf, cells, cellOf, sentences, values, hasHead,
      scaffold: spans.map((span) => SCAFFOLD.has(span.kind)),
      nCells: cells.length - 1,
      kindNames: new Map(payload.kinds),
      cellStart: (cell) => starts[cells[cell]],
      cellStop: (cell) => stops[cells[cell]],
      cellEnd: (cell) => (cell + 1 < cells.length - 1 ? starts[cells[cell + 1]] : payload.text.length),
    };
  }

  return { read };
})();
