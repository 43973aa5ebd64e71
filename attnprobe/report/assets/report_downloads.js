"use strict";
// Downloads of a report, made of the numbers in the page.
AttnprobeReport.download = (() => {
  const { ALL, data, drawn, curveOf } = AttnprobeReport.data;

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

  return function download(name) {
    const [header, rows] = TABLES[name]();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(header, rows)], { type: "text/csv;charset=utf-8" }));
    link.download = `attnprobe-${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

})();
