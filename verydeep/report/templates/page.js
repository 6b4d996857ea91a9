(() => {
  "use strict";
  const config = JSON.parse(document.getElementById("chart-config").textContent);

  // Panels side by side as far as they fit, each no wider than its place.
  const fitted = (spec, width) => {
    const panels = spec.usermeta && spec.usermeta.panels;
    if (!panels || !spec.spec) return spec;
    const side = 88, gap = 24, shape = spec.spec.height / spec.spec.width;
    const most = Math.max(1, Math.floor((width - side) / (spec.spec.width + gap)));
    spec.columns = Math.ceil(panels / Math.ceil(panels / Math.min(most, 4)));
    spec.spec.width = Math.min(panels === 1 ? 400 : 300, Math.floor((width - side - gap * (spec.columns - 1)) / spec.columns));
    spec.spec.height = Math.round(spec.spec.width * shape);
    return spec;
  };

  const save = async (view, name, format) => {
    const link = document.createElement("a");
    link.download = `${name}.${format}`;
    view.background("white");
    link.href = await view.toImageURL(format, 2);
    view.background("transparent");
    link.click();
  };

  // The page forbids code made of text: `ast` has Vega read its expressions instead.
  const options = {config, renderer: "svg", actions: false, ast: true, defaultStyle: false};
  const drawn = new Map(); // figure -> what is in its place, and for which width

  const draw = async (figure) => {
    const live = figure.querySelector(".live"), width = live.clientWidth, before = drawn.get(figure);
    if (width === 0 || (before && before.width === width)) return;
    const spec = fitted(JSON.parse(document.getElementById(figure.dataset.chart).textContent), width);
    drawn.set(figure, {width});
    if (before && before.result) before.result.finalize();
    drawn.set(figure, {width, result: await vegaEmbed(live, spec, options)});
    figure.classList.add("drawn");
    figure.querySelector(".save").hidden = false;
  };

  const drawAll = async () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      try {
        await draw(figure);
      } catch (error) {
        console.error(figure.id, error); // its still image stays
      }
      await new Promise((resume) => setTimeout(resume)); // the page answers between two figures
    }
  };

  const drawAgain = () => {
    let waiting;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(drawAll, 200);
    });
  };

  const saveable = (button) => button.addEventListener("click", () => {
    const figure = button.closest("figure");
    const name = document.getElementById(figure.dataset.chart).dataset.name;
    save(drawn.get(figure).result.view, name, button.dataset.format);
  });

  const sortable = (head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      const body = head.closest("table").tBodies[0];
      const key = (row) => row.cells[head.cellIndex].dataset.value;
      const order = (a, b) => (a === "") - (b === "") || (a - b || a.localeCompare(b, "en", {numeric: true})) * (rising ? 1 : -1);
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
    });
  };

  document.querySelectorAll("th[data-sort]").forEach(sortable);
  document.querySelectorAll(".save button").forEach(saveable);
  drawAll().then(drawAgain);
})();
