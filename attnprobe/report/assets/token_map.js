"use strict";
// Controls of a token map: what is shown, its colour scale, search, keyboard and tooltip.
AttnprobeTokenMap.mount = (() => {
  const { shown, isCut, searchable, element, lay } = AttnprobeTokenMap.text;
  const { percent, rowText, statusText, spanParts, tipLines, helpDialog } = AttnprobeTokenMap.words;
  const DECADES = 3; // of the logarithmic scale, down from its largest value
  const MOST_HITS = 20000;
  const mounted = new WeakMap(); // place -> what ends the listeners of the map in it
  return function mount(place, payload, options = {}) {
    mounted.get(place)?.abort();
    const ending = new AbortController();
    const { signal } = ending;
    mounted.set(place, ending);
    const model = AttnprobeTokenMap.read(payload);
    const { spans, bands, layers, chosen } = payload;
    const view = { source: "band", band: 0, layer: 0, head: 0, row: null, log: true, all: false };
    let found; // what the view gives
    let low = 0, high = 0; // ends of the colour scale, mass a token
    let cursor = -1;
    let column = null; // where moves up and down aim at, pixels from the left
    let hits = [], hit = -1;
    let searched = null; // the text that is searched, made when it first is
    const isHit = new Uint8Array(model.nCells);

    // --- elements
    const choice = (label, entries, attributes = {}) => {
      const select = element("select", { "aria-label": label, ...attributes });
      for (const [value, text] of entries) select.append(element("option", { value }, text));
      return select;
    };
    const step = (label, text, action) => {
      const button = element("button", { type: "button", "aria-label": label, title: label }, text);
      button.addEventListener("click", action);
      return button;
    };
    const source = choice("attention of", [
      ...bands.map((band, i) => [`band:${i}`, i ? band.name : "all layers and heads"]),
      ["layer", "one layer"], ["head", "one head"],
    ], { class: "tm-source" });
    if (chosen.length) {
      const label = payload.by_head?.kind === "token" ? "most on documents" : "token by token";
      source.append(element("optgroup", { label },
        ...chosen.map(([layer, head]) => element("option", { value: `head:${layer}:${head}` },
          `layer ${layers[layer]}, head ${head}`))));
    }
    const layer = choice("layer", layers.map((name, i) => [i, `layer ${name}`]), { class: "tm-layer" });
    const head = choice("head", Array.from({ length: payload.n_heads }, (_, i) => [i, `head ${i}`]),
      { class: "tm-head-choice" });
    const row = choice("answer token", [["", "all answer tokens"],
      ...Array.from({ length: model.nRows }, (_, i) => [i, rowText(model, i)])], { class: "tm-row" });
    const scale = choice("colour scale", [["log", "log scale"], ["linear", "linear scale"]],
      { class: "tm-scale-choice" });
    const all = element("input", { type: "checkbox", class: "tm-all" });
    const search = element("input", { type: "search", class: "tm-search", placeholder: "search the text",
      "aria-label": "search the text", spellcheck: "false", maxlength: 1000 });
    const hitCount = element("span", { class: "tm-hit-count", role: "status" });
    const legend = element("div", { class: "tm-legend" });
    const status = element("p", { class: "tm-status", role: "status" });
    const budget = element("div", { class: "tm-budget" });
    const tooltip = element("div", { class: "tm-tooltip", role: "status", "aria-live": "polite", hidden: true });
    const help = helpDialog(payload.relative_error);
    const moreControls = element("details", { class: "tm-more" }, element("summary", {}, "scale, search"),
      element("div", { class: "tm-controls" },
        scale,
        element("label", { class: "tm-check" }, all, " include sink and scaffold in the colour scale"),
        element("span", { class: "tm-group" }, search, step("previous hit", "↑", () => goToHit(-1)),
          step("next hit", "↓", () => goToHit(1)), hitCount)));
    const helpButton = step("keys and numbers explained", "?", () => showHelp());
    const controls = element("div", { class: "tm-bar", role: "group", "aria-label": "what is shown" },
      element("div", { class: "tm-controls" },
        element("span", { class: "tm-group" }, source, layer, head),
        element("span", { class: "tm-group" }, element("span", { class: "tm-label" }, "layer"),
          step("previous layer", "‹", () => moveLayer(-1)), step("next layer", "›", () => moveLayer(1))),
        element("span", { class: "tm-group" }, row),
        element("span", { class: "tm-group" }, element("span", { class: "tm-label" }, "answer token"),
          step("previous answer token", "‹", () => moveRow(-1)), step("next answer token", "›", () => moveRow(1))),
        helpButton),
      moreControls, legend);
    const heaviest = AttnprobeTokenMap.heaviest(model, (cell) => setCursor(cell, "center"), () => pane.focus());
    const pane = element("div", { class: "tm-text", role: "group", tabindex: 0,
      "aria-label": "the prompt's text and the answer; arrow keys move from token to token" });
    const notes = element("div", { class: "tm-notes" });
    const scroller = element("div", { class: "tm-scroll" }, budget, status, notes, pane);
    const root = element("div", { class: options.page ? "tm tm-page" : "tm" },
      controls, heaviest.element, scroller, tooltip, help);
    const wide = window.matchMedia("(min-width: 601px)");
    const fold = () => { moreControls.open = wide.matches; };
    wide.addEventListener("change", fold, { signal });
    fold();
    const roomy = window.matchMedia("(min-width: 1100px)"); // as in the style sheet: the list stands beside the text
    const foldList = () => { heaviest.element.open = roomy.matches; };
    roomy.addEventListener("change", foldList, { signal });
    foldList();
    place.replaceChildren(root);
    for (const warning of payload.warnings) notes.append(element("p", { class: "tm-warning" }, shown(warning)));

    const text = lay(model, pane, paintCells);
    const overview = AttnprobeTokenMap.overview(model, text, scroller, (token) => show(model.cellOf[token], "center"));
    controls.append(overview.element);
    const drawOverview = () => overview.draw(found.mass, inScale, alpha);

    // --- colours
    const hasValue = (kind) => kind === "token" || kind === "keys" || kind === "tops";
    const inScale = (token) => view.all || !model.scaffold[model.spanOf[token]];
    // Mass a token, mean over the tokens of a cell.
    function cellMass(cell) {
      let sum = 0;
      for (let t = model.cells[cell]; t < model.cells[cell + 1]; t++) sum += found.mass[t];
      return sum / (model.cells[cell + 1] - model.cells[cell]);
    }
    function alpha(mass) {
      if (!(mass > 0) || high === 0) return 0;
      if (!view.log) return Math.min(1, mass / high);
      return Math.max(0, Math.min(1, 1 + Math.log(mass / high) / (DECADES * Math.LN10)));
    }
    const paint = (target, value) => target.style.setProperty("--a", value.toFixed(4));
    function paintCell(cell, target) {
      const token = model.cells[cell];
      paint(target, hasValue(found.kind) && inScale(token) ? alpha(cellMass(cell)) : 0);
      target.classList.toggle("tm-picked", view.row !== null && token === payload.n_prompt + view.row);
      if (isHit[cell]) target.classList.add("tm-hit");
      if (cell === cursor) target.classList.add("tm-cursor");
    }
    function paintCells(first, last) {
      for (let cell = first; cell < last; cell++) paintCell(cell, text.live.get(cell));
    }
    function paintAll() {
      root.classList.toggle("tm-fine", hasValue(found.kind));
      root.classList.toggle("tm-all", view.all);
      const { sentences } = model;
      text.sentenceElements.forEach((target, s) => {
        let sum = 0;
        for (let t = sentences[s]; t < sentences[s + 1]; t++) sum += found.mass[t];
        paint(target, inScale(sentences[s]) ? alpha(sum / (sentences[s + 1] - sentences[s])) : 0);
      });
      for (const [cell, target] of text.live) paintCell(cell, target);
    }

    function update() {
      found = model.values(view);
      high = 0;
      for (let cell = 0; cell < model.nCells; cell++) {
        if (inScale(model.cells[cell])) high = Math.max(high, cellMass(cell));
      }
      low = view.log ? high / 10 ** DECADES : 0;
      const picked = view.source === "head" && chosen.some(([l, h]) => l === view.layer && h === view.head);
      source.value = view.source === "band" ? `band:${view.band}` : picked && source.value.startsWith("head:")
        ? `head:${view.layer}:${view.head}` : view.source;
      layer.hidden = view.source === "band";
      head.hidden = view.source !== "head";
      layer.value = view.layer;
      head.value = view.head;
      for (const option of head.options) option.disabled = !model.hasHead({ ...view, head: Number(option.value) });
      row.value = view.row ?? "";
      paintAll();
      showShares();
      showLegend();
      status.textContent = statusText(model, view, found);
      drawOverview();
      heaviest.draw(found, inScale);
      if (!tooltip.hidden && tipCell >= 0) showTooltip(tipCell);
    }

    // --- shares and budget
    function showShares() {
      const masses = found.spanMass;
      const least = found.isLeast ? "≥ " : "";
      let documents = 0;
      spans.forEach((span, i) => { if (span.kind === "document" && masses) documents += masses[i]; });
      for (const block of text.blocks) {
        const span = spans[block.span];
        if (model.scaffold[block.span]) continue;
        const parts = spanParts(found, block.span);
        if (span.kind === "document" && documents > 0 && !least && found.spanSeen?.[block.span] !== false) {
          parts.splice(1, 0, `share of documents ${percent(masses[block.span] / documents)}`);
        }
        block.share.textContent = parts.join(" · ");
      }
      budget.replaceChildren();
      if (!masses) return;
      const bar = element("div", { class: "tm-budget-bar", "aria-hidden": "true" });
      const list = element("ul", { class: "tm-budget-list", "aria-label": "where the attention goes" });
      for (const [kind, name] of payload.kinds) {
        if (!spans.some((span) => span.part === kind)) continue;
        let mass = 0;
        spans.forEach((span, i) => { if (span.part === kind) mass += masses[i]; });
        const part = element("span", { class: `tm-part kind-${kind}` });
        part.style.flexGrow = mass;
        bar.append(part);
        list.append(element("li", {}, element("i", { class: `tm-swatch kind-${kind}` }),
          `${name} ${least}${percent(mass)}`));
      }
      budget.append(bar, list);
    }

    function showLegend() {
      legend.hidden = high === 0;
      const middle = view.log ? Math.sqrt(low * high) : high / 2;
      const tick = (value, prefix = "") => element("span", {}, `${prefix}${percent(value)}`);
      legend.replaceChildren(
        element("span", { class: "tm-legend-title" }, "mass a token"),
        element("span", { class: "tm-gradient", "aria-hidden": "true" }),
        element("span", { class: "tm-ticks" }, tick(low, view.log ? "≤ " : ""), tick(middle), tick(high)));
    }

    // --- tooltip
    let tipCell = -1;
    function showTooltip(cell) {
      tipCell = cell;
      const [title, ...rest] = tipLines(model, found, cell);
      tooltip.replaceChildren(element("bdi", { class: "tm-tip-title" }, title),
        ...rest.map((line) => element("div", {}, line)));
      tooltip.hidden = false;
      tooltip.style.left = "0"; // where it is as wide as its text
      const target = text.live.get(cell);
      if (!target) return;
      const box = target.getClientRects()[0] ?? target.getBoundingClientRect();
      const own = tooltip.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.left, window.innerWidth - own.width - 8));
      const above = box.top - own.height - 8;
      tooltip.style.left = `${left}px`;
      tooltip.style.top = `${above >= controls.getBoundingClientRect().bottom ? above : box.bottom + 8}px`;
    }
    function hideTooltip() {
      tooltip.hidden = true;
      tipCell = -1;
    }

    function showHelp() {
      help.showModal();
      help.scrollTop = 0; // not at the button at its end, which gets the focus
    }

    // --- moving
    function show(cell, where = "nearest") {
      const target = text.elementOf(cell);
      target.scrollIntoView({ block: where, inline: "nearest" });
      return target;
    }
    function setCursor(cell, where) {
      column = null;
      const wanted = Math.max(0, Math.min(model.nCells - 1, cell));
      const before = cursor;
      cursor = wanted;
      text.live.get(before)?.classList.remove("tm-cursor");
      paintCell(cursor, show(cursor, where));
      requestAnimationFrame(() => showTooltip(cursor));
    }
    function startCursor() {
      const box = scroller.getBoundingClientRect();
      return model.cellOf[Math.floor(overview.tokenAtHeight(box.top + 1))];
    }
    function moveVertically(direction) {
      if (cursor < 0) return setCursor(startCursor());
      const box = show(cursor).getClientRects()[0];
      const x = column ?? box.left + box.width / 2;
      // The nearest token of the first line beyond this one; tokens follow each other, so few are looked at.
      let best = -1, distance = Infinity, lineTop = null;
      for (let cell = cursor + direction; cell >= 0 && cell < model.nCells; cell += direction) {
        const other = text.elementOf(cell).getClientRects()[0];
        if (!other) continue;
        if (direction > 0 ? other.top < box.bottom - 2 : other.bottom > box.top + 2) continue;
        lineTop ??= other.top;
        if (Math.abs(other.top - lineTop) > 4) break;
        const away = Math.abs(other.left + other.width / 2 - x);
        if (away < distance) [best, distance] = [cell, away];
      }
      if (best < 0) return;
      setCursor(best);
      column = x;
    }
    function moveDocument(direction) {
      const starts = text.blocks.filter((block) => spans[block.span].kind === "document");
      const now = cursor < 0 ? -1 : model.cells[cursor];
      const wanted = direction > 0 ? starts.find((block) => block.start > now)
        : starts.findLast((block) => block.start < now);
      if (!wanted) return;
      setCursor(model.cellOf[wanted.start]);
      wanted.element.scrollIntoView({ block: "start" });
    }
    function moveLayer(direction) {
      if (view.source === "band") {
        view.layer = direction > 0 ? bands[view.band].first : bands[view.band].stop - 1;
        view.source = "layer";
      } else view.layer = Math.max(0, Math.min(layers.length - 1, view.layer + direction));
      source.value = view.source;
      update();
    }
    function moveHead(direction) {
      if (view.source === "head") view.head = Math.max(0, Math.min(payload.n_heads - 1, view.head + direction));
      view.source = "head";
      source.value = view.source;
      update();
    }
    function moveRow(direction) {
      const now = view.row ?? (direction > 0 ? -1 : model.nRows);
      const wanted = now + direction;
      view.row = wanted < 0 || wanted >= model.nRows ? null : wanted;
      update();
    }
    function pickRow(cell) {
      const wanted = model.cells[cell] - payload.n_prompt;
      if (wanted < 0 || wanted >= model.nRows) return;
      view.row = wanted;
      update();
    }

    // --- search
    function find() {
      isHit.fill(0);
      hits = [];
      hit = -1;
      const wanted = shown(search.value).normalize("NFC");
      if (wanted) {
        const pattern = new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
        searched ??= searchable(payload.text);
        let cell = 0;
        for (const match of searched.text.matchAll(pattern)) {
          if (hits.length === MOST_HITS) break;
          const from = searched.start(match.index), to = searched.stop(match.index + match[0].length);
          while (cell < model.nCells - 1 && model.cellStop(cell) <= from) cell++;
          if (isCut(model.cellStart(cell), model.cellStop(cell)) && hits.at(-1) === cell) continue;
          hits.push(cell);
          for (let c = cell; c < model.nCells && model.cellStart(c) < to; c++) {
            if (model.cellStop(c) > from) isHit[c] = 1;
          }
        }
      }
      for (const [cell, target] of text.live) target.classList.toggle("tm-hit", isHit[cell] === 1);
      showHits();
    }
    function showHits() {
      const most = hits.length === MOST_HITS ? "+" : "";
      hitCount.textContent = !search.value ? "" : hits.length === 0 ? "not found"
        : hit < 0 ? `${hits.length}${most} found` : `${hit + 1} of ${hits.length}${most}`;
    }
    function goToHit(direction) {
      if (!hits.length) return;
      hit = hit < 0 ? (direction > 0 ? 0 : hits.length - 1) : (hit + direction + hits.length) % hits.length;
      setCursor(hits[hit], "center");
      showHits();
    }

    // --- events
    source.addEventListener("change", () => {
      const [kind, a, b] = source.value.split(":");
      view.source = kind;
      if (kind === "band") view.band = Number(a);
      else if (a !== undefined) [view.layer, view.head] = [Number(a), Number(b)];
      update();
    });
    layer.addEventListener("change", () => { view.layer = Number(layer.value); update(); });
    head.addEventListener("change", () => { view.head = Number(head.value); update(); });
    row.addEventListener("change", () => { view.row = row.value === "" ? null : Number(row.value); update(); });
    scale.addEventListener("change", () => { view.log = scale.value === "log"; update(); });
    all.addEventListener("change", () => { view.all = all.checked; update(); });
    search.addEventListener("input", find);
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") goToHit(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") pane.focus();
    });
    const cellOfEvent = (event) => {
      const target = event.target.closest?.(".tm-t");
      return target && pane.contains(target) ? Number(target.dataset.cell) : -1;
    };
    pane.addEventListener("pointerover", (event) => {
      const cell = cellOfEvent(event);
      if (cell >= 0) showTooltip(cell);
    });
    pane.addEventListener("pointerleave", hideTooltip);
    // A finger does not leave.
    document.addEventListener("pointerdown", (event) => { if (cellOfEvent(event) < 0) hideTooltip(); }, { signal });
    for (const one of [moreControls, heaviest.element]) one.addEventListener("toggle", hideTooltip);
    pane.addEventListener("click", (event) => {
      const cell = cellOfEvent(event);
      if (cell < 0) return;
      setCursor(cell);
      pickRow(cell);
    });
    const onKey = {
      ArrowRight: () => setCursor(cursor < 0 ? startCursor() : cursor + 1),
      ArrowLeft: () => setCursor(cursor < 0 ? startCursor() : cursor - 1),
      ArrowDown: () => moveVertically(1),
      ArrowUp: () => moveVertically(-1),
      n: () => moveDocument(1),
      p: () => moveDocument(-1),
      "[": () => moveLayer(-1),
      "]": () => moveLayer(1),
      "{": () => moveHead(-1),
      "}": () => moveHead(1),
      ",": () => moveRow(-1),
      ".": () => moveRow(1),
      "/": () => { moreControls.open = true; search.focus(); search.select(); },
      "?": showHelp,
      h: heaviest.focus,
      Enter: () => { if (cursor >= 0) pickRow(cursor); },
      Escape: () => { hideTooltip(); },
    };
    (options.page ? document : root).addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
      if (event.target.closest?.("input, select, button, textarea, summary, a") && event.key !== "Escape") return;
      const action = Object.hasOwn(onKey, event.key) ? onKey[event.key] : null;
      if (!action) return;
      event.preventDefault();
      action();
    }, { signal });
    scroller.addEventListener("scroll", () => {
      if (tipCell >= 0 && tipCell === cursor) showTooltip(cursor);
      else hideTooltip();
    }, { passive: true });
    new ResizeObserver(drawOverview).observe(overview.element);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOverview, { signal });
    // Paper has room for every token's own shade.
    window.addEventListener("beforeprint", text.makeAllLive, { signal });
    window.addEventListener("afterprint", text.makeFarPlain, { signal });
    update();
  };
})();
