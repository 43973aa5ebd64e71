"use strict";
// Words and numbers of a token map: what is said about a view, a token and the keys.
AttnprobeTokenMap.words = (() => {
  const { shown, element, blockName } = AttnprobeTokenMap.text;
  const LONGEST = 80; // characters of a token that are repeated outside the text
  const KEYS = [
    ["← →", "previous, next token"], ["↑ ↓", "token above, below"], ["n p", "next, previous document"],
    ["[ ]", "previous, next layer"], ["{ }", "previous, next head"], [", .", "previous, next answer token"],
    ["Enter", "on an answer token: show what it looked at"], ["h", "the list of the heaviest; ↑ ↓ Enter in it"],
    ["/", "search"], ["?", "this help"], ["Esc", "close"],
  ];

  const number = (value) => {
    if (value === 0) return "0";
    if (value >= 0.001 && value < 10000) return String(Number(value.toPrecision(3)));
    return value.toExponential(2).replace("e+", "e");
  };
  const percent = (value) => {
    if (value === 0) return "0 %";
    if (value < 1e-6) return `${(100 * value).toExponential(1)} %`;
    return `${value < 0.01 ? (100 * value).toPrecision(2) : (100 * value).toFixed(1)} %`;
  };

  // A text's beginning on one line, with white space to be seen.
  const visibly = (text) => {
    const line = shown(text.slice(0, LONGEST)).replace(/\n/g, "↵").replace(/ /g, "␣");
    return text.length > LONGEST ? `${line}…` : line;
  };

  const rowText = (model, row) => {
    const { payload } = model;
    const t = payload.n_prompt + row;
    const text = payload.text.slice(model.starts[t], model.stops[t]);
    return `${row}: ${text ? visibly(text) : "(no text)"}`;
  };

  // What the colours stand for, and how much is known.
  function statusText(model, view, found) {
    const { payload } = model;
    const { bands, layers } = payload;
    const where = view.source === "band" ? `Mean over ${bands[view.band].name}${view.band ? "" : " and heads"}`
      : view.source === "layer" ? `Layer ${layers[view.layer]}, mean over its ${payload.n_heads} heads`
        : `Layer ${layers[view.layer]}, head ${view.head}`;
    const when = view.row === null ? `mean over ${model.nRows} answer tokens`
      : `answer token ${rowText(model, view.row)} (attention of `
        + `${payload.rows === "predicting" ? "the token before it, which predicts it" : "this token itself"})`;
    const what = {
      token: "Every token has its own number.",
      sentence: "Numbers are kept for sentences: every token has the colour of its sentence's mean.",
      block: "Numbers are kept for stretches of several sentences: every token has the colour of its stretch's mean.",
      keys: `The ${payload.keys?.k} heaviest tokens of ${view.source === "layer" ? "this" : "each"} layer are kept; `
        + "of the others a bound is known.",
      tops: "The heaviest token of every document and other span is kept; the others got no more.",
      none: `No numbers are kept for this choice: ${whyNone(model, view)}`,
    }[found.kind];
    return `${where}; ${when}. ${what}${found.kind === "none" ? "" : whyNoDensity(model, view, found)}`;
  }

  // Why there is nothing to show, and what to do about it.
  function whyNone({ payload }, view) {
    if (view.source !== "head") return "the heaviest tokens of single answer tokens were not measured (extra keys).";
    if (view.row !== null && !payload.has_tops) {
      return "the heaviest token of each part was not measured for single heads (extra top, with rows).";
    }
    const name = `${payload.layers[view.layer]}:${view.head}`;
    const which = view.row === null ? "this head's masses" : "its single answer tokens";
    return `${which} did not fit; a page made with --heads ${name} has them.`;
  }

  // Why masses of documents and other parts come without density; nothing where they have one.
  function whyNoDensity({ payload }, view, found) {
    if (found.spanDensity) return "";
    if (!payload.has_rows) return " Documents and other parts have no density, as the run kept no rows.";
    if (found.isLeast) {
      const kept = payload.row_spans ? "are kept for bands of layers only" : "take more room than the page has";
      return ` Of documents and other parts only a least mass is known, and no density: for one answer token, these ${kept}.`;
    }
    if (view.row === null) {
      const kept = payload.density ? "are kept for layers, not for single heads" : "take more room than the page has";
      return ` Densities of documents and other parts ${kept}.`;
    }
    return " Densities of single answer tokens are not known, as the layers or rows do not all see the last tokens.";
  }

  // What is known about a span: its mass and density.
  function spanParts(found, span) {
    if (found.spanSeen?.[span] === false) return ["not seen"];
    if (!found.spanMass) return [];
    const parts = [`mass ${found.isLeast ? "≥ " : ""}${percent(found.spanMass[span])}`];
    const density = found.spanDensity?.[span];
    if (Number.isFinite(density)) parts.push(`density ${number(density)}`);
    return parts;
  }

  // The tooltip of a cell, line by line.
  function tipLines(model, found, cell) {
    const { payload } = model;
    const first = model.cells[cell], n = model.cells[cell + 1] - first;
    const span = payload.spans[model.spanOf[first]];
    const raw = payload.text.slice(model.cellStart(cell), model.cellStop(cell));
    const label = raw ? visibly(raw) : `id ${payload.ids_without_text[first]}, no text`;
    const lines = [label];
    const last = n > 1 ? `-${first + n - 1} (pieces of one character)` : "";
    lines.push(`token ${first}${last} of ${model.nTokens} · ${blockName(model, span)}`);
    const sum = (values, from, to) => values.subarray(from, to).reduce((total, value) => total + value, 0);
    // Behind a mass of the tokens [from, to): how many times what even attention would give them.
    const timesEven = (from, to, ...limits) => {
      const even = found.even ? sum(found.even, from, to) : 0;
      return even > 0 ? ` · ${limits.map((value) => number(value / even)).join(" to ")} × even` : "";
    };
    const mass = sum(found.mass, first, first + n);
    if (found.even && sum(found.even, first, first + n) === 0) {
      lines.push(found.isOneRow ? "not seen by this row" : "not seen by any row");
    } else if (found.kind === "none") {
      lines.push("no number is kept");
    } else if (found.kind === "token") {
      lines.push(`mass ${number(mass)} (${percent(mass)})${timesEven(first, first + n, mass)}`);
    } else if (found.edges) {
      const i = found.edges.findIndex((edge) => edge > first) - 1;
      const size = found.edges[i + 1] - found.edges[i];
      lines.push(`its ${found.kind === "sentence" ? "sentence" : "stretch"}, ${size} tokens: `
        + `mass ${number(found.sums[i])} (${percent(found.sums[i])})`
        + timesEven(found.edges[i], found.edges[i + 1], found.sums[i]));
    } else {
      let most = 0, known = false;
      for (let t = first; t < first + n; t++) {
        most += found.high(t);
        known ||= found.listed.has(t);
      }
      if (!known) lines.push(`mass at most ${number(most)} (${percent(most)}); not among the heaviest`);
      else if (most <= mass * (1 + payload.relative_error)) {
        lines.push(`mass ${number(mass)} (${percent(mass)})${timesEven(first, first + n, mass)}`);
      } else {
        lines.push(`mass ${number(mass)} to ${number(most)}${timesEven(first, first + n, mass, most)}`);
      }
    }
    const whole = spanParts(found, model.spanOf[first]);
    if (whole.length) lines.push(`${span.kind === "document" ? "document" : "all of it"}: ${whole.join(" · ")}`);
    return lines;
  }

  const helpDialog = (relativeError) => element("dialog", { class: "tm-help", "aria-label": "keys" },
    element("h2", {}, "Keys"),
    element("dl", {}, ...KEYS.flatMap(([key, text]) => [element("dt", {}, key), element("dd", {}, text)])),
    element("h2", {}, "Numbers"),
    element("p", {}, "Mass: the share of attention that a token got, mean over the rows, heads and layers shown. "
      + "× even: that mass divided by what it would be if every row gave all the tokens it sees the same. "
      + "Density, of documents and other parts: mass a token × the tokens the row sees, row by row, mean over the rows "
      + "that see the part, then over heads and layers; 1 is even attention. Not seen: no token of it lies in reach of "
      + "any row. Colours show mass a token; text outside the scale (sink, chat template, markers) is grey. Numbers "
      + `are within ${percent(relativeError)} of the measured ones.`),
    element("p", {}, "For one answer token, only its heaviest tokens are kept (one of each span for a single head): "
      + "a range is given where a number is not known exactly, and of text without colour only a bound is known."),
    element("form", { method: "dialog" }, element("button", {}, "Close")));

  return { percent, visibly, rowText, statusText, spanParts, tipLines, helpDialog };
})();
