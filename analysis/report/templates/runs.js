// The runs: a search that looks into configurations, and for each run, when opened, its configuration beside another's.

{
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs, configurations = data.configurations;
  const settingsOf = (run) => (run.configuration === undefined ? {} : configurations[run.configuration]);
  const nameOf = (run) => run.method + (run.seed === undefined ? "" : ", seed " + run.seed);

  const searched = configurations.map((c) => Object.entries(c).map(([k, v]) => k + "=" + v).join("\n"));
  const form = document.querySelector("form[data-filters=runs-list]");
  if (form) {
    filterList(form, (item) => {
      const run = runs[item.dataset.run];
      return run.folder + "\n" + (run.configuration === undefined ? "" : searched[run.configuration]);
    });
  }

  function pairs(heading, content) {
    const flat = [];
    (function walk(value, key) {
      if (value !== null && typeof value === "object" && !Array.isArray(value)) {
        for (const [k, v] of Object.entries(value)) walk(v, key ? key + "." + k : k);
      } else flat.push([key, typeof value === "string" ? value : JSON.stringify(value)]);
    })(content, "");
    const rows = flat.map(([k, v]) => el("tr", {}, el("th", { scope: "row" }, k), el("td", {}, v)));
    return el("table", {}, el("caption", {}, heading), el("tbody", {}, ...rows));
  }

  // Rows of the two configurations; those that differ are marked, and alone at first where there is another.
  function compared(run, other, only) {
    const mine = settingsOf(run), theirs = other ? settingsOf(other) : {};
    const keys = [...Object.keys(mine), ...Object.keys(theirs).filter((k) => !(k in mine))];
    const rows = [];
    for (const key of keys) {
      const differs = other && mine[key] !== theirs[key];
      if (only && other && !differs) continue;
      const values = other ? [mine[key], theirs[key]] : [mine[key]];
      const cells = values.map((v) => el("td", {}, v === undefined ? "–" : v));
      rows.push(el("tr", { class: differs ? "changed" : "" }, el("td", {}, el("code", {}, key)), ...cells));
    }
    if (!rows.length) return el("p", {}, Object.keys(mine).length ? "No difference but the seed." : "No configuration.");
    const names = ["Setting", nameOf(run), ...(other ? [nameOf(other)] : [])];
    const head = el("tr", {}, ...names.map((n) => el("th", { scope: "col" }, n)));
    return el("div", { class: "scroll" }, el("table", { class: "settings" }, el("thead", {}, head), el("tbody", {}, ...rows)));
  }

  // One run of each other configuration of the same task and model, the reference first.
  function others(run) {
    const seen = new Set([run.configuration]), found = [];
    const add = (i) => {
      const other = runs[i];
      if (other.configuration === undefined || seen.has(other.configuration)) return;
      seen.add(other.configuration);
      found.push(i);
    };
    if (run.reference !== undefined) add(run.reference);
    runs.forEach((other, i) => { if (other.task === run.task && other.model === run.model) add(i); });
    return found;
  }

  function panel(run) {
    const choices = others(run);
    const select = el("select", {}, el("option", { value: "" }, "nothing"),
      ...choices.map((i) => el("option", { value: String(i) }, nameOf(runs[i]))));
    select.value = run.reference === undefined || !choices.includes(run.reference) ? "" : String(run.reference);
    const only = el("input", { type: "checkbox", checked: true });
    const place = el("div");
    function show() {
      const other = select.value === "" ? null : runs[Number(select.value)];
      only.disabled = !other;
      place.replaceChildren(compared(run, other, only.checked));
    }
    select.addEventListener("change", show);
    only.addEventListener("change", show);
    show();
    const controls = el("div", { class: "filters" }, el("label", {}, "Compare with ", select),
      el("label", {}, only, " only what differs"));
    const facts = { folder: run.folder, studies: run.studies.join(", "), ...run.manifest };
    const boxes = [pairs("Manifest", facts)];
    if (run.totals) boxes.push(pairs("Totals", run.totals));
    if (run.accuracy) boxes.push(pairs("Accuracy", run.accuracy));
    if (run.environment !== undefined) {
      boxes.push(pairs("Environment " + (run.environment + 1), data.environments[run.environment]));
    }
    const facts_of_run = el("div", { class: "columns" }, ...boxes);
    return el("div", { class: "panel" }, el("strong", {}, "Configuration"), controls, place, facts_of_run);
  }

  // A run that a claim names leads to its line in the list.
  for (const name of form ? document.querySelectorAll("#claims .list code") : []) {
    const button = el("button", { type: "button", class: "link" }, name.textContent);
    button.addEventListener("click", () => {
      form.reset();
      form.querySelector("[data-field=text]").value = name.textContent;
      setTimeout(() => {
        form.dispatchEvent(new Event("input"));
        document.getElementById("runs").scrollIntoView();
      });
    });
    name.replaceChildren(button);
  }

  const list = document.getElementById("runs-list");
  for (const body of list ? list.tBodies : []) {
    const row = body.rows[0], cell = row.cells[0];
    const button = el("button", { type: "button", "aria-expanded": "false" }, ...cell.childNodes);
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const opened = body.querySelector("tr.opened");
      button.setAttribute("aria-expanded", String(!opened));
      if (opened) opened.remove();
      else body.append(el("tr", { class: "opened" }, el("td", { colSpan: row.cells.length }, panel(runs[body.dataset.run]))));
    });
  }
}
