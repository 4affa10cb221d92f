"use strict";
// Everything on the page is built as elements and text, never as markup: titles and logs come from strangers.

function el(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") made.className = value;
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// "12.7 ± 4.9" -> 12.7, "38.4k" -> 38400, "p < 0.001" -> 0.001, "–" -> NaN
function toNumber(text) {
  const match = /^(?:p ?)?[=<>≈]?\s*([-−+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)([kMG])?(?=$|[\s%(±])/.exec(text.trim());
  if (!match) return NaN;
  const unit = { k: 1e3, M: 1e6, G: 1e9 }[match[2]] || 1;
  return Number(match[1].replace(/,/g, "").replace("−", "-")) * unit;
}

// Numbers by size, text by letters, what is empty or missing last whichever way round.
function comparer(keys, direction) {
  const filled = keys.filter((k) => k.text !== "" && k.text !== "–");
  const numeric = filled.length > 0 && filled.filter((k) => !Number.isNaN(k.number)).length * 2 > filled.length;
  const lacks = (k) => (numeric ? Number.isNaN(k.number) : k.text === "" || k.text === "–");
  const letters = new Intl.Collator("en", { numeric: true });
  return (a, b) => {
    if (lacks(a) || lacks(b)) return lacks(a) - lacks(b);
    return direction * (numeric ? a.number - b.number : letters.compare(a.text, b.text));
  };
}

function sortKey(text, value) {
  return { text: text, number: value === undefined ? toNumber(text) : value === "" ? NaN : Number(value) };
}

// Buttons in the head of a table. sort(column, direction): 1 up, -1 down, 0 as it was.
function sortButtons(head, sort) {
  const cells = [...head.cells];
  cells.forEach((cell, column) => {
    const button = el("button", { type: "button" }, ...cell.childNodes);
    cell.scope = "col";
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "none" }[cell.getAttribute("aria-sort")] || "ascending";
      for (const other of cells) other.removeAttribute("aria-sort");
      if (next !== "none") cell.setAttribute("aria-sort", next);
      sort(column, { ascending: 1, descending: -1, none: 0 }[next]);
    });
  });
}

// Every search word must be in the text.
function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function hasWords(text, words) {
  return words.every((word) => text.includes(word));
}

// The filters of a list: selects compare with data-FIELD of each tbody, the search with its text.
function filterList(form, extra) {
  const items = [...document.getElementById(form.dataset.filters).tBodies];
  const texts = items.map((item, i) => (item.textContent + " " + (extra ? extra(item, i) : "")).toLowerCase());
  const fields = [...form.querySelectorAll("[data-field]")];
  const output = form.querySelector("output");
  function apply() {
    let shown = 0;
    const chosen = fields.filter((f) => f.value && f.dataset.field !== "text");
    const words = wordsOf(fields.find((f) => f.dataset.field === "text").value);
    items.forEach((item, i) => {
      const keep = chosen.every((f) => {
        const value = item.dataset[f.dataset.field];
        return f.dataset.field === "studies" ? value.split(" ").includes(f.value) : value === f.value;
      });
      item.hidden = !(keep && hasWords(texts[i], words));
      shown += !item.hidden;
    });
    output.textContent = shown + " of " + items.length;
  }
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply();
}

for (const form of document.querySelectorAll("form[data-filters]")) {
  if (form.dataset.filters !== "runs-list") filterList(form); // runs.js knows what else that one looks into
}

{
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}
