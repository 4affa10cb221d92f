// A figure opens in a dialog: wheel, drag, keys and buttons zoom and move it. An SVG stays sharp at any size.

{
  const dialog = document.getElementById("zoom"), stage = dialog.querySelector(".stage");
  const image = stage.querySelector("img"), title = document.getElementById("zoom-title");
  const save = dialog.querySelector("[data-zoom=save]");
  let scale = 1, x = 0, y = 0, width = 1, height = 1, held = null;

  function place() {
    image.style.width = width * scale + "px";
    image.style.height = height * scale + "px";
    image.style.left = x + "px";
    image.style.top = y + "px";
  }

  function fit() {
    scale = Math.min(stage.clientWidth / width, stage.clientHeight / height);
    x = (stage.clientWidth - width * scale) / 2;
    y = (stage.clientHeight - height * scale) / 2;
    place();
  }

  // The point (px, py) of the stage stays where it is.
  function zoom(factor, px = stage.clientWidth / 2, py = stage.clientHeight / 2) {
    const next = Math.min(40, Math.max(0.05, scale * factor));
    x = px - ((px - x) * next) / scale;
    y = py - ((py - y) * next) / scale;
    scale = next;
    place();
  }

  function move(dx, dy) {
    x += dx;
    y += dy;
    place();
  }

  function show(source, name) {
    image.src = save.href = source.src;
    image.alt = source.alt;
    save.download = source.dataset.name;
    width = source.getAttribute("width") * 1;
    height = source.getAttribute("height") * 1;
    title.textContent = name;
    dialog.showModal();
    fit();
    stage.focus();
  }

  for (const figure of document.querySelectorAll("figure")) {
    const name = figure.querySelector("h3, h4").textContent, source = figure.querySelector("img");
    const button = el("button", { type: "button", "aria-label": "Enlarge " + name });
    button.addEventListener("click", () => show(source, name));
    source.parentNode.append(button);
  }

  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  stage.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    stage.focus();
    stage.setPointerCapture(event.pointerId);
    held = [event.clientX, event.clientY];
  });
  stage.addEventListener("pointermove", (event) => {
    if (!held) return;
    move(event.clientX - held[0], event.clientY - held[1]);
    held = [event.clientX, event.clientY];
  });
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, () => { held = null; });
  stage.addEventListener("keydown", (event) => {
    const step = 60;
    const keys = {
      "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit,
      ArrowLeft: () => move(step, 0), ArrowRight: () => move(-step, 0), ArrowUp: () => move(0, step),
      ArrowDown: () => move(0, -step),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const actions = { in: () => zoom(1.25), out: () => zoom(0.8), fit: fit, close: () => dialog.close() };
  for (const button of dialog.querySelectorAll("button")) {
    button.addEventListener("click", actions[button.dataset.zoom]);
  }
  addEventListener("resize", () => { if (dialog.open) fit(); });
}
