// Sorting of the tables in the page, and the data files: unpacked, shown, searched and sorted when they are opened.

for (const table of document.querySelectorAll("table.sortable")) {
  const before = [...table.tBodies];
  sortButtons(table.tHead.rows[0], (column, direction) => {
    const keyed = before.map((body) => {
      const cell = body.rows[0].cells[column];
      return { body: body, key: sortKey(cell ? cell.textContent.trim() : "", cell && cell.dataset.value) };
    });
    if (direction) {
      const compare = comparer(keyed.map((k) => k.key), direction);
      keyed.sort((a, b) => compare(a.key, b.key));
    }
    const foot = table.tFoot;
    for (const k of keyed) table.insertBefore(k.body, foot);
  });
}

async function unpack(href) {
  const bytes = Uint8Array.from(atob(href.slice(href.indexOf(",") + 1)), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// RFC 4180: quotes around a field, doubled inside it.
function parseCsv(text) {
  const rows = [];
  let row = [], field = "", quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') { field += c; i++; }
      else quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === ",") { row.push(field); field = ""; }
    else if (c === "\n") { row.push(field.replace(/\r$/, "")); rows.push(row); row = []; field = ""; }
    else field += c;
  }
  if (field || row.length) { row.push(field); rows.push(row); }
  return rows;
}

const SHOWN = 200; // rows at once: a browser shows thousands, nobody reads them

function dataTable(rows) {
  const [names, ...all] = rows;
  const numeric = names.map((_, i) => {
    const filled = all.filter((r) => r[i] !== undefined && r[i] !== "");
    return filled.length > 0 && filled.every((r) => !Number.isNaN(Number(r[i])));
  });
  const texts = new Map(all.map((r) => [r, r.join(" ").toLowerCase()]));
  const head = el("tr", {}, ...names.map((n, i) => el("th", { class: numeric[i] ? "num" : "" }, n)));
  const body = el("tbody");
  const search = el("input", { type: "search", autocomplete: "off" });
  const output = el("output", { "aria-live": "polite" });
  let order = all;
  function show() {
    const words = wordsOf(search.value);
    const found = order.filter((r) => hasWords(texts.get(r), words));
    const cell = (r) => names.map((_, i) => el("td", { class: numeric[i] ? "num" : "" }, r[i] === undefined ? "" : r[i]));
    body.replaceChildren(...found.slice(0, SHOWN).map((r) => el("tr", {}, ...cell(r))));
    const all_shown = found.length <= SHOWN;
    output.textContent = (all_shown ? found.length : "first " + SHOWN + " of " + found.length) + " rows";
  }
  sortButtons(head, (column, direction) => {
    order = [...all];
    if (direction) {
      const keys = new Map(all.map((r) => [r, sortKey(r[column] || "", numeric[column] ? r[column] || "" : "")]));
      const compare = comparer([...keys.values()], direction);
      order.sort((a, b) => compare(keys.get(a), keys.get(b)));
    }
    show();
  });
  search.addEventListener("input", show);
  show();
  const filters = el("div", { class: "filters" }, el("label", {}, "Search ", search), output);
  return [filters, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body))];
}

for (const details of document.querySelectorAll("details.data")) {
  const link = details.querySelector("a.download"), packed = link.href, name = details.dataset.name;
  let text = null;
  async function open() {
    if (text !== null || !details.open) return;
    text = await unpack(packed);
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = name;
    const shown = details.dataset.table === "yes" ? dataTable(parseCsv(text)) : [el("pre", {}, text)];
    details.append(...shown);
  }
  details.addEventListener("toggle", open);
}
