"use strict";
// The page's own program. Whatever the session holds is put on the page as text (textContent), never as markup.
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, classes = "", text = "") => {
    const element = document.createElement(name);
    if (classes) element.className = classes;
    if (text) element.textContent = text;
    return element;
  };
  const number = (value) => value.toLocaleString("en-US");
  const PREVIEW = 3000; // characters of a text that are shown at once
  const MOST_HITS = 200;
  const MOST_DROPPED = 1000; // messages that a compaction lists
  const agentNames = JSON.parse($("#agents-data").textContent);

  // --- the data: messages lie in the page in pieces, and are read when they are needed

  const chunks = $$("script.chunk").map((element, place) => ({
    element,
    place,
    agent: Number(element.dataset.agent),
    first: Number(element.dataset.first),
    last: Number(element.dataset.last),
  }));
  const read = (chunk) => JSON.parse(chunk.element.textContent);
  const chunksOf = (agent) => chunks.filter((chunk) => chunk.agent === agent);

  // --- a message

  function textBlock(name, classes, text, leftOut) {
    const whole = leftOut ? `${text}\n[… ${number(leftOut)} characters more are in the session, not in this page]` : text;
    const block = make(name, classes);
    if (whole.length <= PREVIEW * 1.2) {
      block.textContent = whole;
      return [block];
    }
    block.textContent = whole.slice(0, PREVIEW) + " …";
    const more = make("button", "quiet", `Show all ${number(whole.length)} characters`);
    more.type = "button";
    more.addEventListener("click", () => {
      block.textContent = whole;
      more.remove();
    });
    return [block, more];
  }

  function fold(classes, name, peek, children) {
    const element = make("details", `fold ${classes}`);
    const summary = make("summary");
    summary.append(make("span", "name", name), make("span", "peek", peek));
    element.append(summary, ...children);
    return element;
  }

  const firstLine = (text) => {
    const start = text.slice(0, 2000).trimStart();
    const end = start.indexOf("\n");
    return (end < 0 ? start : start.slice(0, end)).slice(0, 240);
  };

  function pieceElements([kind, text, leftOut, name, , isError, outcome]) {
    switch (kind) {
      case "call":
        return [fold("call", `→ ${name || "tool"}${outcome ? ` ${outcome}` : ""}`, text.replace(/\s+/g, " ").slice(0, 240), textBlock("pre", "", text, leftOut))];
      case "result":
        return [fold(isError ? "error" : "", outcome ? `← ${outcome}` : isError ? "← error" : "← result", firstLine(text), textBlock("pre", "", text, leftOut))];
      case "thinking":
        return [fold("thinking", "thinking", firstLine(text), textBlock("div", "said", text, leftOut))];
      case "other":
        return [make("p", "muted small", text)];
      default:
        return textBlock("div", "said", text, leftOut);
    }
  }

  function messageElement(agent, [seq, role, at, tokens, pieces, undone]) {
    const element = make("article", `message ${role === "assistant" ? "assistant" : "user"}`);
    element.id = `m-${agent}-${seq}`;
    const header = make("header");
    const link = make("a", "", `#${seq}`);
    link.href = `#${element.id}`;
    const results = role === "user" && pieces.length > 0 && pieces.every((piece) => piece[0] === "result");
    header.append(link, make("b", "", results ? "tool results" : role), make("span", "", at), make("span", "", `${number(tokens)} tokens`));
    if (undone) header.append(make("span", "", "undone"));
    element.append(header);
    for (const piece of pieces) element.append(...pieceElements(piece));
    return element;
  }

  // --- a transcript: a holder for each piece of it, filled when it comes near

  const filled = new WeakSet();
  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => fill(entry.target)),
    { rootMargin: "1200px" },
  );

  function fill(holder) {
    if (filled.has(holder)) return;
    filled.add(holder);
    near.unobserve(holder);
    const chunk = chunks[Number(holder.dataset.chunk)];
    holder.replaceChildren(...read(chunk).map((message) => messageElement(chunk.agent, message)));
  }

  function prepare(transcript) {
    const messages = $(".messages", transcript);
    if (messages.dataset.ready) return;
    messages.dataset.ready = "yes";
    for (const chunk of chunksOf(Number(transcript.dataset.agent))) {
      const holder = make("div", "chunk");
      holder.dataset.chunk = String(chunk.place);
      holder.append(make("p", "muted small", `Messages ${number(chunk.first)} to ${number(chunk.last)} …`));
      messages.append(holder);
      near.observe(holder);
    }
  }

  for (const transcript of $$(".transcript")) {
    transcript.addEventListener("toggle", () => transcript.open && prepare(transcript));
    for (const button of $$("[data-fold]", transcript)) {
      button.addEventListener("click", () => {
        $$("div.chunk", transcript).forEach(fill);
        $$(".fold", transcript).forEach((one) => (one.open = button.dataset.fold === "open"));
      });
    }
    if (transcript.open) prepare(transcript);
  }

  function show(agent, seq) {
    const transcript = $(`.transcript[data-agent="${agent}"]`);
    if (!transcript) return;
    transcript.open = true;
    prepare(transcript);
    const chunk = chunks.find((one) => one.agent === agent && one.first <= seq && seq <= one.last);
    if (!chunk) return;
    fill($(`div.chunk[data-chunk="${chunk.place}"]`, transcript));
    const message = document.getElementById(`m-${agent}-${seq}`);
    if (!message) return;
    message.classList.remove("found");
    requestAnimationFrame(() => {
      message.scrollIntoView({ block: "start" });
      message.classList.add("found");
    });
    return message;
  }

  document.addEventListener("click", (event) => {
    const jump = event.target.closest("[data-jump]");
    if (!jump) return;
    const [agent, seq] = jump.dataset.jump.split(":").map(Number);
    show(agent, seq);
  });

  function followHash() {
    const match = /^#m-(\d+)-(\d+)$/.exec(location.hash);
    if (match) show(Number(match[1]), Number(match[2]));
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  }
  addEventListener("hashchange", followHash);

  // --- a compaction: what it dropped, read from the transcript when it is opened

  function listDropped(pass) {
    const list = $(".gone", pass);
    if (!list || list.dataset.ready) return;
    list.dataset.ready = "yes";
    const agent = Number(pass.dataset.agent);
    const [first, last] = [Number(pass.dataset.first), Number(pass.dataset.last)];
    const cited = new Set(pass.dataset.cited.split(",").map(Number));
    let count = 0;
    for (const chunk of chunksOf(agent)) {
      if (chunk.last < first || chunk.first > last) continue;
      for (const [seq, role, , tokens, pieces] of read(chunk)) {
        if (seq < first || seq > last || ++count > MOST_DROPPED) continue;
        const item = make("li");
        const jump = make("button", "jump", `#${seq}`);
        jump.type = "button";
        jump.dataset.jump = `${agent}:${seq}`;
        const piece = pieces[0] || ["text", ""];
        const what = piece[0] === "call" ? `→ ${piece[3]} ${piece[1].replace(/\s+/g, " ").slice(0, 200)}` : firstLine(piece[1]);
        const words = make("span", "what", what || role);
        words.title = `${role}, ${number(tokens)} tokens`;
        item.append(jump, words);
        if (cited.has(seq)) item.append(make("span", "cited", "● cited"));
        list.append(item);
      }
    }
    if (count > MOST_DROPPED) list.append(make("li", "muted", `and ${number(count - MOST_DROPPED)} more`));
    if (!count) list.append(make("li", "muted", "These messages are not in this page."));
  }

  for (const pass of $$(".pass")) pass.addEventListener("toggle", () => pass.open && listDropped(pass));

  // --- the plan: fold and unfold all

  for (const button of $$("[data-tree]")) {
    button.addEventListener("click", () => $$(".tree details").forEach((one) => (one.open = button.dataset.tree === "open")));
  }

  // --- search: all words must be in one message, or in one part of the page marked with data-find

  const results = $("#results");
  const input = $("#search");
  let search = 0;

  // `textContent` joins the texts of neighbouring elements without a space: "Explorecore" for two cells of a table.
  function wordsOf(part) {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) found.push(texts.currentNode.data);
    return found.join(" ").replace(/\s+/g, " ");
  }

  function snippet(text, words) {
    const folded = text.toLowerCase();
    const at = Math.max(0, folded.indexOf(words[0]) - 60);
    const piece = text.slice(at, at + 200).replace(/\s+/g, " ");
    const line = make("span", "", at ? "…" : "");
    const lower = piece.toLowerCase();
    for (let from = 0; from < piece.length; ) {
      const next = words.map((word) => [lower.indexOf(word, from), word.length]).filter(([place]) => place >= 0).sort((a, b) => a[0] - b[0])[0];
      if (!next || lower.length !== piece.length) {
        line.append(piece.slice(from));
        break;
      }
      line.append(piece.slice(from, next[0]), make("mark", "", piece.slice(next[0], next[0] + next[1])));
      from = next[0] + next[1];
    }
    return line;
  }

  async function find(query) {
    const mine = ++search;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length || query.trim().length < 2) {
      results.hidden = true;
      return;
    }
    const list = make("ol");
    const title = make("h2", "", "Searching …");
    results.replaceChildren(title, list);
    results.hidden = false;
    let hits = 0;
    const add = (where, text, go) => {
      if (++hits > MOST_HITS) return;
      const item = make("li");
      const button = make("button");
      button.type = "button";
      button.append(make("span", "where", where), snippet(text, words));
      button.addEventListener("click", go);
      item.append(button);
      list.append(item);
    };
    for (const part of $$("[data-find]")) {
      const text = wordsOf(part);
      const folded = text.toLowerCase();
      if (!words.every((word) => folded.includes(word))) continue;
      add(part.dataset.find, text, () => {
        for (let up = part; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
        part.scrollIntoView({ block: "center" });
      });
    }
    let began = performance.now();
    for (const chunk of chunks) {
      for (const [seq, role, , , pieces] of read(chunk)) {
        const text = pieces.map((piece) => (piece[3] ? `${piece[3]} ${piece[1]}` : piece[1])).join("\n");
        const folded = text.toLowerCase();
        if (words.every((word) => folded.includes(word))) {
          add(`${agentNames[chunk.agent]} #${seq}, ${role}`, text, () => {
            const message = show(chunk.agent, seq);
            if (message) $$(".fold", message).forEach((one) => (one.open = words.some((word) => one.textContent.toLowerCase().includes(word))));
          });
        }
      }
      if (performance.now() - began > 24) {
        await new Promise((next) => setTimeout(next));
        if (mine !== search) return;
        began = performance.now();
      }
    }
    title.textContent = hits === 0 ? "Nothing found" : hits > MOST_HITS ? `${number(hits)} found, the first ${MOST_HITS} shown` : `${number(hits)} found`;
  }

  let wait = 0;
  input.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => find(input.value), 120);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      find(input.value);
      results.scrollIntoView({ block: "nearest" });
    }
  });
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
      input.select();
    } else if (event.key === "Escape" && (typing || !results.hidden)) {
      input.value = "";
      input.blur();
      search++;
      results.hidden = true;
    }
  });

  // --- light and dark, the contents, printing

  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = $("#theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const nameTheme = () => (themeButton.textContent = isDark() ? "Light" : "Dark");
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  dark.addEventListener("change", nameTheme);
  nameTheme();

  const contents = $(".contents details");
  const narrow = matchMedia("(max-width: 60rem)");
  const fit = () => (contents.open = !narrow.matches);
  narrow.addEventListener("change", fit);
  fit();

  const links = new Map($$(".contents a").map((link) => [link.getAttribute("href").slice(1), link]));
  const watched = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.classList.remove("here"));
        links.get(entry.target.id)?.classList.add("here");
      }
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  $$("main > section").forEach((section) => watched.observe(section));

  addEventListener("beforeprint", () => {
    $$(".tree details, .pass").forEach((one) => (one.open = true));
    $$(".pass").forEach(listDropped);
    $$(".transcript[open] div.chunk").forEach(fill);
  });

  root.dataset.ready = "yes";
  followHash();
})();
