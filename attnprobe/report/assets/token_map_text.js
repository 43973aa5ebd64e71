"use strict";
// Text of a token map: blocks, sentences and, near what is on screen, tokens.
AttnprobeTokenMap.text = (() => {
  const CHUNK = 240; // tokens that are laid out, and turned into elements, together
  const MARGIN = "900px 0px"; // how far from the screen tokens are elements

  // Characters that cannot be seen or that change how others are shown, as something that can and does not.
  const HIDDEN = new RegExp(
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f"
      + "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
      + "\\u{e0000}-\\u{e0fff}]",
    "gu",
  );
  const JOINED = /^[\p{L}\p{M}\p{Extended_Pictographic}\p{Emoji_Modifier}]$/u;
  const isSelector = (code) => code >= 0xfe00 && code <= 0xfe0f;

  // Characters [from, to) of a text as they may be put into the page.
  function shown(text, from = 0, to = text.length) {
    return text.slice(from, to).replace(HIDDEN, (character, at) => {
      const code = character.codePointAt(0);
      if (code === 0x0d && text[from + at + 1] === "\n") return ""; // one line end, which the second half makes
      // One joiner or selector behind what it belongs to, as in emoji and many scripts, is a part of that.
      if (code === 0x200c || code === 0x200d || isSelector(code)) {
        const before = [...text.slice(Math.max(0, from + at - 2), from + at)].at(-1) ?? "";
        const doubled = isSelector(code) && isSelector(before.codePointAt(0));
        if (JOINED.test(before) && !doubled) return character;
      }
      return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
    });
  }

  // Of a token that is longer than a page of text, the middle is left out.
  const MOST_SHOWN = 1000;
  const isCut = (from, to) => to - from > MOST_SHOWN;
  const isSecondHalf = (text, at) => text.charCodeAt(at) >= 0xdc00 && text.charCodeAt(at) <= 0xdfff;

  // Characters [from, to) of one token as they may be put into the page.
  function shownToken(text, from, to) {
    if (!isCut(from, to)) return shown(text, from, to);
    let first = from + MOST_SHOWN / 2, last = to - MOST_SHOWN / 2;
    if (isSecondHalf(text, first)) first++;
    if (isSecondHalf(text, last)) last++;
    return `${shown(text, from, first)} […${(last - first).toLocaleString("en")} characters…] ${shown(text, last, to)}`;
  }

  // What showing or composing may change: all but plain letters, and letters with marks.
  const CHANGEABLE = /\P{M}\p{M}+|[\u1100-\u11ff]+|[^\x20-\x7e\n\t]/gu;

  // A text as it is shown and with its letters and marks composed, for searching; `start` and `stop` give the offset
  // in the text itself of where a match begins and ends.
  function searchable(text) {
    const parts = [], edits = []; // of each edit: its range in what is searched, and in the text
    let done = 0, length = 0;
    for (const match of text.matchAll(CHANGEABLE)) {
      const from = match.index, to = from + match[0].length;
      const made = shown(text, from, to).normalize("NFC");
      if (made === match[0]) continue;
      parts.push(text.slice(done, from), made);
      length += from - done;
      edits.push([length, length + made.length, from, to]);
      length += made.length;
      done = to;
    }
    parts.push(text.slice(done));
    // The last edit that begins before an offset, or at it where `orAt`.
    function editBefore(at, orAt) {
      let low = 0, high = edits.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (edits[middle][0] < at || (orAt && edits[middle][0] === at)) low = middle + 1;
        else high = middle;
      }
      return edits[low - 1] ?? [0, 0, 0, 0];
    }
    function start(at) {
      const [, end, from, to] = editBefore(at, true);
      return at < end ? from : to + at - end;
    }
    function stop(at) {
      const [, end, , to] = editBefore(at, false);
      return to + Math.max(0, at - end);
    }
    return { text: parts.join(""), start, stop };
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === false || value === null || value === undefined) continue;
      made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  // Lay the text out in `pane`. `onLive(cells)` is called for tokens that just became elements.
  function lay(model, pane, onLive) {
    const { payload, sentences, cells, cellOf } = model;
    const blocks = [];
    const sentenceElements = new Array(sentences.length - 1);
    const chunks = [];
    const live = new Map(); // cell -> element
    let sentence = 0;

    const plain = (s) => {
      const from = s === 0 ? 0 : model.starts[sentences[s]];
      const first = cellOf[sentences[s]], last = cellOf[sentences[s + 1] - 1], end = model.cellEnd(last);
      if (!isCut(from, end)) return shown(payload.text, from, end);
      const parts = [shown(payload.text, from, model.cellStart(first))];
      for (let cell = first; cell <= last; cell++) {
        const stop = model.cellStop(cell);
        parts.push(shownToken(payload.text, model.cellStart(cell), stop), shown(payload.text, stop, model.cellEnd(cell)));
      }
      return parts.join("");
    };

    payload.blocks.forEach(([spanIndex, first, last], blockIndex) => {
      const span = payload.spans[spanIndex];
      const stop = payload.pieces[last - 1][2];
      const name = blockName(model, span);
      const block = element("section", { class: `tm-block tm-${span.kind}`, "aria-label": name });
      const share = element("span", { class: "tm-share" });
      if (model.scaffold[spanIndex]) {
        block.title = name;
      } else {
        const index = span.kind === "document" ? [element("span", { class: "tm-index" }, String(span.document))] : [];
        const label = span.kind === "document" ? shown(span.name) : name;
        block.append(element("header", { class: "tm-head" },
          ...index, element("bdi", { class: "tm-name" }, label), share));
      }
      let chunk = null;
      while (sentence < sentences.length - 1 && sentences[sentence] < stop) {
        const text = plain(sentence);
        const made = element("span", { class: "tm-s" }, text);
        sentenceElements[sentence] = made;
        if (chunk === null) {
          const own = element("div", { class: "tm-chunk" });
          chunk = { first: sentence, last: sentence, element: own, length: 0 };
          chunks.push(chunk);
          block.append(chunk.element);
          chunk.element.dataset.chunk = chunks.length - 1;
        }
        chunk.element.append(made);
        chunk.last = sentence + 1;
        chunk.length += text.length;
        const size = sentences[chunk.last] - sentences[chunk.first];
        // A line end closes a chunk where there is one, as the break that a chunk makes is then no new one.
        if ((size >= CHUNK && text.endsWith("\n")) || size >= 2 * CHUNK) chunk = null;
        sentence++;
      }
      pane.append(block);
      blocks.push({ element: block, share, span: spanIndex, start: payload.pieces[first][1], stop });
    });
    const perLine = Math.max(20, pane.clientWidth / 7.5); // characters, roughly
    for (const chunk of chunks) {
      const lines = Math.ceil(chunk.length / perLine);
      chunk.element.style.containIntrinsicBlockSize = `auto ${(lines * 1.7).toFixed(1)}em`;
    }

    function makeLive(chunk) {
      if (chunk.live) return;
      chunk.live = true;
      chunk.element.classList.add("tm-live");
      const from = cellOf[sentences[chunk.first]];
      for (let s = chunk.first; s < chunk.last; s++) {
        const made = [];
        for (let cell = cellOf[sentences[s]]; cell <= cellOf[sentences[s + 1] - 1]; cell++) {
          const start = cell === 0 ? 0 : model.cellStart(cell);
          const begin = model.cellStart(cell), stop = model.cellStop(cell), end = model.cellEnd(cell);
          if (begin > start) made.push(shown(payload.text, start, begin));
          const token = element("span", { class: classOf(cell) });
          token.dataset.cell = cell;
          if (stop > begin) token.textContent = shownToken(payload.text, begin, stop);
          else token.textContent = `⟨id ${payload.ids_without_text[cells[cell]]}⟩`;
          live.set(cell, token);
          made.push(token);
          if (end > stop) made.push(shown(payload.text, stop, end));
        }
        sentenceElements[s].replaceChildren(...made);
      }
      onLive(from, cellOf[sentences[chunk.last] - 1] + 1);
    }

    function classOf(cell) {
      const token = cells[cell];
      let kind = "tm-t";
      if (model.scaffold[model.spanOf[token]]) kind += " tm-apart";
      if (payload.spans[model.spanOf[token]].kind === "sink") kind += " tm-sink";
      if (model.cellStop(cell) === model.cellStart(cell)) kind += " tm-no-text";
      else if ("\r\n".includes(payload.text[model.cellStart(cell)])) kind += " tm-line-end";
      return kind;
    }

    function makePlain(chunk) {
      if (!chunk.live) return;
      chunk.live = false;
      chunk.element.classList.remove("tm-live");
      const end = cellOf[sentences[chunk.last] - 1];
      for (let cell = cellOf[sentences[chunk.first]]; cell <= end; cell++) live.delete(cell);
      for (let s = chunk.first; s < chunk.last; s++) {
        sentenceElements[s].textContent = plain(s);
      }
    }

    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chunk = chunks[entry.target.dataset.chunk];
        chunk.near = entry.isIntersecting;
        if (chunk.near) makeLive(chunk);
        else makePlain(chunk);
      }
    }, { root: pane.closest(".tm-scroll"), rootMargin: MARGIN });
    for (const chunk of chunks) watcher.observe(chunk.element);

    function chunkOfCell(cell) {
      let low = 0, high = chunks.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (sentences[chunks[middle].first] <= cells[cell]) low = middle;
        else high = middle - 1;
      }
      return chunks[low];
    }

    // The element of a cell, made if need be.
    function elementOf(cell) {
      if (!live.has(cell)) makeLive(chunkOfCell(cell));
      return live.get(cell);
    }

    const makeAllLive = () => chunks.forEach(makeLive);
    const makeFarPlain = () => chunks.filter((chunk) => !chunk.near).forEach(makePlain);

    return { blocks, chunks, live, sentenceElements, elementOf, makeAllLive, makeFarPlain };
  }

  function blockName(model, span) {
    if (span.kind === "document") return `document ${span.document}, ${shown(span.name)}`;
    if (span.kind === "other") return shown(span.name);
    return model.kindNames.get(span.part);
  }

  return { shown, isCut, searchable, element, lay, blockName };
})();
